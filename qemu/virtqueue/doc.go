// Package virtqueue is the device side of virtqueues in guest memory, for the network port (package
// vhostnet) and the socket device (package vsock): split and packed rings, indirect descriptors,
// event indices, several chains at a time, and buffers that are accessed in place.
//
//	Take ─▶ Chain: Out (to read), In (to write) ─▶ Done … Done ─▶ Publish ─▶ notify the driver?
//	  ▲                                                              │
//	  └── nothing available: Arm, and wait for a kick ◀──────────────┘
//
// Chains are completed in the order in which they were taken. So if the device of a split ring was
// killed, the next device continues at the used index. A packed ring has no such index in guest
// memory. Its Ledger, in memory that outlives the device, records the ring's position and the
// descriptors that the device was about to write; Resume writes those again. Either way no chain is
// completed twice and none is forgotten.
//
// # Trust
//
// The guest owns all parts of a ring and may write them at any time. Each descriptor is read once,
// and the copy is checked. MaxSegments bounds a chain, and Work bounds what is done for a guest in
// its turn; empty, indirect and broken descriptors count too. A buffer outside the guest's memory
// is an error. After an error (ErrRing) the owner must stop using the ring. The content of a buffer
// may change while it is read, so code that checks it must copy it first. An access faults if the
// file behind the memory was truncated; the owner recovers from that (Guard).
//
// # Ownership and concurrency
//
// A Ring and its RAM have one owner at a time. Nothing here blocks, locks or allocates once a ring
// is created.
//
// References: Virtio 1.2 §2.7 (split), §2.7.5.3 (indirect descriptors), §2.7.7 and §2.7.10
// (notification suppression), §2.8 (packed).
package virtqueue
