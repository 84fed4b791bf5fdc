// Package timer is the one timer queue of the protocol rooms: a hierarchical timing wheel (Varghese
// and Lauck 1987) in which arming, stopping and expiring are O(1).
//
//	Arm, Queue, Stop ─▶ Wheel ─ Expire(now) ─▶ owner and kind, one timer after the other
//	                      └──── Deadline ────▶ when Expire must be called next
//
// A timer is a Handle, a number that is stored in its owner. Everything else about it is in the
// wheel. So timers that are armed and stopped for every packet use the same few cache lines again
// and again, while the owners, thousands of connections, are not in the cache.
//
// Timers keep their exact deadline and never fire early. Those that are due at one Expire are
// returned in the order of their ticks of 1.024 µs, and within a tick in the order in which they
// were armed.
//
// A Wheel belongs to one goroutine and calls nothing: the caller of Expire informs the owner of the
// timer. Memory grows with the number of timers armed at once, and is reused.
package timer
