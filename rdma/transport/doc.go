// Package transport is the contract between a queue pair and what carries it to the queue pair at
// the other end. It knows requests, messages and statuses as verbs have them, and nothing of
// packets' formats: RDMA over Falcon (package rof), the way inside a NIC (package local) and
// whatever comes later keep the same contract, and package conformance holds each of them to it.
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
// The queue pair hands on a Request packet by packet: each call of Issue takes the next one and
// says how much data it has, so that the queue pair's scheduler decides after every packet who is
// next. What a packet is, how long it may be and how it is numbered is the transport's matter.
// Requests are issued one after the other and carried out by the peer in that order, as far as the
// connection is ordered.
//
// The transport keeps no data. It asks Gather for the bytes of a packet each time it sends it, also
// again; memory that is gone by then makes the request fail (Done with WCLocProtErr), or, where
// requests complete in error, reach the peer as Packet.Spoiled.
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
// A packet that arrives in its place is handed to Place, which puts its data where it belongs (the
// next receive, or a region that a key names) and decides: taken; not ready, come again; refused.
// The transport answers the peer accordingly, once. When all packets of a message are there and all
// messages before it are complete it calls Complete; in unordered mode as soon as the message is
// there. READs are checked once (Read), their data is read each time the response is sent. An
// atomic runs once, whatever is sent again; the transport keeps its result until the peer has it.
//
// What the transport itself finds wrong (numbers out of sequence, packets that make no message) it
// refuses, and says so with Refused.
//
// # Unreliable connections
//
// Where Terms.Unreliable is set a packet is done, with success, when it is sent: no word of the
// peer changes that, and if the transport needs its memory longer it may be done later. Failures
// are this end's own. A message that does not arrive whole is lost, and so is one of which Place
// did not take a packet, whatever the verdict; nobody is told. The next message has its number, and
// the receive that it may have taken. Messages arrive in order, each once at most. Where they
// arrive at all the transport may be better than it must be.
//
// # Statuses
//
// Refusals travel as the transport likes and come back as statuses of verbs:
//
//	Refusal at the target     status at the requester
//	Invalid, Sequence         WCRemInvReqErr
//	Access                    WCRemAccessErr
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
// After Drain, Close or Abort the endpoint hears nothing more of the connection. When the transport
// ends it, Ended is the last call.
//
// # Calls and time
//
// Everything belongs to one goroutine. A Conn calls its endpoint in the middle of work on packets
// that arrived, never from within a call of the endpoint; Gather is called while packets are made
// and must change nothing. Settle ends each group of calls, so that an endpoint can put off what
// would change queues under the transport's feet. Time is an argument. Nothing allocates per
// packet.
package transport
