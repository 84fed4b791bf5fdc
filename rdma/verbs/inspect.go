package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// QueueKind says what a ring in guest memory is for.
type QueueKind string

// Kinds of rings.
const (
	SendQueue       QueueKind = "sq"
	RecvQueue       QueueKind = "rq"
	CompletionQueue QueueKind = "cq"
)

// QueueInfo is what the device knows of a ring in guest memory.
type QueueInfo struct {
	Kind               QueueKind
	Number             uint32 // of the QP or CQ
	Entries            uint32
	Producer, Consumer uint32
	Polled             bool // send queue: looked at without doorbells
	Armed, Overflowed  bool // completion queue
}

// Info describes the queue of a queue pair.
func (u *WorkQueue) Info() QueueInfo {
	kind := SendQueue
	if u.kind == abi.RingRQ {
		kind = RecvQueue
	}
	return QueueInfo{Kind: kind, Number: u.number, Entries: u.Entries(), Producer: u.Producer(), Consumer: u.Index()}
}

// EachCQ calls f for every completion queue.
func (t *CQs) EachCQ(f func(*QueueInfo)) {
	t.table.Each(func(c *CQ) {
		f(&QueueInfo{
			Kind: CompletionQueue, Number: c.number, Entries: c.ring.Entries(), Producer: c.ring.Next(), Consumer: c.ring.Consumer(),
			Armed: c.armed != disarmed, Overflowed: c.failed,
		})
	})
}
