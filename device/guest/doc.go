// Package guest implements the drivers' side of functions: their requests and doorbells, and the
// replies and events they get.
//
//	             any goroutine             │            the shard's thread
//	                                       │
//	carrier ─ Open, Put, Close ▶ Session ──┼▶ Mailbox ─────────▶ registers, doorbells
//	doorbell records in shared memory ─────┼▶ Bells ───────────▶ doorbells ▶ admin queues, rdma
//	                                       │
//	carrier ◀──── Flush ── Channel ◀───────┼─ Binding ◀────────── replies, Events
//	interrupts ◀───────── EventQueue ◀─────┼─ CQEvents ◀───────── Events of CQs that have a vector
//
// A carrier of a driver's control messages (docs/abi §2) implements Channel. It opens a Session
// when the driver says hello, puts the driver's requests into it, and closes it when the driver
// leaves. Stream is a carrier over a byte stream: vsock, or a unix socket. Package inprocess has
// one without a stream. A Session has a Binding while it has a function; the shard knows the driver
// by that Binding.
//
// A Function is a PF or VF as its driver sees it: lifecycle, Registers, admin queues, Events,
// Violations, and the Faults that the operator injects. For what is not a verbs object it calls
// Connections and its Owner. A Set holds a shard's functions, and does the work for their drivers
// in each Step:
//
//	Begin: doorbell records ▶ Work: admin commands left ▶ … ▶ StopFaulted ▶ AdvanceFaults ▶ Show
//
// An admin command is completed at once, or by its abi.Ticket when the answer of another shard or
// of the NIC's core has come. Other commands continue meanwhile (admin.go).
//
// # Ownership and concurrency
//
// Set, Function, Binding, Bells and EventQueues belong to a shard, and to the goroutine that steps
// it. A Session and its carrier belong to the carrier's goroutines; Stream has a reader and a
// writer. The two sides meet in Mailbox and Channel, which are both bounded. Nothing that the
// shard's thread calls blocks or does I/O: raising an interrupt, flushing a channel and waiting for
// a descriptor are effects, which the thread runs after the Step.
//
// After a Session has closed, the device does not touch its guest's memory.
package guest
