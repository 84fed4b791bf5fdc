// Package transport is the contract between a queue pair and the transport that connects it to the
// queue pair at the other end. It knows requests, messages and statuses as verbs define them, but
// no packet formats. RDMA over Falcon (package rof), connections inside a NIC (package local),
// RoCEv2 (package roce) and iWARP (package iwarp) all keep this contract, and package conformance
// tests each of them against it.
//
//	queue pair (Endpoint)                                             Endpoint at the other end
//	      │ Issue(request)                                                      ▲
//	      ▼                                                                     │ Place, Complete
//	    Conn ── Gather, as often as a packet is sent ──▶ packets ──────────▶  Conn   Read, Atomic
//	      │                                                                     │
//	      │◀──────────────── acknowledgement, refusal, response ────────────────┘
//	      ▼
//	Done, with a status, once per packet; Scatter before it where there is a response
//
// # Requests
//
// The queue pair passes on a Request packet by packet. Each call of Issue takes the next packet and
// returns its number of data bytes, so the queue pair's scheduler can decide after every packet who
// is next. The transport decides what a packet is, how long it may be and how it is numbered.
// Requests are issued one after the other. The peer carries them out in that order, as far as the
// connection is ordered.
//
// The transport keeps no data. It calls Gather for the bytes of a packet each time it sends the
// packet. If the memory is gone by then, the request fails (Done with WCLocProtErr) or, where
// requests complete in error, reaches the peer as Packet.Spoiled.
//
//	        Issue says               what follows, when it is worth another try
//	nil     the packet is taken      –
//	ErrBlocked  no credit            Unblocked
//	ErrWindow   enough under way     Done
//	ErrEnding   no more here         Ended
//	ErrFailed   Request.Status says why: the request is over
//
// # At the other end
//
// A packet that arrives in its place is passed to Place, which writes its data (to the next
// receive, or to a region that a key names) and returns a verdict: accepted, not ready, or refused.
// The transport sends the peer one answer accordingly. When all packets of a message have arrived
// and all messages before it are complete, it calls Complete; in unordered mode, as soon as the
// message has arrived. A READ is checked once (Read), and its data is read each time the response
// is sent. An atomic runs once, however often it is sent; the transport keeps its result until the
// peer has it.
//
// The transport itself refuses what it finds wrong (numbers out of sequence, packets that do not
// form a message), and reports that with Refused.
//
// # Features
//
// Not every wire can do everything: Conn.Features says what it can. Where a wire does not confirm,
// a SEND or WRITE is done when the host of the peer has its bytes, which may be before the peer's
// queue pair has looked at them. If that refuses them, the connection ends, with the status of the
// refusal. Where a wire does not let messages wait, a message that finds no receive ends the
// connection with WCRNRRetryExcErr.
//
// # Unreliable connections
//
// If Terms.Unreliable is set, a packet is done, with success, when it is sent, or later if the
// transport needs its memory longer. No answer of the peer changes that; only failures at this end
// are reported. A message that does not arrive whole is lost, and so is one of which Place did not
// accept a packet, whatever the verdict; nobody is told. The next message takes the number of the
// lost one, and the receive that it may have taken. Messages arrive in order and at most once. A
// transport may deliver more reliably than it must.
//
// # Statuses
//
// Refusals are sent in the format of the transport and come back as statuses of verbs:
//
//	Refusal at the target     status at the requester
//	Invalid, Sequence         WCRemInvReqErr
//	Access, UnknownKey,
//	ForeignKey, OutOfBounds   WCRemAccessErr
//	Operation                 WCRemOpErr
//	NotServing                WCRetryExcErr   as if nobody were there
//	–  (no answer)            WCRetryExcErr, or WCRNRRetryExcErr where the last word was not ready
//
// # The end of a connection
//
//	Drain   finishes what is under way and goes on answering, with NotServing
//	Close   ends it here; the peer finds out by itself
//	Abort   ends it because the peer broke the rules
//	Forget  drops the requests under way: their ends are told to nobody any more
//
// After Drain, Close or Abort the endpoint gets no more calls from the connection. When the
// transport ends the connection, Ended is the last call.
//
// # Calls and time
//
// Everything belongs to one goroutine. A Conn calls its endpoint while it works on packets that
// arrived, never from within a call of the endpoint. Gather is called while packets are made and
// must change nothing. Settle ends each group of calls, so that an endpoint can postpone changes to
// queues that the transport is working on. Time is an argument. Nothing allocates memory per
// packet.
package transport
