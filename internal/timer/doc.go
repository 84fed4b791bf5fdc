// Package timer is the one timer queue of the protocol rooms: a hierarchical timing wheel (Varghese
// and Lauck 1987) in which arming, stopping and expiring are O(1).
//
//	Arm, Queue, Stop ─▶ Wheel ─ Expire(now) ─▶ owner and kind, one timer after the other
//	                      └──── Deadline ────▶ when Expire must be called next
//
// A timer is a Handle, a number, that lies in its owner; everything else about it is in the wheel.
// So what is armed and stopped for every packet uses the same few cache lines again and again,
// while the owners, thousands of connections, are in no cache.
//
// Timers keep their exact deadline and never fire early. Those that are due at one Expire come in
// the order of their ticks of 1.024 µs, and within a tick in the order they were armed in.
//
// A Wheel belongs to one goroutine and calls nobody: who expires a timer tells its owner. The
// memory grows with the timers that are armed at once, and is used again.
package timer
