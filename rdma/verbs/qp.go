package verbs

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// QP is a queue pair. Which of its parts there are depends on its type:
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
	cie       bool // a request that fails completes in error, and the QP goes on

	groups [][16]byte // that it is attached to

	conn     transport.Conn // nil while there is none
	peer     remote
	segment  int  // most data bytes of one packet
	violated bool // a packet of the peer was no valid request
	windows  Bindings

	requester
	responder

	Queued      list.Node[QP] // in the scheduler's list: has work to issue or to flush
	lingering   list.Node[QP] // in Shared.lingering: failed, connection still open
	lingerUntil vtime.Time
}

// requester is the half of a queue pair that sends.
type requester struct {
	q          *QP
	sendCQ     *CQ
	sq         WorkQueue
	req        sendRing
	sigAll     bool
	sqdNotify  bool // the driver wants to know when the send queue is drained
	waitCredit bool // nothing can be issued before Unblocked, or Resume
	sender     datagramSender
	patience   timer.Handle  // of requests that nobody may answer
	polled     list.Node[QP] // in Shared.polled: send queue ran empty
	pollUntil  vtime.Time
}

// responder is the half of a queue pair that serves its peer.
type responder struct {
	q       *QP
	recvCQ  *CQ
	rq      WorkQueue
	srq     *SRQ // shared receive queue it was created with
	rsp     messages
	heard   bool // a packet of the peer arrived
	lastWQE bool // EventLastWQE was sent
}

// Number is the queue pair number, 24 bits.
func (q *QP) Number() uint32 { return q.number }

// Type is the QP's type.
func (q *QP) Type() abi.QPType { return q.typ }

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

// PathMTU is the path MTU in bytes that the driver asked for, 0 when it did not.
func (q *QP) PathMTU() int {
	return q.attr.pathMTU.Bytes()
}

// RetryTime is how long the QP's timeout and retry count let a packet go unacknowledged; 0, the
// transport's choice, when the driver set neither; vtime.Never when it set the timeout to 0, as
// verbs have it. The transport's own timers decide when a packet is sent again.
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

// receives is how many messages of the peer can hold a receive at a time, where their order does
// not limit it to one.
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

// gsiNumber is the number of the general services interface's queue pair, one per function, for
// connection management between the kernels of guests.
const gsiNumber = 1
