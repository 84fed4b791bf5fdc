package falcon

import (
	"errors"
	"fmt"
	"strconv"
)

// ULP is the upper layer protocol of an engine.
type ULP interface {
	// Fill writes the ULP headers and data of a transaction's packet, for every transmission and
	// retransmission. len(dst) is the length promised to Push, Pull or RespondPull. Fill returns
	// the number of bytes written; only a pull response or a push may have fewer. An error ends a
	// push or pull with CmplLocalXlr, and a pull response with CmplRemoteErr at the peer; a Resync
	// packet fills the hole. Fill must not call the engine.
	Fill(c *Conn, kind TxnKind, tag uint64, dst []byte) (int, error)
}

// Event is one event for the ULP. Data is valid until the next call of Next.
type Event struct {
	Kind    EventKind
	Conn    *Conn
	RSN     uint32
	Tag     uint64
	Length  int
	Code    Completion
	ULPCode uint8
	Reason  CloseReason
	Data    []byte
}

// upcall is an event with what Next must check or release when it takes it.
type upcall struct {
	ev   Event
	cell *cell
	req  *request // EvPush, EvPull: deliver only if still queued
	gen  uint32
}

// emit appends an upcall of that kind; the caller sets its other fields.
func (c *Conn) emit(kind EventKind) *upcall {
	u := c.e.events.Push()
	*u = upcall{ev: Event{Kind: kind, Conn: c}}
	return u
}

// EventKind says what an Event reports.
type EventKind uint8

// Events. Conn is set in all of them.
const (
	// EvPush delivers a push to the target: RSN, Data. The ULP answers with AckPush or NackPush.
	EvPush EventKind = iota
	// EvPull delivers a pull request to the target: RSN, Data (ULP headers), Length (bytes
	// requested). The request is already acknowledged. The ULP answers with RespondPull, DeferPull,
	// RNRPull, or NackPush with NackCID.
	EvPull
	// EvPushDone completes a push of the initiator: Tag, Code, ULPCode.
	EvPushDone
	// EvPullDone completes a pull of the initiator: Tag, Code, and Data if Code is CmplAck.
	EvPullDone
	// EvResponseDone ends a pull response, which was acknowledged (CmplAck) or given up. The ULP
	// may free the data that Tag refers to.
	EvResponseDone
	// EvCredit reports that Push or Pull may be tried again after ErrXoff.
	EvCredit
	// EvClosed is the last event of a connection: Code (CmplAck after Close, else CmplDeadConn) and
	// Reason. Events before it have completed every outstanding transaction.
	EvClosed
	// EvRNR reports an RNR NACK received for an outstanding push: Tag. The engine keeps the push
	// and sends it again after the larger of RTO and RNR timeout. A ULP that counts retries may
	// close the connection.
	EvRNR
	// EvDrained follows Drain exactly once: this side has no transaction in progress, every request
	// of the peer is answered, and the peer has been sent the acknowledgements.
	EvDrained
	// EvLongPath reports that the delay has stayed above congestion control's target for a second
	// although the window is one packet or less. The path is longer than the target, or too many
	// flows share a port. It is sent once, until the condition ends and begins again.
	EvLongPath
	// EvLimit reports what Limit was told: Length is the most bytes of ULP headers and data that the
	// network carries in one packet.
	EvLimit
)

// String names the event.
func (k EventKind) String() string {
	switch k {
	case EvPush:
		return "push"
	case EvPull:
		return "pull"
	case EvPushDone:
		return "push done"
	case EvPullDone:
		return "pull done"
	case EvResponseDone:
		return "response done"
	case EvCredit:
		return "credit"
	case EvClosed:
		return "closed"
	case EvRNR:
		return "receiver not ready"
	case EvDrained:
		return "drained"
	case EvLongPath:
		return "long path"
	case EvLimit:
		return "limit"
	}
	return "event " + strconv.Itoa(int(k))
}

// Completion is the completion code of a transaction (Falcon §11).
type Completion uint8

// Completion codes.
const (
	CmplAck           Completion = 0x0 // success
	CmplTargetNackCIE Completion = 0x1 // target ULP completed in error
	CmplTargetNackNRE Completion = 0x3 // target ULP: non-recoverable error
	CmplTargetNackCID Completion = 0x4 // target ULP: invalid CID
	CmplLocalTO       Completion = 0x8 // timed out
	CmplOpErr         Completion = 0x9 // pull data larger than requested
	CmplDeadConn      Completion = 0xA // connection not alive
	CmplLocalRsrc     Completion = 0xB // local resources exceeded; the engine has ErrXoff instead
	CmplUlpCdtErr     Completion = 0xC // costs more than a limit allows at all
	CmplRemoteErr     Completion = 0xD // remote xLR drop or remote error
	CmplLocalXlr      Completion = 0xF // dropped locally: the ULP could not supply the data

	CompletionCodes = 16 // values of the 4-bit code
)

