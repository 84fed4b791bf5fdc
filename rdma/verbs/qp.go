package verbs

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// QP is a queue pair. Its type decides which parts it has:
//
//	          PD  send CQ, SQ  receive CQ, receives from
//	RC, UC,   +   +            RQ or SRQ
//	UD
//	XRCSend   +   +            –
//	XRCRecv   –   –            the XRC SRQ of its domain that each packet names
type QP struct {
	in      *QPs
	owner   *Owner
	regions *Regions
	shared  *Shared
	sched   Scheduler

	number uint32
	typ    abi.QPType
	pd     *PD
	xrcd   *XRCD // XRCRecv
	state  abi.QPState
	attr   attributes

	ordering  abi.Ordering
	unordered bool // ordering is OrderingUnordered
	cie       bool // a request that fails completes in error, and the QP continues

	groups [][16]byte // groups that it is attached to

	conn     transport.Conn // nil if there is none
	peer     remote
	segment  int  // maximum of data bytes in one packet
	violated bool // the peer sent an invalid request
	windows  Bindings

	requester
	responder

	Queued      list.Node[QP] // in the scheduler's list: has work to issue or to flush
	lingering   list.Node[QP] // in Shared.lingering: failed, connection still open
	lingerUntil vtime.Time
}

// requester is the sending half of a queue pair.
type requester struct {
	q          *QP
	sendCQ     *CQ
	sq         WorkQueue
	req        sendRing
	sigAll     bool
	sqdNotify  bool // the driver asked to be told when the send queue is drained
	waitCredit bool // nothing can be issued before Unblocked or Resume
	sender     datagramSender
	patience   timer.Handle  // of requests that may never be answered
	polled     list.Node[QP] // in Shared.polled: the send queue became empty
	pollUntil  vtime.Time
}

// responder is the half of a queue pair that serves its peer.
type responder struct {
	q       *QP
	recvCQ  *CQ
	rq      WorkQueue
	srq     *SRQ // shared receive queue that it was created with
	rsp     messages
	heard   bool // a packet of the peer arrived
	lastWQE bool // EventLastWQE was sent
}

// Number returns the queue pair number, 24 bits.
func (q *QP) Number() uint32 { return q.number }

// Type returns the QP's type.
func (q *QP) Type() abi.QPType { return q.typ }

// State returns the QP's state.
func (q *QP) State() abi.QPState { return q.state }

// Ordered reports whether the QP needs an ordered connection (RDMA over Falcon §6.2).
func (q *QP) Ordered() bool { return q.ordering == abi.OrderingStrong }

// CompletesInError reports whether a failed request of the QP leaves the QP working (RDMA over
// Falcon §6.3).
func (q *QP) CompletesInError() bool { return q.cie }

// IRD returns how many READs and atomics of the peer the QP accepts at a time, in packets (RDMA
// over Falcon §8.3.2).
func (q *QP) IRD() uint8 { return q.attr.maxDest }

// LimitReads lowers the number of READs and atomics that the QP has in flight to what the peer
// accepts. The limit holds as long as the connection lasts, whatever the driver sets.
func (q *QP) LimitReads(peerIRD uint8) {
	q.peer.ird = peerIRD
	q.limitReads()
}

func (q *QP) limitReads() {
	q.attr.maxRdAtomic = min(q.attr.maxRdAtomic, q.peer.ird)
	if q.conn != nil {
		q.conn.LimitReads(int(q.attr.maxRdAtomic))
	}
}

// Owns reports whether conn is the QP's connection.
func (q *QP) Owns(conn transport.Conn) bool { return q.conn != nil && q.conn == conn }

// PathMTU returns the path MTU in bytes that was set or agreed on, 0 if there is none.
func (q *QP) PathMTU() int {
	return q.attr.pathMTU.Bytes()
}

// RetryTime returns how long the QP's timeout and retry count allow a packet to be unacknowledged.
// It returns 0, which leaves the choice to the transport, if the driver set neither, and
// vtime.Never if the driver set the timeout to 0, as verbs define it. The transport's own timers
// decide when a packet is sent again.
func (q *QP) RetryTime() vtime.Time { return q.attr.retryTime() }

// wake queues the QP for a turn.
func (q *QP) wake() {
	switch q.state {
	case abi.QPStateRTS, abi.QPStateSQD:
		if q.waitCredit || q.conn == nil && !q.peer.wired && !q.datagrams() || !q.sq.Open() {
			return
		}
	case abi.QPStateErr, abi.QPStateSQE:
	default:
		return
	}
	if q.owner.stuck(q.number) {
		return
	}
	q.sched.Ready(q)
}

// receives returns how many messages of the peer can hold a receive at a time, if an ordered
// connection does not limit that to one.
func (r *responder) receives() uint32 {
	q := r.q
	switch {
	case q.typ == abi.QPTypeXRCRecv:
		return maxMessages
	case r.srq != nil:
		return r.srq.Entries()
	}
	return r.rq.Entries()
}

// datagrams reports whether the QP is of the datagram service.
func (q *QP) datagrams() bool { return q.typ == abi.QPTypeUD || q.typ == abi.QPTypeGSI }

// unreliable reports whether the QP is of the unreliable connected service.
func (q *QP) unreliable() bool { return q.typ == abi.QPTypeUC }

// gsiNumber is the number of the queue pair of the general services interface. Each function has
// one, for connection management between the kernels of guests.
const gsiNumber = 1
