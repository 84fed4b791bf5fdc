package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
)

// Pipe carries the transactions of a connection to its other end and back. It must provide what
// RDMA over Falcon §6.8 requires of Falcon: each transaction reaches the other end at most once, in
// order if the connection is ordered, and completes exactly once. The pipe itself deals with losses
// on the way.
//
//	initiator                                            target
//	Push ── EvPush ────────────────────────────────────▶ AckPush or NackPush
//	     ◀── EvPushDone, after EvRNR as often as it was not ready
//	Pull ── EvPull ────────────────────────────────────▶ RespondPull, DeferPull or NackPush
//	     ◀── EvPullDone                  EvResponseDone ◀──
//
// Events reach the user through Handle, never from within a call. The pipe gets the bytes of
// requests and responses from Fill, each time it needs them.
//
// A *falcon.Conn is a pipe. Package local has another, for connections inside the NIC.
type Pipe interface {
	// Config returns the parameters that the connection was opened with.
	Config() *falcon.ConnConfig
	// SetUser sets the user that handles events and fills packets.
	SetUser(u any)

	// Push issues a push of length bytes. PushLast issues one that ends a message. After
	// falcon.ErrXoff, EvCredit follows.
	Push(now falcon.Time, tag uint64, length int) error
	PushLast(now falcon.Time, tag uint64, length int) error
	// Pull issues a request of reqLen bytes for a response of at most respLen.
	Pull(now falcon.Time, tag uint64, reqLen, respLen int) error

	// AckPush and NackPush answer an EvPush. NackPush with NackCID also answers an EvPull.
	AckPush(now falcon.Time, rsn uint32)
	NackPush(now falcon.Time, rsn uint32, code falconwire.NackCode, rnr, ulpCode uint8)
	// RespondPull answers an EvPull with length bytes. DeferPull asks for the EvPull again at the
	// given time; an ordered connection delivers nothing behind it before then. The peer does not
	// notice.
	RespondPull(now falcon.Time, rsn uint32, tag uint64, length int) error
	DeferPull(now falcon.Time, rsn uint32, until falcon.Time)

	// Drain lets the connection finish the transactions in progress. It issues nothing new but
	// still answers.
	Drain(now falcon.Time)
	// Close ends the connection without telling the peer; Abort does so for a given reason.
	Close(now falcon.Time)
	Abort(now falcon.Time, reason falcon.CloseReason)
}

var _ Pipe = (*falcon.Conn)(nil)

// User receives the events of a pipe and writes its packets: a queue pair's connection, or one that
// carries datagrams.
type User interface {
	// Handle handles one event.
	Handle(now falcon.Time, ev *falcon.Event)
	// Fill writes the RDMA headers and data of one packet into dst; see falcon.ULP.
	Fill(kind falcon.TxnKind, tag uint64, dst []byte) (int, error)
	// NoteConcluded records that a request from another connection inside the NIC was answered.
	NoteConcluded(rsn uint32)
}
