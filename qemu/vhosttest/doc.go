// Package vhosttest plays QEMU and a guest's virtio-vsock driver without either:
// a vhost-user front end over a memfd, for tests of everything behind a
// vhost-user socket.
//
//	Guest ──┬─ vsock.Transport (the guest's end of the flows)
//	        ├─ ringDriver ×2 (driver side of the split rings)
//	        └─ Frontend ── unix socket ──► back end under test
//
// The memory has QEMU's shape: one file, split at 0xa0000 into two regions. The
// order of messages is QEMU 7.2's.
package vhosttest
