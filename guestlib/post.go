package guestlib

import (
	"fmt"
	"sync"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
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
	if err := q.checkSends(); err != nil {
		return err
	}
	w := q.sq
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.encode(wr)
	if err != nil {
		return err
	}
	return w.push(q.dev.stream.Load(), n, q.posted(wr))
}

// PostSends posts several requests in order, with at most one doorbell, like a list given to
// ibv_post_send. If a request fails, it returns the number of requests posted before it.
func (q *QP) PostSends(wrs []SendWR) (n int, err error) {
	if err := q.checkSends(); err != nil {
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
		if err = w.put(size, q.posted(&wrs[n])); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		if e := w.publish(q.dev.stream.Load()); e != nil {
			return 0, e
		}
	}
	return n, err
}

// checkSends returns nil if the QP accepts send requests, otherwise the reason.
func (q *QP) checkSends() error {
	switch q.State() {
	case abi.QPStateRTS, abi.QPStateSQD, abi.QPStateSQE, abi.QPStateErr:
	default:
		return stateError("QP %d is in %s; connect or wire it first", q.qpn, q.State())
	}
	if q.sq == nil {
		return invalid("QP %d is an XRC target, which sends nothing", q.qpn)
	}
	return nil
}

// posted returns what to remember about a posted request.
func (q *QP) posted(wr *SendWR) posted {
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
		switch {
		case len(wr.SGL) != 0:
			return 0, w.invalid("a request with inline data and an SGL")
		case len(wr.Inline) > w.maxData:
			return 0, w.invalid("%d bytes inline; it was made for %d", len(wr.Inline), w.maxData)
		}
		e.Flags |= abi.SendInline
		e.InlineLen = uint32(len(wr.Inline))
		n += copy(w.entry[n:], wr.Inline)
	case len(wr.SGL) > w.maxSGE:
		return 0, w.tooManySGEs(wr.SGL)
	case wr.Opcode == MaskedCmpSwap || wr.Opcode == MaskedFetchAdd:
		if len(wr.SGL) != 1 {
			return 0, w.invalid("a masked atomic with %d SGEs; it takes one", len(wr.SGL))
		}
		(&abi.AtomicMasks{SwapAdd: wr.Mask, Compare: wr.CompareMask}).Marshal(w.entry[n:])
		e.NumSGE = 1
		n = putSGL(w.entry, n+abi.AtomicMasksSize, wr.SGL)
	case wr.Opcode == BindMW:
		if len(w.entry) < n+abi.BindMWSize {
			return 0, w.invalid("its entries are too short for BindMW: make it with an SGE")
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
		return invalid("QP %d has no receive queue of its own: post to its SRQ", q.qpn)
	}
	return q.rq.receive(q.dev.stream.Load(), wr)
}

