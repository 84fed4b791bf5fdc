// Package rdma is the engine of one shard: it carries out verbs for the functions of the shard,
// each of which has its objects (package verbs), over the wires it has (wires.go), and decides
// whose turn it is.
//
// The life of a WRITE, with the place of each step:
//
//	guest             verbs                        rof, local                     verbs             guest
//	  │ WQE, bell       │                               │                           │                 │
//	  ├────────────────▶│ read once, check              │                           │                 │
//	  │                 │ its turn (sched.go)           │                           │                 │
//	  │                 ├── Issue ─────────────────────▶│ one packet, numbered      │                 │
//	  │◀── Gather ──────┤◀───── each time it is sent ───┤                           │                 │
//	  │                 │                               ├── Place ─────────────────▶│ check           │
//	  │                 │                               │                           ├── scatter ─────▶│
//	  │                 │◀──────────────────────── Done ┤                           │                 │
//	  │◀── CQE, event ──┤ in order                      ├── Complete ──────────────▶│ CQE, where it   │
//	  │                 │                               │                           │ took a receive  │
//
// A function is what its driver sees of the engine: objects, doorbells, queue pairs. Functions
// share the engine by deficit round robin (sched.go). What a queue pair asks of a connection is
// package transport; who opens connections gives them to queue pairs and links (Wire finds the
// wire).
//
// Datagrams need no connection of their queue pair: each work request names an address handle,
// which a link of package rof carries them for.
//
// # Trust
//
// The guest and the peer are hostile. Queue entries are copied once and checked on the copy; every
// access to guest memory goes through queues.Area, which turns a fault into an error; numbers and
// keys carry generations and belong to one function. A broken queue or a wrong request costs its
// QP, and the driver hears which rule it broke (Notifier.Violation); a wrong packet costs the
// connection it came on. Fixed sets bound what a QP has in flight: works, segments, received
// messages, pulls being served.
//
// # Ownership and time
//
// An Engine and everything made from it belong to one goroutine, the shard's. There are no locks,
// and no calls back: wires call Gather alone, events come through the wires, and the Notifier
// appends to queues. Time is an argument. Nothing allocates per operation. Poll looks at send
// queues that ran empty a short while ago, a bounded number at a time, and Arm asks for doorbells
// before the shard parks. Run works in turns, round robin over the QPs that have work; a QP that
// waits for credit, a window, a fence or a receive is in no queue until the event that frees it.
package rdma
