// Package supervisor keeps one worker process running, and keeps for it what
// must outlive it.
//
//	     supervisor (small, stays)                      worker (may be killed, is upgraded)
//	┌──────────────────────────────┐  socketpair  ┌──────────────────────────────────┐
//	│ listening sockets, windows ──┼── Given ────►│ Worker.Take                      │
//	│ Relays, each with its QEMU ──┼── streams ──►│ Worker.Acceptor                  │
//	│ descriptors of before      ◄─┼── Keep ──────┤ TAPs, as soon as they are open   │
//	│ service manager            ◄─┼── Ready ─────┤                                  │
//	└──────────────────────────────┘              └──────────────────────────────────┘
//
// A worker that ends is started again: at once, if it lived long enough, else
// after a pause that grows to a bound, with the program that the one before ran. SIGHUP replaces a
// worker that runs by the program on disk. If that one fails before it has served for a while, the
// program and the configuration of before go on.
//
// What the messages carry is known to neither end of this package but by name.
//
// # Ownership
//
// The supervisor owns what it gives; workers get copies. What a worker keeps with
// it belongs to it from then on, until a later worker discards it.
//
// The worker dies with the supervisor, whatever kills that: the kernel sends it
// SIGKILL when the thread that started it ends. Run therefore holds its thread.
package supervisor