// Name returns a short phrase for a counter, "" for a reserved code.
func (c Completion) Name() string {
	return [CompletionCodes]string{
		CmplAck: "success", CmplTargetNackCIE: "complete in error", CmplTargetNackNRE: "non-recoverable error",
		CmplTargetNackCID: "invalid CID", CmplLocalTO: "timeout", CmplOpErr: "response too long", CmplDeadConn: "dead connection",
		CmplLocalRsrc: "no resources", CmplUlpCdtErr: "credit limit", CmplRemoteErr: "remote error", CmplLocalXlr: "data unavailable",
	}[c]
}

// String returns the name that the specification uses.
func (c Completion) String() string {
	switch c {
	case CmplAck:
		return "kCmplAck"
	case CmplTargetNackCIE:
		return "kCmplTargetNackCIE"
	case CmplTargetNackNRE:
		return "kCmplTargetNackNRE"
	case CmplTargetNackCID:
		return "kCmplTargetNackCID"
	case CmplLocalTO:
		return "kCmplLocalTO"
	case CmplOpErr:
		return "kCmplOpErr"
	case CmplDeadConn:
		return "kCmplDeadConn"
	case CmplLocalRsrc:
		return "kCmplLocalRsrc"
	case CmplUlpCdtErr:
		return "kUlpCmplCdtErr"
	case CmplRemoteErr:
		return "kCmplRemoteErr"
	case CmplLocalXlr:
		return "kCmplLocalXlr"
	}
	return "completion " + strconv.Itoa(int(c))
}

// CloseReason says why a connection ended.
type CloseReason uint8

// Close reasons.
const (
	CloseLocal  CloseReason = iota // Conn.Close
	CloseResync                    // a Resync packet was not acknowledged: the peer is gone
	ClosePeer                      // Abort: the peer ended it
	CloseULP                       // Abort: the upper layer protocol was violated
	CloseKeys                      // Abort: no security association is left
	CloseMTU                       // the network no longer carries packets as long as one in flight

	CloseReasons // number of reasons
)

// String returns a phrase for logs and error messages.
func (r CloseReason) String() string {
	switch r {
	case CloseLocal:
		return "closed locally"
	case CloseResync:
		return "peer did not acknowledge"
	case ClosePeer:
		return "closed by the peer"
	case CloseULP:
		return "upper layer protocol violated"
	case CloseKeys:
		return "no security association"
	case CloseMTU:
		return "the network carries shorter packets than before"
	}
	return "reason " + strconv.Itoa(int(r))
}

// TxnKind tells Fill what to write.
type TxnKind uint8

// Kinds of transaction packets the ULP fills.
const (
	TxnPush     TxnKind = iota // ULP headers and data of a push
	TxnPull                    // ULP headers of a pull request
	TxnPullData                // ULP headers and data of a pull response

	txnKinds = iota
)

// String names the kind.
func (k TxnKind) String() string {
	switch k {
	case TxnPush:
		return "push"
	case TxnPull:
		return "pull"
	case TxnPullData:
		return "pull data"
	}
	return "transaction " + strconv.Itoa(int(k))
}

// Errors of Push, Pull, RespondPull and Open.
var (
	// ErrXoff means that there is no room now. EvCredit follows when there is.
	ErrXoff = errors.New("falcon: no credit, wait for EvCredit")
	// ErrClosed means the connection has ended.
	ErrClosed = errors.New("falcon: connection closed")
	// ErrDraining means that the connection only finishes the transactions in progress.
	ErrDraining = errors.New("falcon: connection is draining")
	// ErrTooLong means that a length is negative, above the MTU of the connection or, for a
	// response, above what was requested.
	ErrTooLong = errors.New("falcon: length exceeds the limit")
	// ErrNoTransaction means that no pull with that RSN waits for an answer.
	ErrNoTransaction = errors.New("falcon: no such transaction")
	// ErrTooManyConns means that Config.MaxConns connections are open.
	ErrTooManyConns = errors.New("falcon: too many connections, raise MaxConns")
	// ErrCIDInUse means that the local CID belongs to an open connection.
	ErrCIDInUse = errors.New("falcon: local CID in use")
)

func configError(what string, value any, remedy string) error {
	return fmt.Errorf("falcon: %s is %v: %s", what, value, remedy)
}
