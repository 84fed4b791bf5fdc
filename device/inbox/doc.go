// Package inbox is the door into a shard.
//
//	a session's mailbox ─┐
//	a peer's mailbox ────┼─ Post ─▶ Box ─ Take ─▶ Source.Drain, on the owner's thread
//	a call (Do) ─────────┘
//
// # Ownership and concurrency
//
// Any goroutine posts; the owner takes everything in one batch. A source stands in the box at most
// once, so the box is bounded by the number of sources, and each source bounds itself. An owner
// that sleeps says so with Park, and the next Post wakes it.
package inbox
