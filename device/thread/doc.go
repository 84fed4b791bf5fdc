// Package thread is the thread around a shard: it reads the uplink and the ports, steps the shard,
// runs the effects that the Step left, writes the output, and sleeps when there is nothing to do.
//
//	uplink (tap.Uplink) ─▶ impair rx ─┐                       ┌─ Effects: Do
//	ports (Ports) ──────────────────┼─▶ Step(now, in, out) ─┼─ ports (Ports)
//	eventfds of guests that rang ───┘                       └─ tap.Queue ─▶ impair tx ─▶ uplink
//	nothing to do ─▶ Flush ─▶ ppoll: uplink, ports, guests' eventfds, wake, next deadline
//
// Go's timers and poller are too coarse for this. Between work and sleep the thread looks for more
// work, first spinning, then yielding, for as long as that found work lately (spin.go), and in any
// case lets other threads of its processor run once, which may have work for it. While a
// direction of the uplink is impaired, its packets pass a Link of falcon/sim one by one
// (impair.go).
//
// # Ownership and concurrency
//
// Run locks its OS thread for the shard. Halt, Wake and Listen may be called by any goroutine;
// everything else belongs to the thread, and others reach it by a call that the shard runs in a
// Step (package inbox). No state here grows with the functions or ports of the NIC.
package thread
