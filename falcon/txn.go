package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// txnState is the state of a transaction at the side that transmits (Falcon §8.4.1 and the Pull
// Data part of §8.5.1).
type txnState uint8

const (
	pullReqUlpRx  txnState = iota // pull received from the ULP
	pullReqTx                     // pull request sent
	pullReqAckd                   // pull request acknowledged
	pullDataRx                    // pull data received
	pullDataUlpTx                 // pull data delivered
	pushReqUlpRx                  // push received from the ULP
	pushDataTx                    // push data sent
	pushDataAckd                  // push data acknowledged
	pushCplTx                     // push completion delivered
	pullDataUlpRx                 // target: response received from the ULP
	pullDataTx                    // target: pull data sent
	pullDataAckd                  // target: pull data acknowledged
)

// cause is the reason why a packet was sent again.
type cause uint8

const (
	causeNone    cause = iota
	causeTimeout       // its retransmission timer expired
	causeEarly         // packets sent later arrived
	causeProbe         // a tail loss probe
	causeAnswer        // the peer's ULP did not answer
)

// txn is a transaction that has a packet to send: a push or pull of the initiator, or a pull
// response of the target. It lives until its packet is acknowledged and the ULP has been told of
// its completion. It takes three cache lines.
type txn struct {
	place      list.Node[txn] // in the list it is in
	conn       *Conn
	tag        uint64
	started    Time // when its packet was sent for the first time
	firstSent  Time // since when its packet, or its Resync, is unanswered: first transmission or last RNR NACK; −1 = not sent
	lastSent   Time
	bypassed   Time // last retransmission for an out-of-window notification, −1 = none
	received   Time // when an acknowledgement said that the peer has it but its ULP has not answered
	data       []byte
	cell       *cell
	cost       credit.Cost
	psn, rsn   uint32
	length     int32        // bytes the ULP promised to fill
	pullLength int32        // pull: bytes requested
	retries    int32        // timeouts of its packet, or of its Resync
	timer      timer.Handle // the delay of an RNR NACK
	early      uint8        // early retransmissions
	in         txnList
	kind       TxnKind
	state      txnState
	resync     wire.ResyncCode // not 0: the packet is a Resync
	code       Completion
	ulpCode    uint8
	last       bool  // last of a message: ask for an acknowledgement
	resent     bool  // counted in txWindow.resent
	rnrDelay   bool  // timer is the delay of an RNR NACK
	rnrSeen    bool  // refused with an RNR NACK once
	parked     bool  // has released cost until it is sent again
	cause      cause // reason for the last retransmission
	packetDone bool  // packet acknowledged, or gone with the connection
	done       bool  // outcome known
	refusal    bool  // a Resync for a pull the target's ULP does not answer
}

// packetType is the type of the original packet.
func (t *txn) packetType() wire.PacketType {
	switch t.kind {
	case TxnPull:
		return wire.TypePullRequest
	case TxnPullData:
		return wire.TypePullData
	default:
		return wire.TypePushData
	}
}

// doneTxn marks RSNs of an unordered connection that completed before older ones.
var doneTxn = &txn{done: true}

// txnList names the list that a transaction is in. It is in at most one.
type txnList uint8

const (
	inNone       txnList = iota
	inUnsent             // sender.unsent: not sent yet
	inResend             // sender.resend: to be sent again
	inFlight             // flight.sent: neither acknowledged nor refused
	inUnanswered         // flight.unanswered: received by the peer, whose ULP has not answered
	inStalled            // Engine.waiting.stalled: pull responses that wait for credits
)

// list returns the list of that name that t belongs to.
func (t *txn) list(in txnList) *list.List[txn] {
	c := t.conn
	switch in {
	case inUnsent:
		return &c.tx.unsent[t.kind]
	case inResend:
		return &c.tx.resend[t.kind]
	case inFlight:
		return &c.flight.sent
	case inUnanswered:
		return &c.flight.unanswered
	}
	return &c.e.waiting.stalled
}

// want returns the bit of Conn.busy for the list that t is in, 0 if t does not wait to be sent.
func (t *txn) want() uint8 {
	switch t.in {
	case inUnsent:
		return wantPush << t.kind
	case inResend:
		return wantPushResend << t.kind
	}
	return 0
}

// enlist appends t, which is in no list, to a list.
func (t *txn) enlist(in txnList) {
	t.in = in
	t.list(in).PushBack(&t.place, t)
	t.conn.busy |= t.want()
}

// enlistByPSN inserts t into a list in PSN order. Packets mostly come in order, so the search
// starts at the end.
func (t *txn) enlistByPSN(in txnList) {
	l := t.list(in)
	at := l.Last() // t is inserted after it
	for at != nil && int32(at.psn-t.psn) > 0 {
		at = at.place.Prev()
	}
	t.in = in
	if at == nil {
		l.PushFront(&t.place, t)
	} else {
		t.place.InsertAfter(&at.place, t)
	}
	t.conn.busy |= t.want()
}

// unlink removes t from its list, if it is in one.
func (t *txn) unlink() {
	if t.in == inNone {
		return
	}
	t.place.Remove()
	if t.list(t.in).Empty() {
		t.conn.busy &^= t.want()
	}
	t.in = inNone
}

// makeResync turns the packet of t into a Resync (Falcon §9.1.8) and resets its retransmission
// counters.
func (t *txn) makeResync(code wire.ResyncCode, completion Completion) {
	t.resync, t.code = code, completion
	t.retries, t.firstSent, t.early, t.rnrDelay = 0, -1, 0, false
}

// expired implements timerOwner: the delay of an RNR NACK ends.
func (t *txn) expired(Time) {
	t.rnrDelay = false
	t.conn.flight.queueResend(t)
}
