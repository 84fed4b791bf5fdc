// Package thread is the thread around a shard: it reads the uplink and the ports, steps the shard,
// does what it asked for, writes what came out, and sleeps when there is nothing to do.
//
//	uplink (tap.Port) ─▶ impair rx ─┐                       ┌─ Effects: Do
//	ports (Ports) ──────────────────┼─▶ Step(now, in, out) ─┼─ Messages: Send
//	eventfds of guests that rang ───┘                       ├─ ports (Ports)
//	                                                        └─ tap.Queue ─▶ impair tx ─▶ uplink
//	nothing to do ─▶ Flush ─▶ ppoll: uplink, ports, guests' eventfds, wake, next deadline
//
// Go's timers and poller are too coarse for this. Between work and sleep the thread looks for more,
// spinning and then yielding, for as long as that paid lately (spin.go). While a direction of the
// uplink is impaired its packets pass a Link of falcon/sim one by one (impair.go).
//
// # Ownership and concurrency
//
// Run gives its OS thread to the shard. Halt, Wake and Listen may be called by any goroutine; all
// else belongs to the thread, and others come in by a call that the shard runs in a Step (package
// inbox). Nothing here grows with the functions or ports of the NIC.
package thread
