package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// QueueKind is the kind of a ring in guest memory.
type QueueKind string

// Kinds of rings.
const (
	SendQueue       QueueKind = "sq"
	RecvQueue       QueueKind = "rq"
	CompletionQueue QueueKind = "cq"
)

// QueueInfo describes a ring in guest memory as the device sees it.
type QueueInfo struct {
	Kind               QueueKind
	Number             uint32 // of the QP or CQ
	Entries            uint32
	Producer, Consumer uint32
	Polled             bool // send queue: polled without doorbells
	Armed, Overflowed  bool // completion queue
}

// info describes the queue of a queue pair.
func (u *WorkQueue) info() QueueInfo {
	kind := SendQueue
	if u.kind == abi.RingRQ {
		kind = RecvQueue
	}
	return QueueInfo{Kind: kind, Number: u.number, Entries: u.Entries(), Producer: u.Producer(), Consumer: u.Index()}
}

// eachCQ calls f for every completion queue.
func (t *CQs) eachCQ(f func(*QueueInfo)) {
	t.table.Each(func(c *CQ) {
		f(&QueueInfo{
			Kind: CompletionQueue, Number: c.number, Entries: c.ring.Entries(), Producer: c.ring.Next(), Consumer: c.ring.Consumer(),
			Armed: c.armed != disarmed, Overflowed: c.failed,
		})
	})
}

// QPInfo describes a queue pair for display.
type QPInfo struct {
	Number, Peer     uint32
	PeerGID          [16]byte
	Type             abi.QPType
	State            abi.QPState
	SendCQ, RecvCQ   uint32
	Posted           uint32 // send requests seen in memory and not read
	InFlight         uint32 // read and not completed
	Pushes, Pulls    int    // packets with the transport
	Reads            int    // READ and atomic requests in progress
	PathMTU          int
	RetryCnt         uint8
	RNRRetry         uint8
	MaxRdAtomic      uint8
	CreditWait, Rate bool // waits for credit, for its function's rate
}

// EachQP calls f for every queue pair, in the order of table slots. The scheduler fills in whether
// it waits for the rate.
func (t *QPs) EachQP(f func(*QP, *QPInfo)) {
	t.each(func(q *QP) {
		r := &q.send.works
		var pushes, pulls int
		if q.conn != nil {
			pushes, pulls = q.conn.UnderWay()
		}
		f(q, &QPInfo{
			Number: q.number, Peer: q.peer.number, PeerGID: q.peer.gid, Type: q.typ, State: q.state,
			SendCQ: q.send.cq.Number(), RecvCQ: q.recv.cq.Number(),
			Posted: q.send.queue.Ready(), InFlight: r.tail - r.head, Pushes: pushes, Pulls: pulls, Reads: r.reads,
			PathMTU: q.PathMTU(), RetryCnt: q.attr.sending.RetryCount, RNRRetry: q.attr.rnrRetry, MaxRdAtomic: q.attr.maxRdAtomic,
			CreditWait: q.blocked,
		})
	})
}

// EachQueue calls f for every send, receive and completion queue.
func (o *Objects) EachQueue(f func(*QueueInfo)) {
	o.QPs.each(func(q *QP) {
		for _, u := range []*WorkQueue{&q.send.queue, &q.recv.queue} {
			if !u.Open() {
				continue
			}
			info := u.info()
			info.Polled = u == &q.send.queue && q.polled.On() != nil
			f(&info)
		}
	})
	o.eachCQ(f)
}
