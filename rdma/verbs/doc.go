// Package verbs implements the objects of verbs programs: protection and XRC domains, memory
// regions and windows, completion queues, shared receive queues, address handles and queue pairs.
// It does not depend on a wire: a queue pair sends its messages through a transport.Conn, its
// datagrams to a Destination, and gets its turns from a Scheduler.
//
// The life of a request, with the file each step is in:
//
//	driver                sender                      transport                receiver             driver
//	  │ WQE, producer       │                           │                         │                   │
//	  ├────────────────────▶│ shared: poll; or          │                         │                   │
//	  │                     │ queue: doorbell           │                         │                   │
//	  │                     │ send: read once, check    │                         │                   │
//	  │                     │ turn: packet by packet    │                         │                   │
//	  │                     ├── Issue ─────────────────▶│                         │                   │
//	  │ sge: gather         │ endpoint: Gather, always  │                         │                   │
//	  │◀────────────────────┤◀─ when a packet is sent ──┤                         │                   │
//	  │                     │                           ├── Place, Read, Atomic ─▶│ receive: check    │
//	  │                     │                           │                         │ sge, mr: access   │
//	  │                     │                           │                         ├──────────────────▶│
//	  │                     │                           ├── Complete ────────────▶│ receive           │
//	  │                     │◀──────────────────── Done ┤                         ├─ cq: CQE, event ─▶│
//	  │ cq: CQE, event      │ send: complete, in order  │                         │                   │
//	  │◀────────────────────┤                           │                         │                   │
//
// The sender and the receiver are the halves of a queue pair. They do not know each other or the
// states; what fails the queue pair they return, and the QP acts on it.
//
// Files, each one knowing those above it:
//
//	owner                   the function, to its objects: features, addresses, events, counters
//	violations, faults      what a driver did wrong, and how it is told; failures to inject
//	domains                 protection and XRC domains
//	keys                    keys that cannot be guessed
//	mr, register, mw, sge   regions and windows, who may access them, lists of their memory
//	shared                  what a shard's functions use together: timers, queues that are polled
//	cq                      completions and their events
//	queue, srq              work queues and their doorbells
//	ah                      addresses, and the destinations of datagrams
//	request, send           the sender: requests that were read, checked, completed and flushed
//	receive                 the receiver: receives that messages take, what packets may reach
//	qp, turn                a queue pair: states and how it fails; what it sends, and when
//	endpoint, connect       what its connection asks of it; how it gets one and leaves it
//	datagram                all of these for datagrams and groups
//	qps, modify             commands
//	objects                 all of a function, numbers with generations, kinds and limits
//	inspect                 what to show of all that
//
// A key is looked up once, together with the rights and bounds of the access: Regions.Remote does
// so for a peer, Regions.SGEs for an entry of the function's own queues. The result is held as long
// as the transport may need the bytes, until the acknowledgement. Each access checks again whether
// the region is valid, so deregistration takes effect at once.
//
// A new kind of objects needs a row in tables, a case in Objects.collection and a file of its own.
//
// # Trust
//
// The guest and the peer are hostile. Queue entries are copied once and the copy is checked. Every
// access to guest memory goes through queues.Area, which turns a fault into an error. Numbers and
// keys have generations and belong to one function. Peers use keys, so these cannot be guessed. A
// driver that breaks the rules of a queue loses that queue and is told which rule it broke
// (Owner.Broke). An invalid request fails its queue pair. Fixed limits bound what a queue pair has
// in flight.
//
// # Ownership and time
//
// Everything belongs to the goroutine of its shard. There are no locks and no callbacks: the
// Notifier appends to queues. A change that must not happen in the middle of a call waits for
// QPs.Settle, which ends every group of calls. Time is an argument. No operation allocates memory.
// A queue pair that waits for credit, a window, a fence or a receive is in no list until an event
// frees it.
package verbs
