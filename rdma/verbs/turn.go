package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Prefetch prefetches the memory of the connection that a turn needs.
func (q *QP) Prefetch() {
	if q.conn != nil {
		q.conn.Prefetch()
	}
}

// Turn does the QP's share of work: new requests in RTS, the rest of those already started in SQD,
// flushing in ERR and SQE. It reports whether more work is left that can continue now.
func (q *QP) Turn(now vtime.Time) (more bool) {
	if !q.owner.Working() || q.owner.stuck(q.number) {
		return false
	}
	switch q.state {
	case abi.QPStateRTS, abi.QPStateSQD:
		if q.conn == nil && !q.datagrams() {
			return q.awaitPeer(now)
		}
		return q.issue(now)
	case abi.QPStateSQE:
		return q.flushSends(now)
	case abi.QPStateErr:
		// In the order of posting: first those already read, then those still in guest memory.
		send, recv := q.flushSends(now), q.flushRecvs(now)
		return (send || recv) && q.owner.Working() && q.state == abi.QPStateErr
	}
	return false
}
