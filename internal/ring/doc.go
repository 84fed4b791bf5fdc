// Package ring is the one ring buffer of the protocol rooms, in two forms:
//
//	Queue   a FIFO of values:           Push ─▶ [head … head+n) ─▶ Pop
//	Window  pointers by sequence number: the slots of [base, base+capacity)
//
// Both grow by doubling and keep their memory, so that nothing is allocated in the steady state.
// Their owner limits how much they hold. They belong to one goroutine.
package ring
