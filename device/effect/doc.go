// Package effect describes the I/O that a Step leaves to the thread around it.
//
//	Step(now, in, out) ─▶ out.Effects ─▶ the thread around the shard or the core: Do, in order
//
// A Step reads no clock and does no I/O. Work on a descriptor, a device or a goroutine (raise an
// interrupt, write to a driver's stream, set a port's carrier, answer a caller) is added to a list,
// and the thread around the shard does it after the Step. So a shard can run in virtual time, and a
// test sees its effects.
//
// # Ownership and concurrency
//
// A List belongs to the thread of its owner, a shard or the NIC's core. An Effect is run once, on
// that thread, after the Step that added it and before the next one; it must not block, and must
// not touch the owner's state beyond what it was created with.
package effect
