package rdma

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

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
		pushes, pulls := q.underWay()
		call(&QPInfo{
			Number: q.number, Peer: q.peer, PeerGID: q.peerGID, Type: q.typ, State: q.state,
			SendCQ: q.sendCQ.Number(), RecvCQ: q.recvCQ.Number(),
			Posted: q.sq.Ready(), InFlight: r.tail - r.head, Pushes: pushes, Pulls: pulls, Reads: r.reads,
			PathMTU: q.PathMTU(), RetryCnt: q.attr.retryCnt, RNRRetry: q.attr.rnrRetry, MaxRdAtomic: q.attr.maxRdAtomic,
			CreditWait: q.waitCredit, Rate: f.throttle.Armed() && q.ready.On() != nil,
		})
	})
}

// EachQueue calls f for every send, receive and completion queue.
func (f *Function) EachQueue(call func(*verbs.QueueInfo)) {
	f.eachQP(func(q *QP) {
		for _, u := range []*verbs.WorkQueue{&q.sq, &q.rq} {
			if !u.Open() {
				continue
			}
			info := u.Info()
			info.Polled = u == &q.sq && q.polled.On() != nil
			call(&info)
		}
	})
	f.EachCQ(call)
}
