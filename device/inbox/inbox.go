package inbox

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/effect"
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

// ErrStopped is the error that callers get when the owner has stopped.
var ErrStopped = errors.New("device: the NIC has stopped")

// Owner runs the functions of Do's callers.
type Owner interface {
	// Answer runs e after all effects that the owner has asked for so far.
	Answer(e effect.Effect)
}

// Do runs f on the owner's thread, and returns when f has returned and its effects were run. If the
// owner has stopped, Do returns ErrStopped without calling f. It must not be called on the owner's
// thread.
func Do[O Owner](b *Box[O], f func(owner O, now vtime.Time)) error {
	c := &call[O]{f: f, done: make(chan struct{})}
	if !b.Post(c) {
		return ErrStopped
	}
	<-c.done
	if !c.ran {
		return ErrStopped
	}
	return nil
}

// call is a function that runs on the owner's thread while its caller waits.
type call[O Owner] struct {
	f    func(owner O, now vtime.Time)
	done chan struct{}
	ran  bool
}

func (c *call[O]) Drain(owner O, now vtime.Time) {
	c.f(owner, now)
	c.ran = true
	owner.Answer(c)
}

// Do implements effect.Effect: it releases the caller.
func (c *call[O]) Do() { close(c.done) }

func (c *call[O]) refuse() { close(c.done) }
