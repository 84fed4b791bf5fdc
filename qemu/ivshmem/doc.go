// Package ivshmem gives a function a window that its guest sees as a PCI device:
// QEMU's ivshmem-doorbell, of which this process is the server and peer 0.
//
//	guest                              QEMU                   this process
//	BAR2: header, capabilities  ═══════ shared memory ══════  Window, sealed memfd
//	      bell ring  ◄── records
//	BAR0+0xc ◄── 0 ────────────────────► eventfd ───────────► Listen: who waits for it drains the ring
//	      event queues ──► records
//	MSI-X vector n ◄───────────────────── eventfd n ◄──────── Interrupt
//
// A doorbell register of 32 bits cannot say which queue and how far; so the
// driver puts its doorbell records in a ring in the window and writes the
// register only when the ring's event index asks for it. Events go the other way
// in the same form, one queue for each MSI-X vector. What a record means is the
// business of others.
//
// The memory is ours: it is sealed against a change of size, so reading it cannot
// fault, and it is no guest memory: VhostUser leaves it out of what it announces.
// Everything in it past the header is the guest's to write at any time; it is
// read once and checked.
//
// A Window may be used from several goroutines. What Listen returns has one user
// and belongs to one goroutine: the shard, which waits for the eventfd itself.
//
// References: QEMU docs/specs/ivshmem-spec.rst ("Client-Server protocol",
// "Device registers"); docs/abi section 10.
package ivshmem
