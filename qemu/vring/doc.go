// Package vring is the device side of a split virtqueue in guest memory.
//
//	      descriptor table              available ring            used ring
//	 ┌──────────────────────────┐   ┌─────────────────────┐  ┌──────────────────────┐
//	 │ addr │ len │ flags │ next │◄──│ flags │ idx │ ring[] │  │ flags │ idx │ {id,len}│
//	 └──────────────────────────┘   └─────────────────────┘  └──────────────────────┘
//	          read once                 driver writes              device writes
//
//	Peek ──► Chain (copied, checked) ──► Read / Write guest bytes ──► Push ──► Interrupt
//
// The device takes chains strictly in order and completes each before the next,
// so the index of the used ring always tells where to go on: that is how a ring
// is resumed by another process (Resume). Offered is the plain split ring:
// neither indirect descriptors nor event indices.
//
// # Trust
//
// The guest owns all three parts and may write them at any time. Each descriptor
// is copied once and checked as copied; chains are bounded by the ring's size
// and a fixed length; every access to guest memory goes through Memory, which
// checks bounds. Nonsense is an error of the queue (ErrQueue): the owner stops
// it, the process goes on.
//
// # Ownership and concurrency
//
// A Queue has one owner at a time; nothing in here blocks or locks.
//
// Reference: Virtio 1.2 §2.7 (split virtqueues), §2.7.13 (supplying and using
// buffers), §2.7.7 (used buffer notification suppression).
package vring
