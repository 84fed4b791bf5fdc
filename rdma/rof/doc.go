// Package rof implements RDMA over Falcon (specification 0.9), which connections inside a NIC use
// too. It cuts requests into packets, numbers them, adds the RDMA headers (package wire), and
// carries out the requests of the peer. To queue pairs it provides the contract of package
// transport. From the layer below (Pipe) it needs the service of Falcon.
//
//	queue pair        initiator                     Falcon                    target             queue pair
//	  │ Issue             │                           │                         │                     │
//	  ├──────────────────▶│ one packet: SN, RMSN      │                         │                     │
//	  │                   ├── Push ──────────────────▶│                         │                     │
//	  │            Gather │ every (re)transmission    │                         │                     │
//	  │◀──────────────────┤◀─────────────────── Fill ─┤                         │                     │
//	  │                   │                           ├── EvPush ──────────────▶│ admit by SN         │
//	  │                   │                           │                         ├── Place ───────────▶│
//	  │                   │                           │◀── AckPush or NackPush ─┤                     │
//	  │              Done │◀────────────── EvPushDone ┤                         ├── Complete ────────▶│
//	  │◀──────────────────┤                           │                         │                     │
//
// READs and atomics are pulls. An atomic runs once, when its request arrives. The data of a READ is
// read each time Falcon sends the response. Datagrams go over a connection that two functions share
// (§6.6.3).
//
//	pipe, engine          what is below, and what the connections of a shard share
//	conn                  a queue pair's connection: its events, packets and end
//	initiator             own requests: issued, filled, done
//	target, pulls         the peer's requests: SENDs and WRITEs, READs and atomics
//	status                refusals on the wire, and as completions
//	links, datagrams      the connections for datagrams, and a datagram's way
//
// # Ordering and errors
//
// A queue pair on an ordered Falcon connection is strongly ordered. One on an unordered connection
// is weakly ordered (§6.2): data is placed as it arrives, atomics wait for requests sent before
// them, and messages complete in the order of the requests. In unordered mode messages complete as
// they arrive; a message that takes a receive must be one packet.
//
// A refused push is answered with a NACK, a refused pull with a complete-in-error response, both
// with a syndrome. A queue pair whose requests complete in error (§6.3) gets the NACK for that and
// continues. If an initiator cannot read the data that it announced, it marks the packets with CE.
//
// Falcon repeats pushes after receiver-not-ready. Fixed limits bound what a connection has in
// flight: segments, arrivals, pulls being served.
//
// # Ownership
//
// An Engine and its connections belong to one goroutine. The engine has scratch memory, so that a
// packet costs no allocation. Its contents are valid only within the call that uses it.
package rof
