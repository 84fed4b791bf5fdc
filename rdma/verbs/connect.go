package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Connect takes a QP from INIT to RTS over conn, which nobody else has; one that its driver takes
// through RTR itself stays where it is. pathMTU is the path MTU agreed on with the peer in bytes; a
// packet carries at most that much data, and less where conn's own MTU leaves less. StatusBadState:
// the QP is not in INIT, nor taken to RTR or beyond, or is in ERR; StatusInvalidArgument: an MTU
// too small.
func (q *QP) Connect(now vtime.Time, conn transport.Conn, peerQPN uint32, pathMTU int, peerGID [16]byte) abi.Status {
	if !q.owner.Working() || q.conn != nil {
		return abi.StatusBadState
	}
	switch q.state {
	case abi.QPStateInit, abi.QPStateRTR, abi.QPStateRTS:
	case abi.QPStateSQD, abi.QPStateSQE: // its driver was faster: it serves the peer, and sends when it is let
	default:
		return abi.StatusBadState
	}
	segment, ok := conn.Attach(&transport.Terms{
		Endpoint: q, QPN: q.number, Peer: peerQPN, PathMTU: pathMTU, XRC: q.typ == abi.QPTypeXRCSend || q.typ == abi.QPTypeXRCRecv,
		Unreliable: q.unreliable(),
		Unordered:  q.unordered, InError: q.cie, Serves: int(q.attr.maxDest), Reads: int(q.attr.maxRdAtomic),
		PSN: q.attr.rqPSN, Sending: &q.attr.sending, Account: &q.owner.Account,
	})
	if !ok {
		return abi.StatusInvalidArgument
	}
	q.peer.number, q.peer.gid = peerQPN, peerGID
	if m := abi.PathMTUFor(pathMTU); m != 0 {
		q.attr.pathMTU = m
	}
	q.conn, q.segment, q.waitCredit, q.heard, q.violated, q.peer.leaving = conn, segment, false, false, false, false
	q.rsp.connect(conn.Ordered(), q.receives())
	if q.state == abi.QPStateInit {
		q.state = abi.QPStateRTS
	}
	q.shared.Timers.Stop(&q.patience)
	q.wake()
	return abi.StatusOK
}

// Unblocked implements transport.Endpoint.
func (s *requester) Unblocked(vtime.Time) {
	q := s.q
	s.waitCredit = false
	q.wake()
}

// Settle implements transport.Endpoint.
func (q *QP) Settle(now vtime.Time) { q.in.Settle(now) }

// closeConn closes the connection and forgets it; the transport says nothing more of it.
func (q *QP) closeConn(now vtime.Time) {
	if c := q.letGo(); c != nil {
		if q.violated {
			c.Abort(now)
		} else {
			c.Close(now)
		}
	}
}

// leaveConn forgets the connection, which goes on acknowledging what the peer sent until the device
// closes it.
func (q *QP) leaveConn(now vtime.Time) {
	if q.violated {
		q.closeConn(now)
	} else if c := q.letGo(); c != nil {
		c.Drain(now)
	}
}

// letGo forgets the connection, and returns it.
func (q *QP) letGo() transport.Conn {
	q.lingering.Remove()
	c := q.conn
	q.conn = nil
	q.peer.forget()
	return c
}

// PeerLeaves says that the peer ends the connection, which finishes what is under way: what that
// cannot carry out any more is flushed, as if it had ended already. Disconnected or PeerLeft
// follows.
func (q *QP) PeerLeaves() { q.peer.leaving = true }

// Disconnected says that the peer left, or that this side shall: the QP moves to ERR, flushes, and
// its connection is closed at once.
func (q *QP) Disconnected(now vtime.Time) {
	if q.conn == nil {
		return
	}
	q.enterErr(now)
	q.leaveConn(now)
	q.in.Settle(now)
}

// Ended implements transport.Endpoint: the transport gave the connection up.
func (q *QP) Ended(now vtime.Time, st abi.WCStatus, reason string) {
	q.lingering.Remove()
	q.conn = nil
	if q.peer.wired && q.unreliable() {
		q.peer.left = true // what it sends is lost from here on
		q.wake()
		return
	}
	if q.peer.leaving && !q.peer.wired {
		q.enterErr(now)
	}
	q.fail(now, st, reason)
	q.peer.forget()
}

// dropRequests takes back what the connection has. Answers to it are not recognised any more.
func (s *requester) dropRequests() {
	q := s.q
	s.req.reads = 0
	if q.conn != nil {
		q.conn.Forget()
	}
}
