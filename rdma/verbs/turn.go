package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Prefetch has the processor fetch what a turn needs of the connection.
func (q *QP) Prefetch() {
	if q.conn != nil {
		q.conn.Prefetch()
	}
}

// Turn does the QP's share of work: new requests in RTS, what is left of those begun in SQD,
// flushing in ERR and SQE. It reports whether more is left that can go on now.
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
		// In the order of posting: those read before, then those still in guest memory.
		send, recv := q.flushSends(now), q.flushRecvs(now)
		return (send || recv) && q.owner.Working() && q.state == abi.QPStateErr
	}
	return false
}
