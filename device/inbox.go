package device

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/falcon"
)

// errStopped is what callers get once the shard takes nothing more.
var errStopped = errors.New("device: the NIC has stopped")

// source is something outside the shard that has input for it: a session's
// mailbox, a peer's mailbox, a call. It stands in the inbox at most once, so
// the inbox is bounded by the number of sources, and each source bounds
// itself.
type source interface {
	// drain hands the waiting input to the shard, on the shard's thread.
	drain(s *Shard, now falcon.Time)
}

// inbox is the only door into a shard. Any goroutine may post; the shard takes
// everything in one batch.
type inbox struct {
	mu      sync.Mutex
	ready   []source
	spare   []source
	stopped bool

	parked atomic.Bool // the shard's thread sleeps in ppoll or is about to
	wake   func()      // makes it return; nil when the shard has no thread
}

// post adds a source that is not in the inbox yet. It reports false once the
// shard has stopped.
func (b *inbox) post(src source) bool {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return false
	}
	b.ready = append(b.ready, src)
	b.mu.Unlock()
	if b.wake != nil && b.parked.Swap(false) {
		b.wake()
	}
	return true
}

// take returns what was posted since the last take. The slice is valid until
// the next call.
func (b *inbox) take() []source {
	b.mu.Lock()
	batch := b.ready
	clear(b.spare)
	b.ready, b.spare = b.spare[:0], batch
	b.mu.Unlock()
	return batch
}

func (b *inbox) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.ready) == 0
}

// stop refuses further input and returns what was still waiting.
func (b *inbox) stop() []source {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	return b.take()
}

// call is a function run on the shard's thread while its caller waits.
type call struct {
	f    func(now falcon.Time)
	done chan struct{}
	ran  bool
}

func (c *call) drain(s *Shard, now falcon.Time) {
	c.f(now)
	c.ran = true
	close(c.done)
	s.roused.Store(true)
}

// do runs f on the shard's thread and returns when it is done. It fails with
// errStopped, without f having run, when the shard has stopped. It must not be
// called on the shard's thread.
func (s *Shard) do(f func(now falcon.Time)) error {
	c := &call{f: f, done: make(chan struct{})}
	if !s.inbox.post(c) {
		return errStopped
	}
	<-c.done
	if !c.ran {
		return errStopped
	}
	return nil
}
