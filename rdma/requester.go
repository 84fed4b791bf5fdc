package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// requester is the sending half of a QP.
//
//	     head            next          tail      producer
//	──────┬───────────────┬─────────────┬───────────┬──
//	      │  with falcon  │ read, not   │ in guest  │
//	      │  (segments)   │ issued      │ memory    │
//
// Works complete in order at head. Each transaction with falcon is one segment; a transaction's tag
// names the segment's slot and the epoch, which moves on when the works are dropped. Works and
// segments are of the engine's pools.
type requester struct {
	e                *Engine
	works            []*work // ring
	head, next, tail uint32
	segments         []*segment // by slot, nil if it is free
	free             []uint16   // slots
	maxSGE           int
	maxInline        int
	epoch            uint32
	pushes, pulls    int    // segments with falcon
	reads            int    // READ and atomic works started and not completed
	sn               uint32 // RBTH sequence number of the next request
	rmsn             uint32 // of the next SEND or WRITE with immediate
	pullRMSN         uint32 // of the next READ or atomic request
}

// segment is one request packet with falcon.
type segment struct {
	work   uint32       // index of its work
	rnrs   uint8        // receiver-not-ready answers
	status abi.WCStatus // set by Fill when the data is not to be had
	opcode wire.Opcode
	sn     uint32
	rmsn   uint32
	offset uint32 // of the data in the message
	length uint32
	at     verbs.Cursor // of offset in the work's sges
}

func (r *requester) init(e *Engine, works uint32, maxSGE, maxInline int) {
	r.e, r.maxSGE, r.maxInline = e, maxSGE, maxInline
	r.works = make([]*work, works)
	r.segments = make([]*segment, maxPushes+maxPulls)
	r.free = make([]uint16, 0, len(r.segments))
	r.drop()
}

// drop takes all segments back. Falcon's answers to them are not recognised any more.
func (r *requester) drop() {
	r.epoch++
	r.pushes, r.pulls, r.reads = 0, 0, 0
	r.free = r.free[:0]
	for i, s := range r.segments {
		if s != nil {
			r.segments[i] = nil
			r.e.segments.put(s)
		}
		r.free = append(r.free, uint16(len(r.segments)-1-i))
	}
}

// forget drops the works too.
func (r *requester) forget() {
	r.drop()
	for ; r.head != r.tail; r.head++ {
		r.release(r.take(r.head))
	}
	r.head, r.next, r.tail = 0, 0, 0
}

// add gives the work at tail its place in the ring, with room for what the QP's requests may have.
func (r *requester) add() *work {
	w := r.e.works.get()
	if cap(w.sges) < r.maxSGE {
		w.sges = make(verbs.SGL, 0, r.maxSGE)
	}
	if cap(w.inline) < r.maxInline {
		w.inline = make([]byte, 0, r.maxInline)
	}
	*r.place(r.tail) = w
	r.tail++
	return w
}

// take empties a place of the ring. The work that had it must be released.
func (r *requester) take(index uint32) *work {
	at := r.place(index)
	w := *at
	*at = nil
	return w
}

func (r *requester) release(w *work) {
	clear(w.sges) // the pool must not keep regions alive
	*w = work{sges: w.sges[:0], inline: w.inline[:0]}
	r.e.works.put(w)
}

// nextSlot is the slot begin will use. There must be a free one.
func (r *requester) nextSlot() uint16 { return r.free[len(r.free)-1] }

// begin gives a segment its slot.
func (r *requester) begin(s *segment) *segment {
	kept := r.e.segments.get()
	*kept = *s
	r.segments[r.nextSlot()] = kept
	r.free = r.free[:len(r.free)-1]
	return kept
}

// end frees the slot of a segment and the segment.
func (r *requester) end(slot uint16) {
	r.e.segments.put(r.segments[slot])
	r.segments[slot] = nil
	r.free = append(r.free, slot)
}

// connect starts the numbering of a new connection (RDMA over Falcon §8.2, §8.3.2: all begin at 1).
func (r *requester) connect() { r.sn, r.rmsn, r.pullRMSN = 1, 1, 1 }

func (r *requester) place(index uint32) **work { return &r.works[index&uint32(len(r.works)-1)] }

func (r *requester) work(index uint32) *work { return *r.place(index) }

