package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
)

// Carrier carries the transactions of a connection to its other end and back. What is asked of it
// is what RDMA over Falcon §6.8 asks of Falcon: each transaction reaches the other end at most
// once, in order where the connection is ordered, and completes exactly once; what is lost on the
// way is the carrier's business.
//
//	initiator                                            target
//	Push ── EvPush ────────────────────────────────────▶ AckPush or NackPush
//	     ◀── EvPushDone, after EvRNR as often as it was not ready
//	Pull ── EvPull ────────────────────────────────────▶ RespondPull, DeferPull or NackPush
//	     ◀── EvPullDone                  EvResponseDone ◀──
//
// Events reach the connection through Handle, never from within a call. The bytes of requests and
// responses come from Fill, when they are wanted and as often as they are.
//
// A *falcon.Conn is a carrier; package local has one that does not leave the NIC.
type Carrier interface {
	// Config returns what the connection was opened with.
	Config() *falcon.ConnConfig
	// SetUser says who handles events and fills packets.
	SetUser(u any)

	// Push issues a push of length bytes, PushLast one that ends a message. falcon.ErrXoff:
	// EvCredit follows.
	Push(now falcon.Time, tag uint64, length int) error
	PushLast(now falcon.Time, tag uint64, length int) error
	// Pull issues a request of reqLen bytes for a response of at most respLen.
	Pull(now falcon.Time, tag uint64, reqLen, respLen int) error

	// AckPush and NackPush answer an EvPush; NackPush with NackCID an EvPull too.
	AckPush(now falcon.Time, rsn uint32)
	NackPush(now falcon.Time, rsn uint32, code falconwire.NackCode, rnr, ulpCode uint8)
	// RespondPull answers an EvPull with length bytes. DeferPull asks for it again at the given
	// time, and for nothing behind it before where the connection is ordered; the peer does not
	// notice.
	RespondPull(now falcon.Time, rsn uint32, tag uint64, length int) error
	DeferPull(now falcon.Time, rsn uint32, until falcon.Time)

	// Drain makes the connection finish what is under way and issue nothing new; it goes on
	// answering.
	Drain(now falcon.Time)
	// Close ends the connection without telling the peer, Abort does it for a reason.
	Close(now falcon.Time)
	Abort(now falcon.Time, reason falcon.CloseReason)
}

var _ Carrier = (*falcon.Conn)(nil)
