package rdma

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

const (
	maxWorks    = 128 // send work requests read and not completed, per QP
	maxMessages = 128 // of the peer that hold a receive, per QP
)

// QP is a queue pair. Which of its parts there are depends on its type:
//
//	          PD  send CQ, SQ  receive CQ, receives from
//	RC, UD    +   +            RQ or SRQ
//	XRCSend   +   +            –
//	XRCRecv   –   –            the XRC SRQ of its domain that each packet names
type QP struct {
	fn     *Function
	number uint32
	typ    abi.QPType
	pd     *verbs.PD
	sendCQ *verbs.CQ
	recvCQ *verbs.CQ
	state  abi.QPState
	attr   attributes
	srq    *verbs.SRQ  // shared receive queue it was created with
	xrcd   *verbs.XRCD // XRCRecv
	sigAll bool
	sq, rq verbs.WorkQueue

	ordering  abi.Ordering
	unordered bool // ordering is OrderingUnordered
	cie       bool // a request that fails completes in error, and the QP goes on

	conn       transport.Conn // nil while there is none
	peer       uint32
	peerGID    [16]byte
	segment    int // most data bytes of one packet
	waitCredit bool
	blocked    *Link        // has the QP in its list
	peerIRD    uint8        // that the peer takes
	heard      bool         // a packet of the peer arrived
	violated   bool         // one of them was no valid request
	wired      bool         // the driver named the peer
	peerLeft   bool         // a wired QP had a connection
	leaving    bool         // the peer ends the connection
	patience   timer.Handle // of a wired QP without one
	lastWQE    bool         // EventLastWQE was sent
	windows    verbs.Bindings
	sqdNotify  bool // the driver wants to know when the send queue is drained

	req requester
	rsp responder

	ready       list.Node[QP] // in its function's ready list: has work to issue or to flush
	polled      list.Node[QP] // in Engine.polled: send queue ran empty
	pollUntil   vtime.Time
	lingering   list.Node[QP] // in Engine.linger: failed, connection still open
	lingerUntil vtime.Time
}

// attributes are what ModifyQP sets, with the meaning and units of ibv_qp_attr.
type attributes struct {
	access      uint32 // abi.Access bits allowed to the peer
	pathMTU     abi.PathMTU
	minRNRTimer uint8
	retryCnt    uint8
	rnrRetry    uint8
	timeout     uint8
	maxRdAtomic uint8
	maxDest     uint8
	timed       bool // the driver set timeout or retryCnt
	pkeyIndex   uint16
	qkey        uint32
	sqPSN       uint32
	path        verbs.Path
}

// anyIRD stands for a peer that has not said how many READs and atomics it takes.
const anyIRD = 255

// leastGiveUp bounds RetryTime from below: hosts without real-time scheduling stall for longer than
// verbs programs, which expect hardware, are willing to wait.
const leastGiveUp vtime.Time = 500e6

// defaultAttributes hold until ModifyQP says otherwise.
func (f *Function) defaultAttributes() attributes {
	n := uint8(f.Limits().ReadAtomic)
	return attributes{minRNRTimer: 12, retryCnt: 7, rnrRetry: 7, timeout: 14, maxRdAtomic: n, maxDest: n}
}

// Number is the queue pair number, 24 bits.
func (q *QP) Number() uint32 { return q.number }

// Function is the QP's function.
func (q *QP) Function() *Function { return q.fn }

// State is the QP's state.
func (q *QP) State() abi.QPState { return q.state }

// Ordered reports whether the QP wants an ordered connection (RDMA over Falcon §6.2).
func (q *QP) Ordered() bool { return q.ordering == abi.OrderingStrong }

// CompletesInError reports whether a request of the QP that fails does so alone (RDMA over Falcon
// §6.3).
func (q *QP) CompletesInError() bool { return q.cie }

// IRD is how many READs and atomics of the peer the QP takes at a time, in packets (RDMA over
// Falcon §8.3.2).
func (q *QP) IRD() uint8 { return q.attr.maxDest }

// LimitReads lowers how many READs and atomics the QP has in flight to what the peer takes,
// whatever its driver says as long as the connection lasts.
func (q *QP) LimitReads(peerIRD uint8) {
	q.peerIRD = peerIRD
	q.limitReads()
}

func (q *QP) limitReads() {
	q.attr.maxRdAtomic = min(q.attr.maxRdAtomic, q.peerIRD)
	if q.conn != nil {
		q.conn.LimitReads(int(q.attr.maxRdAtomic))
	}
}

// Owns reports whether conn is the QP's connection.
func (q *QP) Owns(conn transport.Conn) bool { return q.conn != nil && q.conn == conn }

// PathMTU is the path MTU in bytes that the driver asked for, 0 when it did not.
func (q *QP) PathMTU() int {
	return q.attr.pathMTU.Bytes()
}

// RetryTime is how long the QP's timeout and retry count let a packet go unacknowledged, for
// falcon.ConnConfig.GiveUp; 0, the profile's choice, when the driver set neither; vtime.Never
// when it set the timeout to 0, as verbs have it. Falcon's own timers decide when a packet is sent
// again.
func (q *QP) RetryTime() vtime.Time {
	switch a := &q.attr; {
	case !a.timed:
		return 0
	case a.timeout == 0:
		return vtime.Never
	default:
		return max(vtime.Time(a.retryCnt+1)*4096<<a.timeout, leastGiveUp)
	}
}

