// Package ring is the one ring buffer of the protocol rooms, in two forms:
//
//	Queue   a FIFO of values:           Push ─▶ [head … head+n) ─▶ Pop
//	Window  pointers by sequence number: the slots of [base, base+capacity)
//
// Both grow by doubling with what they hold and keep their memory, so that nothing is allocated in
// the steady state; how much they may hold is their owner's business. They belong to one goroutine.
package ring
