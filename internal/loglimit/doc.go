// Package loglimit keeps guests and peers from flooding the log, and a log that blocks from holding
// up a shard.
//
//	shard's thread ─▶ Log with Later ─ end of the Step ─┐
//	                                                    ├─▶ slog.Logger ─▶ Queue.Handler ─▶ lines
//	any goroutine ──▶ Log without Later ────────────────┘                                     │
//	                                                    file, terminal, pipe ◀─ Queue's goroutine
//
// What guests and peers cause is logged in a burst of 20 lines, and then one a second; the next
// line says how many were left out. A Queue takes lines without waiting, and a goroutine of its own
// writes them in order. At most 1024 lines wait; those beyond are lost, and the last line before
// them says how many.
//
// # Ownership and concurrency
//
// A Log without Later may be used by any goroutine, and writes at once. One with Later belongs to
// whoever runs what Later was given.
//
// A Queue, and the handlers that it gave, may be used by any goroutine. Its goroutine lives as long
// as lines wait. Who made the Queue has it write what waits before the program ends (Flush).
package loglimit