// receive posts a receive.
func (w *workQueue) receive(s *stream, wr *RecvWR) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.room(); err != nil {
		return err
	}
	if len(wr.SGL) > w.maxSGE {
		return w.tooManySGEs(wr.SGL)
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

// workQueue is a send or receive queue. Besides the ring it keeps the requests that were posted and
// not completed. As with verbs, a slot is free when its completion, or that of a later work request
// of the queue, was polled. The list also detects completions that match no posted request.
type workQueue struct {
	mu     sync.Mutex
	dead   bool
	idle   bool   // the QP is in RESET, or on its way there
	always bool   // ring for every change, because the event index is not used
	next   uint32 // index of the next work request
	oldest uint32 // index of the oldest one not completed
	ring   ring.Producer
	entry  []byte   // scratch for one entry
	posted []posted // by index modulo entries; nil for a shared queue, whose completions have no order
	rung   uint64   // number of doorbells for posts

	maxSGE  int
	maxData int // largest inline data in bytes, send queues only

	anyOrder bool // completions come in any order (Ordering Unordered)

	bell   bell
	area   area
	layout ring.Layout
}

type posted struct {
	id       uint64
	signaled bool
	done     bool // completed before older requests
}

func newWorkQueue(d *Device, log2, log2Stride uint8, kind abi.DoorbellKind) (*workQueue, error) {
	layout := ring.QueueLayout(log2, log2Stride)
	mem, err := newArea(d.pool, layout)
	if err != nil {
		return nil, err
	}
	return &workQueue{
		area:   mem,
		layout: layout,
		ring:   *ring.NewProducer(ring.Mem(mem.block.Bytes()), layout),
		bell:   bell{record: abi.Doorbell{Kind: kind}},
		entry:  make([]byte, layout.Stride()),
		posted: make([]posted, layout.Entries()),
		always: d.learned.Load().info.Features&abi.FeatureEventIndex == 0,
	}, nil
}

// invalid is the error of a request that the queue does not take.
func (w *workQueue) invalid(format string, args ...any) error {
	of := "QP"
	if w.bell.record.Kind == abi.DoorbellSRQ {
		of = "SRQ"
	}
	return invalid("%s %d: %s", of, w.bell.record.Queue, fmt.Sprintf(format, args...))
}

func (w *workQueue) tooManySGEs(sgl []SGE) error {
	return w.invalid("%d SGEs; it was made for %d", len(sgl), w.maxSGE)
}

// room returns nil if one more work request can be posted. The caller holds mu.
func (w *workQueue) room() error {
	switch {
	case w.dead:
		return ErrClosed
	case w.idle: // DRV-601
		return stateError("QP %d is in %s", w.bell.record.Queue, abi.QPStateReset)
	case w.posted != nil && w.next-w.oldest == w.layout.Entries():
		return ErrQueueFull
	}
	return nil
}

// push posts the first n bytes of entry. It rings unless the device is polling the queue (DRV-604).
// The caller holds mu and has checked room.
func (w *workQueue) push(s *stream, n int, p posted) error {
	if err := w.put(n, p); err != nil {
		return err
	}
	return w.publish(s)
}

// put writes the first n bytes of entry to the next slot. The device does not see it before
// publish.
func (w *workQueue) put(n int, p posted) error {
	if err := w.ring.Push(w.entry[:n]); err != nil {
		if err == ring.ErrFull {
			return ErrQueueFull
		}
		return protocolError("consumer index of a work queue: %v", err)
	}
	if w.posted != nil {
		w.posted[w.next&(w.layout.Entries()-1)] = p
	}
	w.next++
	return nil
}

// publish makes the entries of put visible to the device, and rings if needed.
func (w *workQueue) publish(s *stream) error {
	index, need, err := w.ring.Publish()
	if err != nil {
		return protocolError("work queue: %v", err)
	}
	if need || w.always {
		w.rung++
		s.ring(&w.bell, index)
	}
	return nil
}

// complete removes the requests that a completion with that id completes. Requests complete in
// posting order; unsignaled requests before it succeeded and are removed too.
func (w *workQueue) complete(id uint64, ok bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.anyOrder {
		return w.completeAny(id)
	}
	for i := w.oldest; i != w.next; i++ {
		p := w.posted[i&(w.layout.Entries()-1)]
		if p.id == id && (p.signaled || !ok) {
			w.oldest = i + 1
			return nil
		}
		if p.signaled {
			return fmt.Errorf("completion of work request %d, where %d comes first", id, p.id)
		}
	}
	return fmt.Errorf("completion of work request %d, which is not outstanding", id)
}

// completeAny is complete for queues whose completions come in any order. All their requests are
// signaled.
func (w *workQueue) completeAny(id uint64) error {
	mask := w.layout.Entries() - 1
	for i := w.oldest; i != w.next; i++ {
		if p := &w.posted[i&mask]; p.id == id && !p.done {
			p.done = true
			for w.oldest != w.next && w.posted[w.oldest&mask].done {
				w.oldest++
			}
			return nil
		}
	}
	return fmt.Errorf("completion of work request %d, which is not outstanding", id)
}

// taken returns the consumer index in memory: the number of work requests that the device has read.
func (w *workQueue) taken() (uint32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return 0, ErrClosed
	}
	return ring.Mem(w.area.block.Bytes()).Load32(abi.QueueHeaderConsumer)
}

// stop makes the queue refuse work.
func (w *workQueue) stop(s *stream) { w.change(s, func() { w.dead = true }) }

// resume undoes stop.
func (w *workQueue) resume(s *stream) { w.change(s, func() { w.dead = false }) }

// rest makes the queue refuse work while the QP goes to RESET and is there.
func (w *workQueue) rest(s *stream) { w.change(s, func() { w.idle = true }) }

// unrest undoes rest.
func (w *workQueue) unrest(s *stream) { w.change(s, func() { w.idle = false }) }

// change changes whether the queue refuses work. Its doorbell is muted while it does.
func (w *workQueue) change(s *stream, set func()) {
	if w == nil {
		return // the QP has no such queue
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if set(); w.dead || w.idle {
		s.mute(&w.bell)
		return
	}
	s.unmute(&w.bell)
	if w.next != 0 {
		s.ring(&w.bell, w.ring.Next()) // a doorbell may have been dropped
	}
}

// restart empties a queue that rests: the device begins at index 0 again (DRV-601).
func (w *workQueue) restart(s *stream) {
	if w == nil {
		return // the QP has no such queue
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return // the memory may be freed
	}
	mem := w.area.block.Bytes()
	clear(mem[:abi.QueueHeaderSize])
	w.ring = *ring.NewProducer(ring.Mem(mem), w.layout)
	w.next, w.oldest = 0, 0
	s.rewind(&w.bell)
}

// free frees the memory. The queue must have been stopped.
func (w *workQueue) free() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.area.free()
}
