// Package ring is the index and phase arithmetic of the guest ABI's queues,
// for both sides: the driver in the guest and the device on the host.
//
//	driver                    shared memory                    device
//	Producer ──entries, producer──► send / receive queue ──► Consumer
//	         ◄──consumer, event index──
//	CQReader ◄──entries + phase──── completion queue ◄────── CQWriter
//	         ──consumer──►
//
// Indices are free-running 32-bit counters: the entry of index i lies in slot
// i mod entries, and producer−consumer (mod 2^32) entries are in the queue. A
// completion entry is new when its phase bit equals the phase of the pass over
// the ring that the reader is in: 1 in the first pass, then alternating.
//
// The package reaches memory only through Bytes. Mem is Bytes over a plain
// slice, for guests; the host uses queues.Area, which checks every access.
// What the other side writes is never trusted: an index that cannot be true
// gives ErrIndex, nothing is read twice, and slots are always masked.
//
// A ring belongs to one goroutine; the other side may run anywhere. Nothing
// here allocates after construction. The normative rules are in docs/abi.
package ring
