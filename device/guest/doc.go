// Package guest is the driver's side of functions: what drivers ask and ring, and what they hear.
//
//	             any goroutine             │            the shard's thread
//	                                       │
//	carrier ─ Open, Put, Close ▶ Session ──┼▶ Mailbox ─────────▶ registers, doorbells
//	doorbell records in shared memory ─────┼▶ Bells ───────────▶ doorbells ▶ admin queues, rdma
//	                                       │
//	carrier ◀──── Flush ── Channel ◀───────┼─ Binding ◀────────── replies, Events
//	interrupts ◀───────── EventQueue ◀─────┼─ CQEvents ◀───────── Events of CQs that have a vector
//
// A driver's control messages (docs/abi §2) are carried by something that implements Channel, opens
// a Session when the driver says hello, puts in it what the driver asks, and closes it when the
// driver leaves. Stream does that over a stream of bytes: vsock, or a unix socket. Package
// inprocess does it without one. A Session has a Binding while it has a function; the shard knows
// the driver as that Binding.
//
// A Function is what the driver of a PF or VF sees of it: lifecycle, Registers, admin queues,
// Events, Violations, and Faults that the operator injects. What it needs beside its verbs objects
// it asks of Connections and of its Owner. A Set has a shard's functions, and does for their
// drivers what is to be done in a Step:
//
//	Begin: doorbell records ▶ Work: admin commands left ▶ … ▶ StopFaulted ▶ AdvanceFaults ▶ Show
//
// An admin command is completed at once, or by its abi.Ticket when the answer of another shard or
// of the NIC's core has come; others go on meanwhile (pending.go).
//
// # Ownership and concurrency
//
// Set, Function, Binding, Bells and EventQueues belong to a shard, and to the goroutine that steps
// it. A Session and its carrier belong to the carrier's goroutines, of which Stream has a reader
// and a writer. Mailbox and Channel are where they meet; both are bounded. Nothing that the shard's
// thread calls waits or does I/O: an interrupt, a channel to flush and a descriptor to wait for
// leave as effects, which the thread does after the Step.
//
// When a Session has closed, the device does not touch its guest's memory any more.
package guest
