// Package supervisor keeps one worker process running, and holds resources for it that must outlive
// it.
//
//	     supervisor (small, stays)                      worker (may be killed, is upgraded)
//	┌──────────────────────────────┐  socketpair  ┌──────────────────────────────────┐
//	│ listening sockets, windows ──┼── Given ────►│ Worker.Take                      │
//	│ Relays, each with its QEMU ──┼── streams ──►│ Worker.Acceptor                  │
//	│ descriptors for the next   ◄─┼── Keep ──────┤ TAPs, as soon as they are open   │
//	│ service manager            ◄─┼── Ready ─────┤                                  │
//	└──────────────────────────────┘              └──────────────────────────────────┘
//
// If a worker ends, the next one is started with the same program: at once if the worker lived long enough,
// otherwise after a pause, which grows up to a bound. SIGHUP gives a running worker the configuration as it is
// now (reload.go). SIGUSR2 replaces it by the program on disk (an upgrade). If the new worker fails before it
// has served for a while, the program and the configuration before the upgrade are used again.
//
// This package knows the descriptors and connections in its messages only by name.
//
// # Ownership
//
// The supervisor owns the descriptors that it gives; workers get copies. It also owns the
// descriptors that a worker keeps with it, until a later worker discards them.
//
// The worker dies with the supervisor, however that ends: the kernel sends SIGKILL to the worker
// when the thread that started it ends. So Run keeps its thread.
package supervisor
