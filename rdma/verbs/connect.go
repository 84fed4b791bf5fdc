package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Connect gives an INIT QP the connection conn, of which it is the only user, and moves it to RTS.
// A QP that its driver takes through RTR itself keeps its state. pathMTU is what was agreed with the
// peer, in bytes: a packet carries at most that much data, and less if conn's own MTU leaves less.
// It may be larger than the driver's path MTU can be, which is at most 4096. Connect returns
// StatusBadState if the QP has a connection or is in RESET or ERR, and StatusInvalidArgument if an
// MTU is too small.
func (q *QP) Connect(now vtime.Time, conn transport.Conn, peerQPN uint32, pathMTU int, peerGID [16]byte) abi.Status {
	if !q.owner.Working() || q.conn != nil {
		return abi.StatusBadState
	}
	switch q.state {
	case abi.QPStateInit, abi.QPStateRTR, abi.QPStateRTS:
	case abi.QPStateSQD, abi.QPStateSQE: // the driver was faster: the QP serves the peer, and sends when the driver lets it
	default:
		return abi.StatusBadState
	}
	segment, ok := conn.Attach(&transport.Terms{
		Endpoint: q, QPN: q.number, Peer: peerQPN, PathMTU: pathMTU, XRC: q.typ == abi.QPTypeXRCSend || q.typ == abi.QPTypeXRCRecv,
		Unreliable: q.unreliable(),
		Unordered:  q.unordered, InError: q.inError, Serves: int(q.attr.maxDest), Reads: int(q.attr.maxRdAtomic),
		PSN: q.attr.rqPSN, Sending: &q.attr.sending, Account: &q.owner.Account,
	})
	if !ok {
		return abi.StatusInvalidArgument
	}
	q.peer.number, q.peer.gid = peerQPN, peerGID
	if m := abi.PathMTUFor(pathMTU); m != 0 {
		q.attr.pathMTU = m
	}
	q.conn, q.segment, q.blocked, q.heard, q.violated, q.peer.leaving = conn, segment, false, false, false, false
	q.recv.messages.connect(conn.Ordered(), q.recv.most())
	if q.state == abi.QPStateInit {
		q.state = abi.QPStateRTS
	}
	q.shared.Timers.Stop(&q.patience)
	q.wake()
	return abi.StatusOK
}

// closeConn closes the connection and detaches it. The transport makes no further calls for it.
func (q *QP) closeConn(now vtime.Time) {
	if c := q.letGo(); c != nil {
		if q.violated {
			c.Abort(now)
		} else {
			c.Close(now)
		}
	}
}

// leaveConn detaches the connection, which continues to acknowledge what the peer sends until the
// device closes it. After a violation it closes the connection at once.
func (q *QP) leaveConn(now vtime.Time) {
	if q.violated {
		q.closeConn(now)
	} else if c := q.letGo(); c != nil {
		c.Drain(now)
	}
}

// letGo detaches the connection and returns it.
func (q *QP) letGo() transport.Conn {
	q.lingering.Remove()
	c := q.conn
	q.conn = nil
	q.peer.forget()
	return c
}

// PeerLeaves records that the peer is ending the connection, which still finishes the transactions
// in progress. Requests that fail from now on are flushed, as if the connection had ended already.
// A call of Disconnected or PeerLeft follows.
func (q *QP) PeerLeaves() { q.peer.leaving = true }

// Disconnected is called when the peer has left, or when this side is to end the connection. The QP
// moves to ERR and flushes its work, and its connection is closed at once.
func (q *QP) Disconnected(now vtime.Time) {
	if q.conn == nil {
		return
	}
	q.leaveConn(now) // before the work is flushed: a stream whose requests are withdrawn cannot end in order
	q.enterErr(now)
	q.in.Settle(now)
}

// dropRequests withdraws all requests from the connection, which then ignores answers to them.
func (q *QP) dropRequests() {
	q.send.works.reads = 0
	q.blocked = false // no Unblocked follows any more
	if q.conn != nil {
		q.conn.Forget()
	}
}

// Wired reports whether the driver named the peer, and returns what it named.
func (q *QP) Wired() (peerQPN uint32, peerGID [16]byte, ok bool) {
	return q.peer.number, q.peer.gid, q.peer.wired
}

// Connected reports whether the QP has a connection.
func (q *QP) Connected() bool { return q.conn != nil }

// PeerLeft is called for a wired QP when the peer's end of the connection is gone. Unlike after
// Disconnected, the verbs program learns this only when it sends, and keeps what it received.
func (q *QP) PeerLeft(now vtime.Time) {
	if !q.Serving() {
		q.Disconnected(now)
		return
	}
	q.leaveConn(now)
	q.peer.left = true
	if r := &q.send.works; r.head != r.tail && !q.unreliable() {
		q.failAlone(now, "its queue pair has gone")
	} else {
		q.wake()
	}
	q.in.Settle(now)
}

// PeerGone is called for a wired QP after PeerLeft when the peer's function has gone as a whole: nobody there
// is left to tell the verbs program at this end, which may wait for a message without end.
func (q *QP) PeerGone(now vtime.Time) {
	if !q.peer.left || q.unreliable() {
		return
	}
	q.fail(now, abi.WCRetryExcErr, "the function of its peer has gone")
	q.in.Settle(now)
}
