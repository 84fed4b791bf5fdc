// Package virtqueue is the device side of virtqueues in guest memory as a data path wants them:
// split and packed rings, indirect descriptors, event indices, several chains at a time, buffers
// where they lie.
//
//	Take ─▶ Chain: Out (to read), In (to write) ─▶ Done … Done ─▶ Publish ─▶ notify the driver?
//	  ▲                                                              │
//	  └── nothing available: Arm, and wait for a kick ◀──────────────┘
//
// Chains are completed in the order in which they were taken. So a split ring whose device was
// killed goes on at its used index. A packed ring has no such index in guest memory: a Ledger, in
// memory that outlives the device, says where it stands and what it was about to write; Resume
// finishes that. Either way no chain is completed twice and none is forgotten.
//
// # Trust
//
// The guest owns all parts of a ring and may write them at any time. Each descriptor is read once
// and checked as it was read; chains are bounded by MaxSegments, and what is done for a guest in its
// turn by Work, empty, indirect and broken descriptors too; buffers are parts of the guest's memory or an error. Nonsense is an error (ErrRing)
// after which the owner gives the ring up. What a buffer holds may change while it is read: whoever
// checks it copies it first. Memory whose file was cut short faults; the owner recovers from that
// (Guard).
//
// # Ownership and concurrency
//
// A Ring and its RAM have one owner at a time. Nothing here blocks, locks or allocates once a ring
// is made.
//
// References: Virtio 1.2 §2.7 (split), §2.7.5.3 (indirect descriptors), §2.7.7 and §2.7.10
// (notification suppression), §2.8 (packed).
package virtqueue
