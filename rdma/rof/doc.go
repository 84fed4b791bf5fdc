// Package rof is RDMA over Falcon (specification 0.9), and what the connections inside a NIC look
// like too. It cuts requests into packets, numbers them, puts RDMA's headers around their data
// (package wire), and carries out what the packets of a peer ask for. It keeps the contract of
// package transport towards queue pairs, and asks of what is below (Carrier) what Falcon gives.
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
// READs and atomics are pulls: answer.go answers them. An atomic runs once, when its request
// arrives; the data of a READ is read each time Falcon sends the response. status.go has the
// syndromes that refusals travel as. datagrams.go is the connection that two functions share for
// their datagrams (§6.6.3), link.go when there is one, outgoing.go what waits for it, links.go
// those of a function.
//
// # Ordering and errors
//
// A queue pair on an ordered Falcon connection is strongly ordered, on an unordered one weakly
// ordered (§6.2): data is placed as it arrives, atomics wait for what was sent before them,
// messages complete in the order of the requests. In unordered mode messages complete as they come;
// those that take a receive have one packet.
//
// A refused push gets a NACK, a refused pull a complete-in-error response, both with a syndrome. A
// queue pair whose requests complete in error (§6.3) gets the NACK for that and goes on; who cannot
// send what it promised marks the packets with CE.
//
// Receiver not ready is Falcon's to repeat. Fixed sets bound what a connection has in flight:
// segments, arrivals, pulls being served.
//
// # Ownership
//
// An Engine and its connections belong to one goroutine. Scratch memory of the engine makes a
// packet cost no allocation: nothing of it outlives the call it is used in.
package rof
