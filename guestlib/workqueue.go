package guestlib

import (
	"fmt"
	"sync"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// workQueue is a send or receive queue. Besides the ring it keeps the requests that were posted and
// not completed. As with verbs, a slot is free when its completion, or that of a later work request
// of the queue, was polled. The list also detects completions that match no posted request.
type workQueue struct {
	mu     sync.Mutex
	dead   bool
	always bool   // ring for every change, because the event index is not used
	next   uint32 // index of the next work request
	oldest uint32 // index of the oldest one not completed
	ring   ring.Producer
	entry  []byte   // scratch for one entry
	posted []posted // by index modulo entries; nil for a shared queue, whose completions have no order
	rung   uint64   // number of doorbells for posts

	maxSGE  int
	maxData int // largest inline data in bytes, send queues only

	anyOrder bool // completions come in any order (Ordering Unordered)

	bell   bell
	area   area
	layout ring.Layout
}

type posted struct {
	id       uint64
	signaled bool
	done     bool // completed before older requests
}

func newWorkQueue(d *Device, log2, log2Stride uint8, kind abi.DoorbellKind) (*workQueue, error) {
	layout := ring.QueueLayout(log2, log2Stride)
	mem, err := newArea(d.pool, layout)
	if err != nil {
		return nil, err
	}
	return &workQueue{
		area:   mem,
		layout: layout,
		ring:   *ring.NewProducer(ring.Mem(mem.block.Bytes()), layout),
		bell:   bell{record: abi.Doorbell{Kind: kind}},
		entry:  make([]byte, layout.Stride()),
		posted: make([]posted, layout.Entries()),
		always: d.now.Load().info.Features&abi.FeatureEventIndex == 0,
	}, nil
}

// room returns nil if one more work request can be posted. The caller holds mu.
func (w *workQueue) room() error {
	switch {
	case w.dead:
		return ErrClosed
	case w.posted != nil && w.next-w.oldest == w.layout.Entries():
		return ErrQueueFull
	}
	return nil
}

// push posts the first n bytes of entry. It rings unless the device is polling the queue (DRV-604).
// The caller holds mu and has checked room.
func (w *workQueue) push(s *stream, n int, p posted) error {
	if err := w.put(n, p); err != nil {
		return err
	}
	return w.publish(s)
}

// put writes the first n bytes of entry to the next slot. The device does not see it before
// publish.
func (w *workQueue) put(n int, p posted) error {
	if err := w.ring.Push(w.entry[:n]); err != nil {
		if err == ring.ErrFull {
			return ErrQueueFull
		}
		return protocolError("consumer index of a work queue: %v", err)
	}
	if w.posted != nil {
		w.posted[w.next&(w.layout.Entries()-1)] = p
	}
	w.next++
	return nil
}

// publish makes the entries of put visible to the device, and rings if needed.
func (w *workQueue) publish(s *stream) error {
	index, need, err := w.ring.Publish()
	if err != nil {
		return protocolError("work queue: %v", err)
	}
	if need || w.always {
		w.rung++
		s.ring(&w.bell, index)
	}
	return nil
}

// complete removes the requests that a completion with that id completes. Requests complete in
// posting order; unsignaled requests before it succeeded and are removed too.
func (w *workQueue) complete(id uint64, ok bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.anyOrder {
		return w.completeAny(id)
	}
	for i := w.oldest; i != w.next; i++ {
		p := w.posted[i&(w.layout.Entries()-1)]
		if p.id == id && (p.signaled || !ok) {
			w.oldest = i + 1
			return nil
		}
		if p.signaled {
			return fmt.Errorf("completion of work request %d, where %d comes first", id, p.id)
		}
	}
	return fmt.Errorf("completion of work request %d, which is not outstanding", id)
}

// completeAny is complete for queues whose completions come in any order. All their requests are
// signaled.
func (w *workQueue) completeAny(id uint64) error {
	mask := w.layout.Entries() - 1
	for i := w.oldest; i != w.next; i++ {
		if p := &w.posted[i&mask]; p.id == id && !p.done {
			p.done = true
			for w.oldest != w.next && w.posted[w.oldest&mask].done {
				w.oldest++
			}
			return nil
		}
	}
	return fmt.Errorf("completion of work request %d, which is not outstanding", id)
}

// taken returns the consumer index in memory: the number of work requests that the device has read.
func (w *workQueue) taken() (uint32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return 0, ErrClosed
	}
	return ring.Mem(w.area.block.Bytes()).Load32(abi.QueueHeaderConsumer)
}

// stop makes the queue refuse work and stops its doorbell (dead), or undoes that.
func (w *workQueue) stop(s *stream, dead bool) {
	if w == nil {
		return // the QP has no such queue
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = dead
	s.silence(&w.bell, dead)
	if !dead && w.next != 0 {
		s.ring(&w.bell, w.ring.Next()) // a doorbell may have been suppressed
	}
}

// free frees the memory. The queue must have been stopped.
func (w *workQueue) free() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.area.free()
}
