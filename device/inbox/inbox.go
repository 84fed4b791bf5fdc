package inbox

import (
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Source has input for an owner.
type Source[O any] interface {
	// Drain passes the waiting input to the owner, on the owner's thread.
	Drain(owner O, now vtime.Time)
}

// Box is the inbox of an owner.
type Box[O any] struct {
	mu      sync.Mutex
	ready   []Source[O]
	spare   []Source[O]
	stopped bool

	parked atomic.Bool // the owner's thread sleeps or is about to
	wake   func()      // makes the owner look at the box; nil when the owner has no thread
}

// WakeBy sets the function that makes a parked owner look at the box. It is called before anybody
// posts.
func (b *Box[O]) WakeBy(wake func()) { b.wake = wake }

// Post adds a source that is not in the box yet. It returns false once the owner has stopped.
func (b *Box[O]) Post(src Source[O]) bool {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return false
	}
	b.ready = append(b.ready, src)
	b.mu.Unlock()
	b.Rouse()
	return true
}

// Rouse wakes a parked owner for input that is not in the box.
func (b *Box[O]) Rouse() {
	if b.wake != nil && b.parked.Load() && b.parked.Swap(false) {
		b.wake()
	}
}

// Take returns the sources posted since the last Take. The slice is valid until the next call.
func (b *Box[O]) Take() []Source[O] {
	b.mu.Lock()
	batch := b.ready
	clear(b.spare)
	b.ready, b.spare = b.spare[:0], batch
	b.mu.Unlock()
	return batch
}

// Empty reports whether the box is empty.
func (b *Box[O]) Empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ready) == 0
}

// Park records that the owner is about to sleep. It returns false if the owner must not sleep,
// because the box is not empty.
func (b *Box[O]) Park() bool {
	b.parked.Store(true)
	return b.Empty()
}

// Unpark records that the owner is awake.
func (b *Box[O]) Unpark() { b.parked.Store(false) }

// Stop refuses further input. Calls that still wait return ErrStopped.
func (b *Box[O]) Stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	for _, src := range b.Take() {
		if c, ok := src.(interface{ refuse() }); ok {
			c.refuse()
		}
	}
}
