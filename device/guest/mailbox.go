package guest

import (
	"sync"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// mailboxSize is the most requests of one session that may wait for the shard. A driver that rings
// faster than the shard works waits in its own channel.
const mailboxSize = 256

// coalesceWindow is how many waiting requests a doorbell is compared with to find an older ring of
// the same queue.
const coalesceWindow = 16

// Mailbox passes a driver's requests to the shard, in order. The session's carrier puts, the shard
// drains. Doorbells of one queue that meet in it are merged: only the newest index matters.
type Mailbox struct {
	post   func() bool // asks the shard to call Drain; false: the shard has stopped
	handle func(now falcon.Time, r *Request)

	mu     sync.Mutex
	space  sync.Cond
	items  []Request
	spare  []Request
	posted bool
	closed bool
}

// NewMailbox returns an empty mailbox. post is called when a request starts to wait, and Drain
// calls handle for each request.
func NewMailbox(post func() bool, handle func(now falcon.Time, r *Request)) *Mailbox {
	m := &Mailbox{post: post, handle: handle, items: make([]Request, 0, mailboxSize), spare: make([]Request, 0, mailboxSize)}
	m.space.L = &m.mu
	return m
}

// Put appends a request. It waits while the mailbox is full, and returns false once it is closed.
func (m *Mailbox) Put(r Request) bool {
	m.mu.Lock()
	for len(m.items) == mailboxSize && !m.closed {
		m.space.Wait()
	}
	if m.closed {
		m.mu.Unlock()
		return false
	}
	if r.Kind == Ring && r.Dirty == nil && m.coalesce(&r.Doorbell) {
		m.mu.Unlock()
		return true
	}
	m.items = append(m.items, r)
	post := !m.posted
	m.posted = true
	m.mu.Unlock()
	if post && !m.post() {
		m.Close()
		return false
	}
	return true
}

// coalesce merges a doorbell into an older ring of the same queue. It does not look past a request
// of another kind: the order against register writes is kept.
func (m *Mailbox) coalesce(d *abi.Doorbell) bool {
	for i := len(m.items) - 1; i >= max(0, len(m.items)-coalesceWindow); i-- {
		old := &m.items[i]
		if old.Kind != Ring {
			return false
		}
		if old.Doorbell.Kind == d.Kind && old.Doorbell.Queue == d.Queue && old.Doorbell.Flags == d.Flags {
			old.Doorbell.Index = d.Index
			return true
		}
	}
	return false
}

// Drain passes all waiting requests to handle. It is called on the shard's thread.
func (m *Mailbox) Drain(now falcon.Time) {
	m.mu.Lock()
	batch := m.items
	m.items, m.spare = m.spare[:0], batch
	m.posted = false
	m.mu.Unlock()
	m.space.Broadcast()
	for i := range batch {
		m.handle(now, &batch[i])
	}
}

// Close refuses further requests and releases a caller that waits in Put.
func (m *Mailbox) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.space.Broadcast()
}
