// Package effect is what a shard wants done outside itself.
//
//	Step(now, in, out) ─▶ out.Effects ─▶ the thread around the shard: Do, in order
//
// A Step reads no clock and does no I/O. What it wants done to a descriptor, a device or a
// goroutine (raise an interrupt, write to a driver's stream, set a port's carrier, answer a caller)
// it adds to a list, and the thread around the shard does it after the Step. So a shard runs in
// virtual time, and a test sees what it asked for.
//
// # Ownership and concurrency
//
// A List belongs to its shard's thread. An Effect is done once, on that thread, after the Step that
// asked for it and before the next one; it must not block, and must not touch the shard's state
// beyond what it was made of.
package effect