// tagged returns the segment a tag names, nil when it was dropped.
func (r *requester) tagged(tag uint64) *segment {
	i := uint32(tag)
	if uint32(tag>>32) != r.epoch || i >= uint32(len(r.segments)) {
		return nil
	}
	return r.segments[i]
}

// issue starts works and hands their segments to falcon until the turn's quantum is used up or
// something has to be waited for. It reports whether the quantum was the reason.
func (q *QP) issue(now falcon.Time) (more bool) {
	cfg := &q.fn.e.cfg
	f := q.fn
	ops, bytes := cfg.TurnOps, cfg.TurnBytes
	more = true
	for ops > 0 && bytes > 0 && f.flow.Left() && f.rate.Ready(now) <= now {
		n, started, ok := q.issueSegment(now)
		if started {
			ops--
		}
		if !ok {
			more = false
			break
		}
		bytes -= max(n, 1)
	}
	if r := &q.req; !more && q.state == abi.QPStateRTS && r.next == r.tail && r.tail-r.head < uint32(len(r.works)) {
		return q.watch(now)
	}
	q.sq.Commit()
	return more
}

// nextWork returns the next work to issue, nil when there is none.
func (q *QP) nextWork() *work {
	r := &q.req
	if r.next == r.tail {
		if r.tail-r.head == uint32(len(r.works)) || q.state != abi.QPStateRTS {
			return nil // a completion or a change of state wakes the QP
		}
		if _, ok := q.fetch(); !ok {
			return nil
		}
	}
	return r.work(r.next)
}

// issueSegment issues one segment of the next work and returns its data bytes; started says that it
// was the first. ok is false when nothing can be issued now.
func (q *QP) issueSegment(now falcon.Time) (n int, started, ok bool) {
	r := &q.req
	w := q.nextWork()
	switch {
	case w == nil:
		return 0, false, false
	case q.datagrams() && w.status == abi.WCSuccess && q.state == abi.QPStateRTS:
		return q.issueDatagram(now, w)
	case !w.started:
		if pass, ok := q.admitWork(now, w); !pass {
			return 0, ok, ok
		}
		q.start(w)
		started = true
	}
	if len(r.free) == 0 || w.pulls() && r.pulls >= int(q.attr.maxRdAtomic) || !w.pulls() && r.pushes >= maxPushes {
		return 0, started, false
	}
	s := segment{work: r.next, opcode: q.opcode(w), sn: r.sn, offset: w.offset, at: w.at}
	s.length = q.segmentLength(w)
	if !q.hand(now, w, &s, uint64(r.epoch)<<32|uint64(r.nextSlot())) {
		return 0, started, false
	}
	q.issued(w, r.begin(&s))
	return int(s.length), started, true
}

// admitWork looks at the next work, of which nothing was issued. pass says that it is the
// transport's turn. Works that concern this side only, and those that failed, end here; ok is then
// whether the next may follow at once.
func (q *QP) admitWork(now falcon.Time, w *work) (pass, ok bool) {
	r := &q.req
	if q.state != abi.QPStateRTS {
		return false, false // SQD
	}
	if q.tooLong(w) && w.status == abi.WCSuccess {
		w.status = abi.WCLocLenErr
	}
	switch {
	case w.status != abi.WCSuccess:
		// It fails in its turn; works behind it are not begun, unless it completes in error.
		if w.issued {
			return false, false
		}
		w.issued = true
		if q.cie {
			r.next++
		}
		q.complete(now)
		return false, q.cie
	case w.wqe.Flags&abi.SendFence != 0 && r.reads > 0, w.pulls() && r.reads >= int(q.attr.maxRdAtomic):
		return false, false
	case w.inside():
		return false, q.issueInside(now, w)
	}
	return true, true
}

// issueInside carries out a request that concerns this side only. A key becomes invalid when
// nothing before the request can use it any more. It reports whether the next request may follow at
// once.
func (q *QP) issueInside(now falcon.Time, w *work) bool {
	r := &q.req
	if w.wqe.Opcode == abi.OpLocalInv {
		if r.head != r.next {
			return false // a completion wakes the QP
		}
		w.status = q.fn.Invalidate(q.pd, &q.windows, w.wqe.Imm)
	} else {
		w.status = q.fn.Bind(q.pd, &q.windows, w.wqe.RKey, &w.bind)
	}
	w.started, w.issued = true, true
	goOn := w.status == abi.WCSuccess || q.cie
	if goOn {
		r.next++
	}
	q.complete(now)
	return goOn
}

