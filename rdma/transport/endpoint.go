package transport

import "github.com/falcon-vnic/vnic/queues/abi"

// Endpoint is a queue pair as its connection sees it.
type Endpoint interface {
	Requester
	Responder

	// Unblocked reports that a packet that Issue refused with ErrBlocked may be tried again.
	Unblocked(now Time)
	// Ended reports that the connection is over, and why.
	Ended(now Time, st abi.WCStatus, reason string)
	// Settle ends a group of calls.
	Settle(now Time)
}

// Requester is the half of an endpoint that sends requests.
type Requester interface {
	// Gather fills dst with the data of r from offset on.
	Gather(r *Request, offset uint32, dst []byte) error
	// Element returns what the scatter list of a READ has at offset: the address, its key, and how
	// many bytes the element has from there on. left is 0 past the end.
	Element(r *Request, offset uint32) (addr uint64, lkey, left uint32)
	// Scatter writes the response to r from offset on.
	Scatter(r *Request, offset uint32, src []byte) error
	// Done ends a packet of r. Request.Pending is 0 after the last one.
	Done(now Time, r *Request, st abi.WCStatus, vendor uint32)
	// PeerNotReady reports that the peer had no receive for r, for the times-th time. The transport
	// tries again until the request is dropped.
	PeerNotReady(now Time, r *Request, times int)
	// Unanswered reports that the response to r was lost and none will come.
	Unanswered(now Time, r *Request)
}

// Responder is the half of an endpoint that serves the requests of its peer.
type Responder interface {
	// Serving reports whether requests are accepted.
	Serving() bool
	// Heard reports that a packet of the peer arrived.
	Heard()
	// Address reports whether a packet may use shared receive queue srqn. It is called before
	// anything else about a packet, for extended reliable connections only.
	Address(srqn uint32) bool
	// Place writes the data of a packet to its receive or region.
	Place(now Time, p *Packet, data []byte) Verdict
	// Complete ends the message whose last packet is p and whose length is n. If failed is not
	// WCSuccess, the message failed at this end.
	Complete(now Time, p *Packet, n uint64, failed abi.WCStatus)
	// Refused reports that the transport refused a request, or that Read or Atomic did. The
	// endpoint fails.
	Refused(now Time, r Refusal)
	// Read looks up the memory for a READ of n bytes.
	Read(rkey uint32, addr uint64, n uint32) (Memory, Refusal)
	// Atomic carries out an atomic and returns the previous value.
	Atomic(x *Atomic) (original uint64, r Refusal)
	// Receives returns the number of receives for the messages behind those that are complete.
	// counted is false if other queue pairs take them too.
	Receives() (n int, counted bool)
	// RNRTimer returns, in InfiniBand's encoding, the time after which the peer retries a request
	// that was not ready.
	RNRTimer() uint8
	// AnswerAt returns when the function's rate allows an answer to a READ or atomic; a time up to
	// now means at once. Answered charges the rate.
	AnswerAt(now Time) Time
	Answered(n int)
}
