package transport

import "github.com/falcon-vnic/vnic/queues/abi"

// Endpoint is a queue pair as its connection sees it.
type Endpoint interface {
	Requester
	Responder

	// Unblocked says that what ErrBlocked refused may be tried again.
	Unblocked(now Time)
	// Ended says that the connection is over, and why.
	Ended(now Time, st abi.WCStatus, reason string)
	// Settle ends a group of calls.
	Settle(now Time)
}

// Requester is the half of an endpoint that sends requests.
type Requester interface {
	// Gather fills dst with the data of r from offset on.
	Gather(r *Request, offset uint32, dst []byte) error
	// Element is what the scatter list of a READ has at offset: the address, its key, and how many
	// bytes follow there. left is 0 where there is nothing.
	Element(r *Request, offset uint32) (addr uint64, lkey, left uint32)
	// Scatter places the response to r from offset on.
	Scatter(r *Request, offset uint32, src []byte) error
	// Done ends a packet of r. The last one of a request has Request.Pending 0.
	Done(now Time, r *Request, st abi.WCStatus, vendor uint32)
	// PeerNotReady says that the peer had no receive for r, times times by now. The transport tries
	// again until it is dropped.
	PeerNotReady(now Time, r *Request, times int)
	// Unanswered says that the response to r went astray: no other will come.
	Unanswered(now Time, r *Request)
}

// Responder is the half of an endpoint that serves the requests of its peer.
type Responder interface {
	// Serving reports whether requests are taken.
	Serving() bool
	// Heard says that a packet of the peer arrived.
	Heard()
	// Address says, before anything else is asked about a packet, that it names shared receive
	// queue srqn. It reports whether that is one to reach this way. Extended reliable connections
	// only.
	Address(srqn uint32) bool
	// Place puts the data of a packet where it belongs.
	Place(now Time, p *Packet, data []byte) Verdict
	// Complete ends the message whose last packet is p and whose length is n. It failed at this end
	// unless failed is WCSuccess.
	Complete(now Time, p *Packet, n uint64, failed abi.WCStatus)
	// Refused says that the transport refused a request, or had to refuse what Read or Atomic did,
	// which the endpoint does not survive.
	Refused(now Time, r Refusal)
	// Read looks up what a READ of n bytes wants.
	Read(rkey uint32, addr uint64, n uint32) (Memory, Refusal)
	// Atomic carries out an atomic.
	Atomic(x *Atomic) (original uint64, r Refusal)
	// Receives is how many receives there are for the messages behind those that are complete;
	// counted is false where others take them, too.
	Receives() (n int, counted bool)
	// RNRTimer is the time after which a peer that was told to come again does, as InfiniBand
	// encodes it.
	RNRTimer() uint8
	// AnswerAt is when the function's rate lets it answer a READ or atomic; now or earlier is at
	// once. Answered charges the rate.
	AnswerAt(now Time) Time
	Answered(n int)
}
