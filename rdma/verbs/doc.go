// Package verbs implements the objects of verbs programs: protection and XRC domains, memory
// regions and windows, completion queues, shared receive queues, address handles and queue pairs.
// It does not depend on a wire: a queue pair sends its messages through a transport.Conn, its
// datagrams through a Destination, and gets its turns from a Scheduler.
//
// The life of a request, with the file each step is in:
//
//	driver              requester                  transport                responder            driver
//	  │ WQE, producer     │                           │                         │                  │
//	  ├──────────────────▶│ poll, or doorbell, bells  │                         │                  │
//	  │                   │ queue, send: read, check  │                         │                  │
//	  │                   │ issue, one packet a time  │                         │                  │
//	  │                   ├── Issue ─────────────────▶│                         │                  │
//	  │     sge, gather   │ complete: Gather, always  │                         │                  │
//	  │◀──────────────────┤◀─ when a packet is sent ──┤                         │                  │
//	  │                   │                           ├── Place, Read, Atomic ─▶│ responder        │
//	  │                   │                           │                         │ sge, mr, atomic  │
//	  │                   │                           │                         ├─────────────────▶│
//	  │                   │                           ├── Complete ────────────▶│ receiving, cq    │
//	  │                   │◀──────────────────── Done ┤                         ├─────────────────▶│
//	  │  cq: CQE, event   │ complete, in order        │                         │                  │
//	  │◀──────────────────┤                           │                         │                  │
//
// Files, each one knowing those above it:
//
//	table, kinds, limits     numbers with generations; the one table of kinds of objects
//	owner                    the function, to its objects; violation, faults, area
//	pd, mr, register, mw, fastreg  domains, regions and windows, and who may access them
//	sge, atomic              gather and scatter over regions; 8 bytes of one
//	timer, shared            what is due later; what a shard's functions use together
//	cq, held                 completions and their events
//	queue, receive, srq      entries of work queues, read once
//	path, ah                 where datagrams go, and what carries them
//	attributes, transitions  what ModifyQP sets, and when
//	sendwr, sendring         requests that were read; messages: receives that were
//	remote                   the queue pair at the other end
//	qp, connect, qpstate     a queue pair, its connection, and how it fails
//	receiving, responder     what it does for its peer
//	send, complete, issue    what it does for its driver; datagram, flush, wired
//	poll, turn               when
//	modify, create, qps      commands; objects: all of a function
//
// A key is looked up once, together with the rights and bounds of the access: Regions.Remote does
// so for a peer, Regions.SGEs for an entry of the function's own queues. The result is held as long
// as the transport may need the bytes, until the acknowledgement. Each access checks again whether
// the region is valid, so deregistration takes effect at once.
//
// A new kind of objects needs a line in kinds.go, one in Objects.collection and a file of its own.
//
// # Trust
//
// The guest and the peer are hostile. Queue entries are copied once and the copy is checked. Every
// access to guest memory goes through queues.Area, which turns a fault into an error. Numbers and
// keys have generations and belong to one function. A driver that breaks the rules of a queue loses
// that queue and is told which rule it broke (Owner.Broke). An invalid request fails its queue
// pair. Fixed limits bound what a queue pair has in flight.
//
// # Ownership and time
//
// Everything belongs to the goroutine of its shard. There are no locks and no callbacks: the
// Notifier appends to queues. A change that must not happen in the middle of a call waits for
// QPs.Settle, which ends every group of calls. Time is an argument. No operation allocates memory.
// A queue pair that waits for credit, a window, a fence or a receive is in no list until an event
// frees it.
package verbs
