// Package ivshmem gives a function a window: shared memory that the guest sees as a PCI device,
// QEMU's ivshmem-doorbell. This process is the device's server and peer 0.
//
//	guest                              QEMU                   this process
//	BAR2: header, capabilities  ═══════ shared memory ══════  Window, sealed memfd
//	      bell ring  ◄── records
//	BAR0+0xc ◄── 0 ────────────────────► eventfd ───────────► Listen: the listener drains the ring
//	      event queues ──► records
//	MSI-X vector n ◄───────────────────── eventfd n ◄──────── Interrupt
//
// A doorbell register of 32 bits has no room for a queue and its index. So the driver puts doorbell
// records into a ring in the window, and writes the register only when the ring's event index asks
// for it. Events go the other way in the same form, with one queue for each MSI-X vector but vector
// 0, which belongs to the control block. This package does not interpret the records.
//
// This process creates the memory and seals its size, so reading it cannot fault. It is not guest
// memory: VhostUser leaves it out of the memory that it announces. The guest may write anything in
// it at any time, so what the guest writes is read once and then checked.
//
// A Window may be used from several goroutines. The result of Listen belongs to one goroutine: that
// of the shard, which waits for the eventfd itself.
//
// References: QEMU docs/specs/ivshmem-spec.rst ("Client-Server protocol",
// "Device registers"); docs/abi section 10.
package ivshmem