// start gives a work that is to be sent its place among those before it.
func (q *QP) start(w *work) {
	r := &q.req
	w.started = true
	switch w.wqe.Opcode {
	case abi.OpSend, abi.OpSendImm, abi.OpSendInv, abi.OpWriteImm:
		w.rmsn = r.rmsn
		r.rmsn++
	}
	if w.pulls() {
		r.reads++
	}
}

// hand gives segment s of w to the transport. It reports false when that does not take it: now,
// where there is no credit, or at all.
func (q *QP) hand(now falcon.Time, w *work, s *segment, tag uint64) bool {
	var err error
	if op := s.opcode | q.service; w.pulls() {
		s.rmsn = q.req.pullRMSN
		err = q.conn.Pull(now, tag, op.HeaderLen(), wire.PullLength(op, int(s.length)))
	} else {
		s.rmsn = w.rmsn
		length := wire.PushLength(op, int(s.length))
		if s.opcode.Info().Last {
			err = q.conn.PushLast(now, tag, length) // the message waits for this acknowledgement
		} else {
			err = q.conn.Push(now, tag, length)
		}
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, falcon.ErrXoff):
		q.waitCredit = true
		q.fn.stats.CreditWaits++
	case errors.Is(err, falcon.ErrDraining): // its end is on the way, and flushes
	default: // closed, its event is on the way; or a length falcon does not take
		w.status, w.vendor, w.issued = abi.WCGeneralErr, vendorErr(falcon.CmplLocalRsrc, synNone), true
		if errors.Is(err, falcon.ErrClosed) {
			w.status = abi.WCRetryExcErr
		}
		q.complete(now)
	}
	return false
}

// issued books segment s of w, which the transport took.
func (q *QP) issued(w *work, s *segment) {
	if q.fn.Trace != nil {
		q.noteIssued(w, s)
	}
	r := &q.req
	r.sn++
	w.pending++
	if w.pulls() {
		r.pulls++
		r.pullRMSN++
		q.fn.stats.PullsTx++
		q.fn.spend(0)
	} else {
		r.pushes++
		q.fn.spend(int(s.length))
		q.fn.stats.PushesTx++
		q.fn.stats.BytesTx += uint64(s.length)
	}
	w.offset += s.length
	w.at.Advance(w.sges, s.length)
	if w.offset == w.length {
		w.issued = true
		r.next++
	}
}

// segmentLength is the data length of w's next segment: at most the connection's, and for a READ
// within one element of its scatter list (RDMA over Falcon §6.7).
func (q *QP) segmentLength(w *work) uint32 {
	n := min(w.length-w.offset, uint32(q.segment))
	if w.reads() && n > 0 {
		_, _, left := w.sges.At(w.at)
		n = min(n, left)
	}
	return n
}

// opcode is the wire opcode of w's next segment.
func (q *QP) opcode(w *work) wire.Opcode {
	first := w.offset == 0
	last := w.length-w.offset <= uint32(q.segment)
	pick := func(only, begin, middle, end wire.Opcode) wire.Opcode {
		switch {
		case first && last:
			return only
		case first:
			return begin
		case last:
			return end
		}
		return middle
	}
	switch w.wqe.Opcode {
	case abi.OpSendImm:
		return pick(wire.SendOnlyImm, wire.SendFirst, wire.SendMiddle, wire.SendLastImm)
	case abi.OpSendInv:
		return pick(wire.SendOnlyInv, wire.SendFirst, wire.SendMiddle, wire.SendLastInv)
	case abi.OpWrite:
		return pick(wire.WriteOnly, wire.WriteFirst, wire.WriteMiddle, wire.WriteLast)
	case abi.OpWriteImm:
		return pick(wire.WriteOnlyImm, wire.WriteFirst, wire.WriteMiddle, wire.WriteLastImm)
	case abi.OpRead, abi.OpReadInv:
		return wire.ReadRequest
	case abi.OpCmpSwap:
		return wire.CmpSwap
	case abi.OpFetchAdd:
		return wire.FetchAdd
	case abi.OpMaskedCmpSwap:
		return wire.MaskedCmpSwap
	case abi.OpMaskedFetchAdd:
		return wire.MaskedFetchAdd
	}
	return pick(wire.SendOnly, wire.SendFirst, wire.SendMiddle, wire.SendLast)
}
