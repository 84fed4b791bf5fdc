// Package vhosttest is a vhost-user front end with drivers of a guest, without QEMU: for tests of
// everything behind a vhost-user socket.
//
//	Guest ──┬─ vsock.Transport (the guest's end of the flows)
//	        ├─ Ring ×2 (the driver's side of plain split rings)
//	        └─ Frontend ── unix socket ──► back end under test
//
//	NetGuest ──┬─ Queue ×2n (the driver's side of rings of any kind)
//	           └─ Frontend ── unix socket ──► back end under test
//
// The guest's memory is a memfd, split at 0xa0000 into two regions as QEMU's is. Messages come in
// the order of QEMU 7.2.
//
// # Ownership and concurrency
//
// A Frontend, a NetGuest, a Ring and a Queue have one owner. A Guest has goroutines that handle the
// interrupts of its rings; its methods may be called from the test's goroutine meanwhile.
package vhosttest
