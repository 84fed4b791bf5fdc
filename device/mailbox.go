package device

import (
	"sync"

	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// mailboxSize bounds what one session has waiting for the shard. A driver that
// rings faster than the shard works waits in its own socket.
const mailboxSize = 256

// coalesceWindow is how far back a doorbell looks for an older ring of the
// same queue to replace.
const coalesceWindow = 16

type itemKind uint8

const (
	itemDoorbell itemKind = iota
	itemRegRead
	itemRegWrite
	itemReserved // strict: a message with something in its header's reserved bytes
)

// item is one thing a driver asks of its function.
type item struct {
	kind     itemKind
	doorbell abi.Doorbell
	tag      uint64
	offset   uint32
	width    uint32
	value    uint64
	dirty    *[abi.DoorbellSize]byte // strict: the record or header, when its reserved bytes are not zero
}

// mailbox carries a session's input to the shard in order. The session's
// reader puts, the shard drains. Doorbells of one queue that meet in it become
// one: the newest index says it all.
type mailbox struct {
	inbox   *inbox.Box[*Shard]
	fn      *function
	binding *binding

	mu     sync.Mutex
	space  sync.Cond
	items  []item
	spare  []item
	posted bool
	closed bool
}

func newMailbox(in *inbox.Box[*Shard], fn *function, b *binding) *mailbox {
	m := &mailbox{inbox: in, fn: fn, binding: b, items: make([]item, 0, mailboxSize), spare: make([]item, 0, mailboxSize)}
	m.space.L = &m.mu
	return m
}

// put appends an item, waiting for room. It reports false once the mailbox is
// closed.
func (m *mailbox) put(it item) bool {
	m.mu.Lock()
	for len(m.items) == mailboxSize && !m.closed {
		m.space.Wait()
	}
	if m.closed {
		m.mu.Unlock()
		return false
	}
	if it.kind == itemDoorbell && it.dirty == nil && m.coalesce(&it.doorbell) {
		m.mu.Unlock()
		return true
	}
	m.items = append(m.items, it)
	post := !m.posted
	m.posted = true
	m.mu.Unlock()
	if post && !m.inbox.Post(m) {
		m.close()
		return false
	}
	return true
}

// coalesce replaces an older ring of the same queue, unless something other
// than a doorbell lies between: order against register writes is kept.
func (m *mailbox) coalesce(d *abi.Doorbell) bool {
	for i := len(m.items) - 1; i >= max(0, len(m.items)-coalesceWindow); i-- {
		old := &m.items[i]
		if old.kind != itemDoorbell {
			return false
		}
		if old.doorbell.Kind == d.Kind && old.doorbell.Queue == d.Queue && old.doorbell.Flags == d.Flags {
			old.doorbell.Index = d.Index
			return true
		}
	}
	return false
}

func (m *mailbox) Drain(s *Shard, now falcon.Time) {
	m.mu.Lock()
	batch := m.items
	m.items, m.spare = m.spare[:0], batch
	m.posted = false
	m.mu.Unlock()
	m.space.Broadcast()
	for i := range batch {
		s.handleItem(now, m.binding, m.fn, &batch[i])
	}
}

// close refuses further items and releases a waiting reader.
func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.space.Broadcast()
}
