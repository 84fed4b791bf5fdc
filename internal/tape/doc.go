// Package tape writes down what an owner takes from outside, and gives it back.
//
//	Step(now, in) ─┐                         ┌─ Step(now, in)
//	requests ──────┼─ events ─▶ Tape ─ Next ─┼─ requests              the player calls what was called
//	orders ────────┘             │           └─ orders
//	memory, keys, tables ─ Uint, Bool, Copy ─▶ what was written, whatever it is now
//	output ─ Out ─▶ sums ─ Check ─▶ the first difference
//
// Code that takes something from outside passes it by the tape: v = t.Bool(kind, v). A tape that
// records writes v down; one that plays returns what was written then; without a tape (nil) v is v.
// So the same line records and plays. What is called from outside is an event, which the player
// reads and calls itself. What goes out is only summed, by class; after each Step the sums are
// written, or compared.
//
// The format is a sequence of entries, each a kind (one byte) and values. docs/record.md describes
// them.
//
// # Ownership and concurrency
//
// A Tape belongs to the goroutine of its owner. Recording neither waits nor allocates once the
// buffers are there: a full buffer is exchanged for an empty one at the end of a Step, and where
// there is none the recording ends.
//
// # Trust
//
// A tape that is played may have been made by anybody. Lengths are checked against what is left of
// the chunk before anything is allocated. An entry of another kind than the code asks for, or one
// that is cut, is a *Difference, with which the playing ends by a panic that the player recovers.
package tape
