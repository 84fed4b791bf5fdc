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

// again is the reason why a packet was sent again.
type again uint8

const (
	whyNot     again = iota
	whyTimeout       // its retransmission timer expired
	whyEarly         // packets sent later arrived
	whyProbe         // a tail loss probe
	whyAnswer        // the peer's ULP did not answer
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
	early      uint8
	in         listID
	kind       TxnKind
	state      txnState
	resync     wire.ResyncCode // not 0: the packet is a Resync
	code       Completion
	ulpCode    uint8
	last       bool  // last of a message: ask for an acknowledgement
	again      bool  // counted in txWindow.retransmitted
	rnr        bool  // timer is the delay of an RNR NACK
	rnred      bool  // refused with an RNR NACK once
	parked     bool  // has released cost until it is sent again
	why        again // reason for the last retransmission
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

// listID names a list. A transaction is in at most one.
type listID uint8

// Lists of a connection (those of fresh and retx packets by TxnKind), and one of the engine.
const (
	inNone    listID = iota
	inFlight         // sent and neither acknowledged nor refused, the longest ago first
	inFresh          // not sent yet
	inRetx    = 5    // to be sent again, in PSN order
	inAnswer  = 8    // received by the peer, whose ULP has not answered; the longest ago first
	inStalled = 9    // Engine.waiting.stalled: pull responses that wait for credits

	connLists = inStalled - inFlight
)
