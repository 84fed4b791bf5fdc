// Package roce is RoCEv2 (InfiniBand Annex A17): the transport of InfiniBand in UDP, as every other
// RDMA NIC and Linux's rdma_rxe speak it. It keeps the contract of package transport towards queue
// pairs; the bytes are package wire's.
//
//	queue pair        requester                    network                responder            queue pair
//	  │ Issue             │                           │                       │                     │
//	  ├──────────────────▶│ an entry: PSN             │                       │                     │
//	  │            Gather │ each time it is sent      │                       │                     │
//	  │◀──────────────────┤── Transmit ──────────────▶│── Receive ───────────▶│ next PSN?           │
//	  │                   │                           │                       ├── Place ───────────▶│
//	  │                   │◀─ ACK, NAK, response ─────┤◀──────────────────────┤── Complete ────────▶│
//	  │◀──────────── Done ┤ up to that PSN            │                       │                     │
//
// Files, each one knowing those above it:
//
//	cc (a package)           how much may be under way, and how fast
//	end                      one end of a connection, as both of its halves know it
//	requester, credits       own requests and what they cost
//	receives                 end-to-end credits: requests for which the peer has a receive
//	done, retry, send, issue ended, sent again, sent, numbered
//	completion               what the peer answers
//	responder, message       the peer's requests
//	request, serve, respond  taken, carried out, answered
//	unreliable               both halves, where nobody answers
//	datagrams                what a function sends and takes without connections
//	cnp                      marks of congestion, told to who sent the packets
//	conn, transmit           a connection: what its queue pair does with it, its packets
//	port                     a function in its network, where packets find their connections
//	shared, engine           those of a shard, and what they share
//
// # The reliable connection
//
// Each request takes PSNs: a packet of a SEND or WRITE, an atomic one, a READ as many as its
// response has packets. Requests are kept in their order until they are answered. When an answer
// says, or shows, that a packet was lost, everything from there on is sent again (go-back-N); the
// data comes from the queue pair each time. READs longer than maxRead packets are asked for in
// parts, so that little is sent twice.
//
// The responder takes the packet that is next and no other. It answers those that ask for it, once
// for as many as came together; READs and atomics are answered in their turn. What came before is
// acknowledged again, READs are carried out again, atomics are not: their results are kept.
//
// # The unreliable connection
//
// Each packet of a SEND or WRITE takes a PSN and is done when it was sent. A packet that is not the
// next one loses the message at hand; the next message begins with its First or Only packet.
//
// # Losses
//
// A NAK says at once what is missing, a response that is out of order as well. The end of a burst
// has no such witness: there a timer sends again, first after what round trips take, then ever
// later. The attempts end when verbs' timeout has passed retry_cnt + 1 times without any answer.
//
// # Ownership
//
// An Engine with all of its ports and connections belongs to one goroutine. It makes packets when
// it is asked to (Transmit), in the caller's memory, and takes those that came (Receive). Nothing
// allocates per packet. Peers are believed nothing: a packet counts for a connection only if both
// addresses, the partition and the service are its own; what a peer may have under way is bounded
// by what its queue pair agreed to serve.
//
// References: InfiniBand Architecture 1.2.1 (IBA) §9; Annex A17 (RoCEv2); docs/roce.md.
package roce
