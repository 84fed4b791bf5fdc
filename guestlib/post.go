package guestlib

import (
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Operations of SendWR.
const (
	Write    = abi.OpWrite
	WriteImm = abi.OpWriteImm
	Send     = abi.OpSend
	SendImm  = abi.OpSendImm
	SendInv  = abi.OpSendInv
	Read     = abi.OpRead
	CmpSwap  = abi.OpCmpSwap
	FetchAdd = abi.OpFetchAdd

	ReadInv  = abi.OpReadInv  // READ, then invalidates Imm, a key of this side
	LocalInv = abi.OpLocalInv // invalidates Imm, a key of this side
	BindMW   = abi.OpBindMW   // binds the window whose new key is RKey; see MW.Bind

	AtomicWrite = abi.OpAtomicWrite // WRITE of the 8 bytes of Swap; no reader sees only a part of them

	MaskedCmpSwap  = abi.OpMaskedCmpSwap
	MaskedFetchAdd = abi.OpMaskedFetchAdd
)

// Flags of SendWR; may be combined.
const (
	Signaled  = abi.SendSignaled  // complete with a WC also on success
	Solicited = abi.SendSolicited // the peer's receive completion counts as solicited
	Fence     = abi.SendFence     // start after all earlier READs and atomics of this QP
)

// SendWR is a work request for the send queue.
type SendWR struct {
	ID     uint64 // returned in the WC
	Opcode Opcode
	Flags  uint8
	SGL    []SGE // data to send or write, or destination of a READ; atomics take one SGE of 8 bytes
	// Inline, if not nil, is the data instead of SGL. It may be any memory, is copied when the
	// request is posted, and may be reused at once. It is not allowed for READ and atomics.
	Inline []byte
	Imm    uint32 // immediate data, or the peer's key to invalidate (SendInv)

	RemoteAddr uint64 // WRITE, READ, atomics
	RKey       uint32
	CompareAdd uint64 // the value to compare (CmpSwap) or to add (FetchAdd), masked or not
	Swap       uint64 // value to store if the comparison holds (CmpSwap), masked or not, or always (AtomicWrite)

	// Masks of masked atomics (RFC 7306 §5). MaskedCmpSwap compares the bits of CompareMask and
	// swaps the bits of Mask. For MaskedFetchAdd each bit in Mask is the most significant bit of a
	// field; the carry out of a field is lost.
	CompareMask, Mask uint64

	RemoteSRQN uint32   // XRCSend: the SRQ of the peer
	AH         *AH      // UD: destination of the datagram; nil: To is used
	To         AHConfig // UD, without AH
	RemoteQPN  uint32   // UD
	RemoteQKey uint32   // UD
	Bind       Binding  // BindMW
}

// RecvWR is a work request for the receive queue.
type RecvWR struct {
	ID  uint64 // returned in the WC
	SGL []SGE  // memory for the message; may be empty for a WriteImm
}

// PostSend posts wr to the send queue. The QP must be connected. In SQD the work waits, in ERR it
// is flushed. PostSend returns ErrQueueFull if too much work is outstanding. wr may be reused at
// once, the memory in its SGL only after its completion. PostSend does not block and does not
// allocate.
func (q *QP) PostSend(wr *SendWR) error {
	if err := q.sends(); err != nil {
		return err
	}
	w := q.sq
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.encode(wr)
	if err != nil {
		return err
	}
	return w.push(q.dev.s.Load(), n, q.signals(wr))
}

// PostSends posts several requests in order, with at most one doorbell, like a list given to
// ibv_post_send. If a request fails, it returns the number of requests posted before it.
func (q *QP) PostSends(wrs []SendWR) (n int, err error) {
	if err := q.sends(); err != nil {
		return 0, err
	}
	w := q.sq
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(wrs) {
		var size int
		if size, err = w.encode(&wrs[n]); err != nil {
			break
		}
		if err = w.put(size, q.signals(&wrs[n])); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		if e := w.publish(q.dev.s.Load()); e != nil {
			return 0, e
		}
	}
	return n, err
}

// sends returns nil if the QP accepts send requests, otherwise the reason.
func (q *QP) sends() error {
	switch q.State() {
	case abi.QPStateRTS, abi.QPStateSQD, abi.QPStateSQE, abi.QPStateErr:
	default:
		return errNotConnected
	}
	if q.sq == nil {
		return errNoSends
	}
	return nil
}

// signals returns what to remember about a posted request.
func (q *QP) signals(wr *SendWR) posted {
	return posted{id: wr.ID, signaled: q.sigAll || wr.Flags&Signaled != 0}
}

// encode writes a send request to w.entry and returns its length. The caller holds mu.
func (w *workQueue) encode(wr *SendWR) (n int, err error) {
	e := abi.SendWQE{
		WRID: wr.ID, Opcode: wr.Opcode, Flags: wr.Flags &^ abi.SendInline, Imm: wr.Imm,
		RemoteAddr: wr.RemoteAddr, RKey: wr.RKey, CompareAdd: wr.CompareAdd, Swap: wr.Swap, RemoteSRQN: wr.RemoteSRQN,
	}
	e.RemoteQPN, e.RemoteQKey = wr.RemoteQPN, wr.RemoteQKey
	if wr.AH != nil {
		e.AHN = wr.AH.ahn
	}
	if err := w.room(); err != nil {
		return 0, err
	}
	n = abi.SendWQESize
	switch {
	case wr.Inline != nil:
		if len(wr.Inline) > w.maxData || len(wr.SGL) != 0 {
			return 0, errInline
		}
		e.Flags |= abi.SendInline
		e.InlineLen = uint32(len(wr.Inline))
		n += copy(w.entry[n:], wr.Inline)
	case len(wr.SGL) > w.maxSGE:
		return 0, errSGL
	case wr.Opcode == MaskedCmpSwap || wr.Opcode == MaskedFetchAdd:
		if len(wr.SGL) != 1 {
			return 0, errMaskedSGL
		}
		(&abi.AtomicMasks{SwapAdd: wr.Mask, Compare: wr.CompareMask}).Marshal(w.entry[n:])
		e.NumSGE = 1
		n = putSGL(w.entry, n+abi.AtomicMasksSize, wr.SGL)
	case wr.Opcode == BindMW:
		if len(w.entry) < n+abi.BindMWSize {
			return 0, errBindRoom
		}
		wr.Bind.Marshal(w.entry[n:])
		n += abi.BindMWSize
	default:
		e.NumSGE = uint8(len(wr.SGL))
		n = putSGL(w.entry, n, wr.SGL)
	}
	if wr.AH != nil || wr.To.GID == (GID{}) {
		e.Marshal(w.entry)
		return n, nil
	}
	(&abi.DatagramWQE{
		WRID: e.WRID, Opcode: e.Opcode, Flags: e.Flags, NumSGE: e.NumSGE, Imm: e.Imm, InlineLen: e.InlineLen, RemoteQPN: e.RemoteQPN, RemoteQKey: e.RemoteQKey,
		DGID: wr.To.GID, TrafficClass: wr.To.TrafficClass, HopLimit: wr.To.HopLimit, FlowLabel: wr.To.FlowLabel, SL: wr.To.SL,
	}).Marshal(w.entry)
	return n, nil
}

// PostRecv posts wr to the receive queue. It returns ErrQueueFull if too much work is outstanding.
// wr may be reused at once, the memory in its SGL only after its completion. PostRecv does not
// block and does not allocate.
func (q *QP) PostRecv(wr *RecvWR) error {
	if q.rq == nil {
		return errNoReceives
	}
	return q.rq.receive(q.dev.s.Load(), wr)
}

// receive posts a receive.
func (w *workQueue) receive(s *stream, wr *RecvWR) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.room(); err != nil {
		return err
	}
	if len(wr.SGL) > w.maxSGE {
		return errSGL
	}
	e := abi.RecvWQE{WRID: wr.ID, NumSGE: uint8(len(wr.SGL))}
	e.Marshal(w.entry)
	return w.push(s, putSGL(w.entry, abi.RecvWQESize, wr.SGL), posted{id: wr.ID, signaled: true})
}

// putSGL writes sgl to b from offset at on and returns the offset behind it.
func putSGL(b []byte, at int, sgl []SGE) int {
	for i := range sgl {
		sgl[i].Marshal(b[at:])
		at += abi.SGESize
	}
	return at
}

var (
	errNotConnected = stateError("QP is not connected: use Connect or Accept first")
	errInline       = invalid("inline data longer than the QP's MaxInline, or together with an SGL")
	errNoSends      = invalid("an XRC target sends nothing")
	errNoReceives   = invalid("the QP has no receive queue of its own: post to its SRQ")
	errBindRoom     = invalid("the QP's entries are too short for BindMW: make it with an SGE")
	errMaskedSGL    = invalid("a masked atomic takes one SGE")
	errSGL          = invalid("more SGEs than the QP was made for")
)
