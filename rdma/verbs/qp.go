package verbs

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
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
	in      *QPs
	owner   *Owner
	regions *Regions
	shared  *Shared
	sched   Scheduler

	number uint32
	typ    abi.QPType
	pd     *PD
	sendCQ *CQ
	recvCQ *CQ
	state  abi.QPState
	attr   attributes
	srq    *SRQ  // shared receive queue it was created with
	xrcd   *XRCD // XRCRecv
	sigAll bool
	sq, rq WorkQueue

	ordering  abi.Ordering
	unordered bool // ordering is OrderingUnordered
	cie       bool // a request that fails completes in error, and the QP goes on

	conn       transport.Conn // nil while there is none
	peer       uint32
	peerGID    [16]byte
	segment    int // most data bytes of one packet
	waitCredit bool
	blocked    Carrier      // has the QP in its list
	peerIRD    uint8        // that the peer takes
	heard      bool         // a packet of the peer arrived
	violated   bool         // one of them was no valid request
	wired      bool         // the driver named the peer
	peerLeft   bool         // a wired QP had a connection
	leaving    bool         // the peer ends the connection
	patience   timer.Handle // of a wired QP without one
	lastWQE    bool         // EventLastWQE was sent
	windows    Bindings
	sqdNotify  bool // the driver wants to know when the send queue is drained

	req sendRing
	rsp messages

	Queued      list.Node[QP] // in the scheduler's list: has work to issue or to flush
	polled      list.Node[QP] // in Shared.polled: send queue ran empty
	pollUntil   vtime.Time
	lingering   list.Node[QP] // in Shared.lingering: failed, connection still open
	lingerUntil vtime.Time
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

// anyIRD stands for a peer that has not said how many READs and atomics it takes.
const anyIRD = 255

// RetryTime is how long the QP's timeout and retry count let a packet go unacknowledged, for
// falcon.ConnConfig.GiveUp; 0, the profile's choice, when the driver set neither; vtime.Never
// when it set the timeout to 0, as verbs have it. Falcon's own timers decide when a packet is sent
// again.
func (q *QP) RetryTime() vtime.Time { return q.attr.retryTime() }

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
	q.sched.Ready(q)
}

// stuck reports whether the send queue is kept back.
func (q *QP) stuck() bool { return q.owner.Faults() != nil && q.owner.Faults().Stuck(q.number) }

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
