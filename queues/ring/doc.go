// Package ring implements the index and phase arithmetic of the guest ABI's queues for both sides:
// the driver in the guest and the device on the host.
//
//	driver                    shared memory                    device
//	Producer ──entries, producer──► send / receive queue ──► Consumer
//	         ◄──consumer, event index──
//	CQReader ◄──entries + phase──── completion queue ◄────── CQWriter
//	         ──consumer──►
//
// Indices are free-running 32-bit counters. The entry with index i is in slot i mod entries, and
// the queue contains producer−consumer (mod 2^32) entries. A completion entry is new if its phase
// bit equals the phase of the reader's current pass over the ring: 1 in the first pass, then
// alternating.
//
// The package accesses memory only through Bytes. Mem implements Bytes over a plain slice, for
// guests; the host uses queues.Area, which checks every access. The other side is never trusted: an
// impossible index gives ErrIndex, nothing is read twice, and slots are always masked.
//
// A ring belongs to one goroutine; the other side may run anywhere. Nothing
// here allocates after construction. The normative rules are in docs/abi.
package ring
