package rdma

import "github.com/falcon-vnic/vnic/queues/abi"

// QPInfo is what can be seen of a queue pair from outside.
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

// EachQP calls f for every queue pair, in the order of their places.
func (f *Function) EachQP(call func(*QPInfo)) {
	f.eachQP(func(q *QP) {
		r := &q.req
		call(&QPInfo{
			Number: q.number, Peer: q.peer, PeerGID: q.peerGID, Type: q.typ, State: q.state,
			SendCQ: q.sendCQ.cqn(), RecvCQ: q.recvCQ.cqn(),
			Posted: q.sq.ring.Ready(), InFlight: r.tail - r.head, Pushes: r.pushes, Pulls: r.pulls, Reads: r.reads,
			PathMTU: q.PathMTU(), RetryCnt: q.attr.retryCnt, RNRRetry: q.attr.rnrRetry, MaxRdAtomic: q.attr.maxRdAtomic,
			CreditWait: q.waitCredit, Rate: f.place == isThrottled && q.ready.on != nil,
		})
	})
}

func (c *CQ) cqn() uint32 {
	if c == nil {
		return 0
	}
	return c.number
}

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

// EachQueue calls f for every send, receive and completion queue.
func (f *Function) EachQueue(call func(*QueueInfo)) {
	f.eachQP(func(q *QP) {
		for _, u := range []*queue{&q.sq, &q.rq} {
			if u.ring == nil {
				continue
			}
			kind := SendQueue
			if u == &q.rq {
				kind = RecvQueue
			}
			call(&QueueInfo{
				Kind: kind, Number: q.number, Entries: u.layout.Entries(), Producer: u.ring.Producer(), Consumer: u.ring.Next(),
				Polled: kind == SendQueue && q.polled.on != nil,
			})
		}
	})
	f.cqs.each(func(c *CQ) {
		call(&QueueInfo{
			Kind: CompletionQueue, Number: c.number, Entries: c.ring.Entries(), Producer: c.ring.Next(), Consumer: c.ring.Consumer(),
			Armed: c.armed != disarmed, Overflowed: c.failed,
		})
	})
}