// DestroyQP destroys a queue pair and closes its connection. Work outstanding gets no completion.
func (f *Function) DestroyQP(now vtime.Time, qpn uint32) abi.Status {
	q := f.QP(qpn)
	if q == nil {
		return abi.StatusNotFound
	}
	q.destroy(now)
	return abi.StatusOK
}

func (q *QP) destroy(now vtime.Time) {
	q.stopWork()
	q.leaveConn(now)
	q.state = abi.QPStateReset
	q.fn.Unbind(&q.windows)
	if q == q.fn.gsi {
		q.fn.gsi = nil
	} else {
		q.fn.qps.Remove(q.number)
	}
	q.count(-1)
}

// Connect takes a QP from INIT to RTS over conn, which nobody else has; one that its driver takes
// through RTR itself stays where it is. pathMTU is the path MTU agreed on with the peer in bytes; a
// packet carries at most that much data, and less where conn's own MTU leaves less.
// StatusBadState: the QP is not in INIT; StatusInvalidArgument: an MTU too small.
func (q *QP) Connect(now vtime.Time, conn transport.Conn, peerQPN uint32, pathMTU int, peerGID [16]byte) abi.Status {
	if !q.fn.Working() || q.conn != nil ||
		q.state != abi.QPStateInit && q.state != abi.QPStateRTR && q.state != abi.QPStateRTS {
		return abi.StatusBadState
	}
	segment, ok := conn.Attach(&transport.Terms{
		Endpoint: q, QPN: q.number, Peer: peerQPN, PathMTU: pathMTU, XRC: q.typ == abi.QPTypeXRCSend || q.typ == abi.QPTypeXRCRecv,
		Unordered: q.unordered, InError: q.cie, Serves: int(q.attr.maxDest), Reads: int(q.attr.maxRdAtomic), Account: &q.fn.Account,
	})
	if !ok {
		return abi.StatusInvalidArgument
	}
	q.peer, q.peerGID = peerQPN, peerGID
	if m := abi.PathMTUFor(pathMTU); m != 0 {
		q.attr.pathMTU = m
	}
	q.conn, q.segment, q.waitCredit, q.heard, q.violated, q.leaving = conn, segment, false, false, false, false
	q.rsp.connect(conn.Ordered(), q.receives())
	if q.state == abi.QPStateInit {
		q.state = abi.QPStateRTS
	}
	q.fn.e.shared.Timers.Stop(&q.patience)
	q.wake()
	return abi.StatusOK
}

// Unblocked implements transport.Endpoint.
func (q *QP) Unblocked(vtime.Time) {
	q.waitCredit = false
	q.wake()
}

// Settle implements transport.Endpoint.
func (q *QP) Settle(now vtime.Time) { q.fn.settle(now) }

// wake queues the QP for a turn.
func (q *QP) wake() {
	switch q.state {
	case abi.QPStateRTS, abi.QPStateSQD:
		if q.waitCredit || q.conn == nil && !q.wired && !q.datagrams() || !q.sq.Open() {
			return
		}
	case abi.QPStateErr, abi.QPStateSQE:
	default:
		return
	}
	if q.stuck() {
		return
	}
	q.fn.e.enqueue(q)
}

// prefetch has the processor fetch what a turn needs of the connection.
func (q *QP) prefetch() {
	if q.conn != nil {
		q.conn.Prefetch()
	}
}

// turn does the QP's share of work: new requests in RTS, what is left of those begun in SQD,
// flushing in ERR and SQE. It reports whether more is left that can go on now.
func (q *QP) turn(now vtime.Time) (more bool) {
	if !q.fn.Working() || q.stuck() {
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
		return q.flush(now)
	}
	return false
}

// stuck reports whether the send queue is kept back.
func (q *QP) stuck() bool { return q.fn.Faults() != nil && q.fn.Faults().Stuck(q.number) }

// brokeReset reports a doorbell for a queue of a QP in RESET.
func (q *QP) brokeReset(kind abi.Ring, index uint32) {
	if index != 0 {
		q.fn.Broke(abi.DRV601, kind, q.number, index, binary.LittleEndian.AppendUint32(nil, index))
	}
}

// sendDoorbell takes a doorbell of the send queue.
func (q *QP) sendDoorbell(index uint32) {
	if q.state == abi.QPStateReset {
		q.brokeReset(abi.RingSQ, index)
		return // the driver may be clearing the queue
	}
	if q.sq.Doorbell(index) {
		q.wake()
	}
}

// receives is how many messages of the peer can hold a receive at a time, where their order does
// not limit it to one.
func (q *QP) receives() uint32 {
	switch {
	case q.typ == abi.QPTypeXRCRecv:
		return maxMessages
	case q.srq != nil:
		return q.srq.Entries()
	}
	return q.rq.Entries()
}

// recvDoorbell takes a doorbell of the receive queue. Receives are read when a message needs one.
func (q *QP) recvDoorbell(index uint32) {
	if q.state == abi.QPStateReset {
		q.brokeReset(abi.RingRQ, index)
		return
	}
	if q.rq.Doorbell(index) && q.state == abi.QPStateErr {
		q.wake()
	}
}
