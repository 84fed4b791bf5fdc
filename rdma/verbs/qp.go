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
	in     *QPs
	owner  *Owner
	shared *Shared
	sched  Scheduler

	number uint32
	typ    abi.QPType
	pd     *PD
	state  abi.QPState
	attr   attributes

	ordering  abi.Ordering
	unordered bool // ordering is OrderingUnordered
	inError   bool // a request that fails completes in error, and the QP continues

	send    sender
	recv    receiver
	windows Bindings
	groups  [][16]byte // groups that it is attached to

	conn     transport.Conn // nil if there is none
	peer     remote
	segment  int         // maximum of data bytes in one packet
	heard    bool        // a packet of the peer arrived
	violated bool        // the peer sent an invalid request
	blocked  bool        // nothing can be issued before Unblocked or Resume
	full     Destination // of datagrams, that the QP waits for

	sqdNotify   bool          // the driver asked to be told when the send queue is drained
	patience    timer.Handle  // of requests that may never be answered
	Queued      list.Node[QP] // in the scheduler's list: has work to issue or to flush
	polled      list.Node[QP] // in Shared.polled: the send queue became empty
	pollUntil   vtime.Time
	lingering   list.Node[QP] // in Shared.lingering: failed, connection still open
	lingerUntil vtime.Time
}

// half holds what each half of a queue pair is given of the rest of it. A half knows nothing of the
// states; it returns what fails the queue pair.
type half struct {
	owner   *Owner
	shared  *Shared
	regions *Regions
	number  uint32
	typ     abi.QPType
	pd      *PD
	windows *Bindings
	attr    *attributes
	peer    *remote
	inError bool
}

// remote holds what is known of the queue pair at the other end.
type remote struct {
	number  uint32
	gid     [16]byte
	ird     uint8 // READs and atomics that it accepts
	wired   bool  // the driver named it
	left    bool  // the driver named it, but its end of a connection is gone
	leaving bool  // it is ending the connection
}

// anyIRD means that the peer has not announced how many READs and atomics it accepts.
const anyIRD = 255

// forget clears the peer of a connection, unless the driver named it.
func (r *remote) forget() {
	if !r.wired {
		r.number, r.gid = 0, [16]byte{}
	}
	r.ird = anyIRD
}

// The states of a QP. An arrow without a name is a move by ModifyQP, by the tables of
// modify.go. RESET and ERR can be reached from every state.
//
//	            Connect
//	         ┌───────────────────┐         started sends finish
//	RESET ─▶ INIT ─▶ RTR ─▶ RTS ◀──────▶ SQD
//	  ▲               │      │ ▲
//	  │               │      │ └──────── SQE   a send of a UD or UC QP failed: sends are flushed
//	  │               ▼      ▼
//	  └────────────── ERR ◀──── local or remote error, peer gone
//
// In ERR works are flushed in order, a few per turn, and the connection lingers so that refusals
// reach the peer. A QP in RESET has no connection; a move there writes no completions.

// fail moves the QP to ERR because of st and tells the driver.
func (q *QP) fail(now vtime.Time, st abi.WCStatus, reason string) {
	q.failAs(now, abi.EventQPFatal, st, reason)
}

// failAs does what fail does, with an event of type typ.
func (q *QP) failAs(now vtime.Time, typ abi.EventType, st abi.WCStatus, reason string) {
	if q.state == abi.QPStateErr || q.state == abi.QPStateReset {
		return
	}
	q.enterErr(now)
	q.owner.Stats.QPErrors++
	q.owner.Event(typ, q.number, uint32(st), reason)
}

// failSend stops sending because a work request completed with st. The QP continues to receive if
// no peer relies on its sends, as with datagrams and unreliable connections.
func (q *QP) failSend(now vtime.Time, st abi.WCStatus) {
	if st == abi.WCWRFlushErr { // the peer is leaving, which is not an error
		q.enterErr(now)
		return
	}
	if !q.datagrams() && !q.unreliable() {
		q.fail(now, st, "send work request failed: "+st.String())
		return
	}
	if q.state == abi.QPStateRTS || q.state == abi.QPStateSQD {
		q.state = abi.QPStateSQE
		q.polled.Remove()
		q.dropRequests()
		q.wake()
	}
}

// enterErr moves the QP to ERR. Transactions in flight lose their data. The following turns flush
// the work requests.
func (q *QP) enterErr(now vtime.Time) {
	if q.state == abi.QPStateErr {
		return
	}
	q.state = abi.QPStateErr
	q.sched.Freed() // it may have been offered credit
	q.shared.Timers.Stop(&q.patience)
	q.polled.Remove() // flushing reads and arms the queue
	q.dropRequests()
	if q.conn != nil {
		q.lingerUntil = now + q.shared.Linger
		q.shared.lingering.PushBack(&q.lingering, q)
	}
	q.wake()
}

// reset moves the QP to RESET from any state.
func (q *QP) reset(now vtime.Time) {
	q.stopWork()
	q.peer.wired, q.peer.left = false, false
	q.leaveConn(now)
	q.send.queue.Reset()
	q.recv.queue.Reset()
	q.windows.unbindAll()
	q.attr = defaultAttributes(q.owner.Limits())
	q.state = abi.QPStateReset
}

// stopWork drops all work requests, sent and received.
func (q *QP) stopWork() {
	q.send.works.forget()
	q.recv.messages.drop()
	q.Queued.Remove()
	q.polled.Remove()
	q.shared.Timers.Stop(&q.patience)
	q.blocked = false
}

// wake queues the QP for a turn.
func (q *QP) wake() {
	switch q.state {
	case abi.QPStateRTS, abi.QPStateSQD:
		if q.blocked || q.conn == nil && !q.peer.wired && !q.datagrams() || !q.send.queue.Open() {
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
func (q *QP) CompletesInError() bool { return q.inError }

// IRD returns how many READs and atomics of the peer the QP accepts at a time, in packets (RDMA
// over Falcon §8.3.2).
func (q *QP) IRD() uint8 { return q.attr.maxDest }

// ORD returns how many READs and atomics the QP may have in flight.
func (q *QP) ORD() uint8 { return q.attr.maxRdAtomic }

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

// datagrams reports whether the QP is of the datagram service.
func (q *QP) datagrams() bool        { return isDatagram(q.typ) }
func isDatagram(typ abi.QPType) bool { return typ == abi.QPTypeUD || typ == abi.QPTypeGSI }

// unreliable reports whether the QP is of the unreliable connected service.
func (q *QP) unreliable() bool { return q.typ == abi.QPTypeUC }

// gsiNumber is the number of the queue pair of the general services interface. Each function has
// one, for connection management between the kernels of guests.
const gsiNumber = 1
