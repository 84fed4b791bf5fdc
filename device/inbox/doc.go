// Package inbox passes input from other goroutines to an owner: a shard, or the NIC's core.
//
//	a driver's requests ─────┐
//	a peer's messages ───────┼─ Mailbox ─┐
//	another owner's orders ──┘           ├─ Post ─▶ Box ─ Take ─▶ Source.Drain, on the owner's thread
//	a call (Do) ─────────────────────────┘
//
// # Ownership and concurrency
//
// Any goroutine may post; the owner takes everything in one batch. A source is in the box at most
// once, so the box is bounded by the number of sources, and each source bounds itself. An owner
// that sleeps calls Park first, and the next Post wakes it.
package inbox
