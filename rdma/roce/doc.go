// Package roce implements RoCEv2 (InfiniBand Annex A17): the InfiniBand transport in UDP, as other
// RDMA NICs and Linux's rdma_rxe use it. To queue pairs it provides the contract of package
// transport. Package wire defines the bytes.
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
//	engine, port          what a shard has, and a function in its network: packets find connections
//	conn                  a connection: what its queue pair does with it, its packets
//	requester             own requests: issued, sent
//	completion, retry     what the peer answers; what it does not
//	credits, receives     what requests cost; requests for which the peer has a receive
//	responder, answers    the peer's requests: SENDs and WRITEs, READs and atomics
//	datagrams             what a function sends and takes without connections
//	cnp                   marks of congestion, told to who sent the packets
//	cc (a package)        how much may be under way, and how fast
//
// # The reliable connection
//
// Each request takes PSNs: one for each packet of a SEND or WRITE, one for an atomic, and for a
// READ as many as its response has packets. Requests are kept in order until they are answered.
// When an answer reports or shows that a packet was lost, everything from that packet on is sent
// again (go-back-N), with data from the queue pair each time. A READ longer than maxRead packets is
// requested in parts, so that little is sent twice.
//
// The responder accepts only the next packet. It acknowledges packets that ask for it, with one
// answer for those that arrived together; READs and atomics are answered in order. Earlier packets
// are acknowledged again. Earlier READs are carried out again, earlier atomics are not: their
// results are kept.
//
// # The unreliable connection
//
// Each packet of a SEND or WRITE takes a PSN and is done when it was sent. If a packet is not the
// next one, the current message is lost. The next message begins with its First or Only packet.
//
// # Losses
//
// A NAK reports at once what is missing, and a response out of order shows it. At the end of a
// burst neither may come. There a timer sends again, first after a time based on the round trips
// measured, then at growing intervals. The attempts end when verbs' timeout has passed retry_cnt +
// 1 times without any answer.
//
// # Ownership
//
// An Engine with all of its ports and connections belongs to one goroutine. It writes packets into
// the caller's memory when asked (Transmit), and is given those that arrived (Receive). Nothing
// allocates memory per packet. Peers are not trusted: a packet counts for a connection only if both
// addresses, the partition and the service match. What a peer may have in flight is bounded by what
// its queue pair agreed to serve.
//
// References: InfiniBand Architecture 1.2.1 (IBA) §9; Annex A17 (RoCEv2); docs/roce.md.
package roce
