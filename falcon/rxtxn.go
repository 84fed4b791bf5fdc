package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// rxState is the state of a transaction at the target (Falcon §8.5.1). RespondPull acknowledges a
// pull and supplies its data in one call, so the state PullReqUlpAckd takes no time. From
// PullDataUlpRx on the transaction is a txn.
type rxState uint8

const (
	rxWaiting  rxState = iota // received, waits for earlier RSNs (PullReqRx, PushDataRx)
	rxQueued                  // its event waits for Next
	rxULP                     // with the ULP (PullReqUlpTx, PushReqUlpTx)
	rxNotReady                // RNR: a push waits for its retransmission, a pull for its timer
	rxRefused                 // push answered with another NACK: waits for the Resync
	rxDone                    // answered (PushReqUlpAckd, PullReqUlpAckd), or skipped by a Resync
)

// MaxPullHeader is the maximum of ULP header bytes in a pull request. They are kept in the
// request's context, so a pull never needs a cell.
const MaxPullHeader = 128

// rxTxn is a request received from the network, from its arrival to the ULP's answer. data is the
// payload. For a push it is in the receive buffer, until the event is taken, or in cell; for a pull
// it is in inline.
type rxTxn struct {
	conn     *Conn
	timer    timer.Handle // pull under RNR
	data     []byte
	cell     *cell
	rsn, psn uint32
	gen      uint32 // incremented when the context is reused
	since    Time   // since when the peer has left it waiting
	length   int    // pull: bytes requested
	state    rxState
	push     bool
	ackReq   bool
	nack     wire.NackCode
	rnr      uint8
	ulpCode  uint8
	inline   [MaxPullHeader]byte
}

// doneRx marks RSNs that are answered while older ones are not.
var doneRx = &rxTxn{state: rxDone}
