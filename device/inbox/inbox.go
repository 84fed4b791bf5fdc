package inbox

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Source has input for an owner.
type Source interface {
	// Drain passes the waiting input on, on the owner's thread.
	Drain(now vtime.Time)
}

// Box is the inbox of an owner.
type Box struct {
	mu      sync.Mutex
	ready   []Source
	spare   []Source
	stopped bool

	parked atomic.Bool // the owner's thread sleeps or is about to
	wake   func()      // makes the owner look at the box; nil when the owner has no thread
	answer func(e effect.Effect)
}

// WakeBy sets the function that makes a parked owner look at the box. It is called before anybody
// posts.
func (b *Box) WakeBy(wake func()) { b.wake = wake }

// AnswerBy sets the function with which Do answers its callers: it runs an effect after all effects
// that the owner has asked for so far. It is called before anybody posts.
func (b *Box) AnswerBy(answer func(e effect.Effect)) { b.answer = answer }

// Post adds a source that is not in the box yet. It returns false once the owner has stopped.
func (b *Box) Post(src Source) bool {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return false
	}
	b.ready = append(b.ready, src)
	b.mu.Unlock()
	b.Wake()
	return true
}

// Wake wakes a parked owner for input that is not in the box.
func (b *Box) Wake() {
	if b.wake != nil && b.parked.Load() && b.parked.Swap(false) {
		b.wake()
	}
}

// Take returns the sources posted since the last Take. The slice is valid until the next call.
func (b *Box) Take() []Source {
	b.mu.Lock()
	batch := b.ready
	clear(b.spare)
	b.ready, b.spare = b.spare[:0], batch
	b.mu.Unlock()
	return batch
}

// Empty reports whether the box is empty.
func (b *Box) Empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ready) == 0
}

// Park records that the owner is about to sleep. It returns false if the owner must not sleep,
// because the box is not empty.
func (b *Box) Park() bool {
	b.parked.Store(true)
	return b.Empty()
}

// Unpark records that the owner is awake.
func (b *Box) Unpark() { b.parked.Store(false) }

// Stop refuses further input. Calls that still wait return ErrStopped.
func (b *Box) Stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	for _, src := range b.Take() {
		if c, ok := src.(*call); ok {
			close(c.done)
		}
	}
}

// ErrStopped is the error that callers get when the owner has stopped.
var ErrStopped = errors.New("the NIC has stopped")

// Do runs f on the owner's thread, and returns when f has returned and its effects were run. If the
// owner has stopped, Do returns ErrStopped without calling f. It must not be called on the owner's
// thread.
func (b *Box) Do(f func(now vtime.Time)) error {
	c := &call{f: f, answer: b.answer, done: make(chan struct{})}
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
type call struct {
	f      func(now vtime.Time)
	answer func(e effect.Effect)
	done   chan struct{}
	ran    bool
}

// Drain implements Source.
func (c *call) Drain(now vtime.Time) {
	c.f(now)
	c.ran = true
	c.answer(c)
}

// Do implements effect.Effect: it releases the caller.
func (c *call) Do() { close(c.done) }
