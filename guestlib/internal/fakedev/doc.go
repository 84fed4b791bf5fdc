// Package fakedev is a NIC for tests of the driver: every client of one Server is a function, and
// functions reach each other by copying.
//
//	client ── unix socket, memfd ──► session ──┐
//	                                           ├── one lock: objects, work queues, connections
//	client ── unix socket, memfd ──► session ──┘
//
// It speaks the whole control stream and admin queue and executes all work of RC queue pairs in
// order, with key, bounds and access checks and with waiting for receives. It has no network, no
// timers and no limits worth the name. Hooks let a test play a hostile device.
package fakedev
