// Package guest implements functions as their drivers see them: requests and doorbells come in,
// replies and events go out.
//
//	           any goroutine                │            the shard's thread
//	                                        │
//	channel ── Open, Put, Close ▶ Session ──┼▶ Mailbox ─▶ Binding ─▶ registers ┐
//	doorbell records in shared memory ──────┼▶ Bells ───▶ Binding ─▶ doorbells ┴▶ Device ─▶ admin queues, rdma
//	                                        │                                     │
//	channel ◀───────────── Flush ◀──────────┼─ Binding ◀──── replies, events ─────┤
//	interrupts ◀──────────────────────── EventQueue ◀──── events of CQs ──────────┘
//
// What carries a driver's control messages (docs/abi §2) implements Channel. It opens a Session when
// the driver says hello, puts the driver's requests into it, and closes it when the driver leaves.
// Stream is a channel over a stream of bytes: vsock, or a unix socket. Package inprocess has one
// without a stream. A Session has a Binding while it has a function; the shard knows the driver by
// that Binding.
//
// A Device is a PF or VF as its driver sees it: lifecycle, Registers, admin queues, events,
// Violations, and the Faults that the operator injects. For what is not a verbs object it calls
// Connections and its Owner. A Set holds the devices of a shard, and does the work for their drivers
// in each Step:
//
//	Begin: doorbell records ▶ Work: admin commands left ▶ … ▶ StopFaulted ▶ AdvanceFaults ▶ Show
//
// An admin command is completed at once, or by its abi.Ticket when the answer of another shard or
// of the NIC's core has come. Other commands continue meanwhile (admin.go).
//
// # Ownership and concurrency
//
// Set, Device, Binding, Bells and EventQueues belong to a shard, and to the goroutine that steps
// it. A Session belongs to the goroutines of its channel; Stream has a reader and a writer. The two
// sides meet in the session's mailbox and in the Channel, which are both bounded. Nothing that the
// shard's thread calls blocks or does I/O: raising an interrupt, flushing a channel and waiting for
// a descriptor are effects, which the thread runs after the Step.
//
// After a Session has closed, the device does not touch its guest's memory.
package guest
