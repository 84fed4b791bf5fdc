package inbox

import (
	"sync"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Mailbox passes messages to the owner of a box, in order: the requests of a driver, the messages
// of a peer, and what the shards and the core of a NIC say to each other. A message costs the owner
// nothing until it takes its input.
//
// A mailbox that strangers fill has a limit, beyond which its sender waits. One between owners has
// none, because an owner never waits: its messages are bounded by their kind. Each is an answer to a
// request, a notice that replaces the previous one, or limited by what a function may own.
type Mailbox[M any] struct {
	to     *Box
	most   int // messages that may wait; 0: no limit
	handle func(now vtime.Time, m *M)

	// Merge merges the last of the waiting messages into an earlier one, and reports whether it
	// did; nil: messages are not merged. It is set before the first Put.
	Merge func(waiting []M) bool

	mu      sync.Mutex
	space   sync.Cond
	waiting []M
	spare   []M  // belongs to the owner
	posted  bool // it is in the box
	closed  bool
}

// NewMailbox returns an empty mailbox of the owner of a box, with room for most messages, or without
// a limit (0). handle is called with each message, on the owner's thread.
func NewMailbox[M any](to *Box, most int, handle func(now vtime.Time, m *M)) *Mailbox[M] {
	b := &Mailbox[M]{to: to, most: most, handle: handle, waiting: make([]M, 0, most), spare: make([]M, 0, most)}
	b.space.L = &b.mu
	return b
}

// Put adds a message. It waits while the mailbox is full, and returns false once it is closed or the
// owner has stopped.
func (b *Mailbox[M]) Put(m M) bool {
	b.mu.Lock()
	for b.most > 0 && len(b.waiting) >= b.most && !b.closed {
		b.space.Wait()
	}
	if b.closed {
		b.mu.Unlock()
		return false
	}
	b.waiting = append(b.waiting, m)
	if b.Merge != nil && b.Merge(b.waiting) {
		b.waiting = b.waiting[:len(b.waiting)-1]
	}
	return b.post()
}

// Send adds messages to a mailbox without a limit. The caller may reuse the list after it returns.
// The messages are lost if the owner has stopped.
func (b *Mailbox[M]) Send(list []M) {
	if len(list) == 0 {
		return
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.waiting = append(b.waiting, list...)
	b.post()
}

// post puts the mailbox into the box, unless it is there, and unlocks it. It returns false if the
// owner has stopped.
func (b *Mailbox[M]) post() bool {
	posted := b.posted
	b.posted = true
	b.mu.Unlock()
	if !posted && !b.to.Post(b) {
		b.Close()
		return false
	}
	return true
}

// maxKept is the largest buffer, in messages, that an empty mailbox keeps.
const maxKept = 1024

// Drain implements Source.
func (b *Mailbox[M]) Drain(now vtime.Time) {
	b.mu.Lock()
	batch := b.waiting
	b.waiting, b.posted = b.spare[:0], false
	b.mu.Unlock()
	b.space.Broadcast()
	for i := range batch {
		b.handle(now, &batch[i])
	}
	clear(batch)
	if b.spare = batch; cap(batch) > maxKept {
		b.spare = nil
	}
}

// Close refuses further messages and releases a sender that waits in Put.
func (b *Mailbox[M]) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.space.Broadcast()
}
