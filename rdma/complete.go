package rdma

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// pushDone takes the completion of a push.
func (q *QP) pushDone(now falcon.Time, ev *falcon.Event) {
	s := q.req.tagged(ev.Tag)
	if s == nil {
		return
	}
	q.segmentDone(now, ev.Tag, s, completionStatus(ev.Code, syndrome(ev.ULPCode)), vendorErr(ev.Code, syndrome(ev.ULPCode)))
}

// pullDone takes the response to a pull, or its failure.
func (q *QP) pullDone(now falcon.Time, ev *falcon.Event) {
	s := q.req.tagged(ev.Tag)
	if s == nil {
		return
	}
	st, vendor := completionStatus(ev.Code, syndrome(ev.ULPCode)), vendorErr(ev.Code, syndrome(ev.ULPCode))
	if st == abi.WCSuccess {
		if st, vendor = q.takeResponse(s, ev.Data); st == notOurs {
			q.loseResponse(now, q.req.work(s.work))
			return
		}
	}
	q.segmentDone(now, ev.Tag, s, st, vendor)
}

// notOurs is what takeResponse says of a response for another QP than the connection's.
const notOurs abi.WCStatus = 0xff

// loseResponse drops a response silently (RDMA over Falcon §6.9). The QP lives on; its request is
// as one whose answer never comes, and fails when that is certain.
func (q *QP) loseResponse(now falcon.Time, w *work) {
	q.fn.stats.CIDMismatches++
	w.unanswered = true
	if !q.patience.Armed() && q.attr.timeout != 0 { // 0 is for ever
		q.fn.e.shared.Timers.Set(&q.patience, q, now+max(q.RetryTime(), patience))
	}
}

// takeResponse checks a pull response and places its data.
func (q *QP) takeResponse(s *segment, part []byte) (abi.WCStatus, uint32) {
	h := &q.fn.e.headers
	n, err := h.Parse(part)
	if err != nil {
		return abi.WCBadRespErr, 0
	}
	w := q.req.work(s.work)
	want := wire.AtomicResponse
	if s.opcode == wire.ReadRequest {
		want = wire.ReadRespOnly
		if op := h.RBTH.Opcode &^ q.service; op >= wire.ReadRespFirst && op <= wire.ReadRespOnly {
			want = op
		}
	}
	switch {
	case h.RBTH.DestQP != q.number:
		return notOurs, 0
	case h.RBTH.Opcode != want|q.service || h.RBTH.SN != s.sn:
		return abi.WCBadRespErr, 0
	}
	if h.RBTH.CE {
		return syndrome(h.RBTH.Syndrome).status(), vendorErr(falcon.CmplAck, syndrome(h.RBTH.Syndrome))
	}
	data, ok := h.RBTH.Data(part, n)
	if !ok {
		return abi.WCBadRespErr, 0
	}
	if want == wire.AtomicResponse {
		data = q.fn.e.shared.Entry[:8]
		binary.LittleEndian.PutUint64(data, h.AtomicAck.Original) // the guest's byte order
		return q.place(w, s, data)
	}
	if len(data) != int(s.length) {
		return abi.WCBadRespErr, 0
	}
	return q.place(w, s, data)
}

// place writes response data to the work's sink.
func (q *QP) place(w *work, s *segment, data []byte) (abi.WCStatus, uint32) {
	if err := w.sges.Scatter(s.at, data); err != nil {
		return abi.WCLocProtErr, 0
	}
	q.fn.stats.BytesRx += uint64(len(data))
	return abi.WCSuccess, 0
}

// segmentDone accounts for the end of s and completes what can be completed.
func (q *QP) segmentDone(now falcon.Time, tag uint64, s *segment, st abi.WCStatus, vendor uint32) {
	r := &q.req
	w := r.work(s.work)
	if q.fn.Trace != nil {
		q.noteAcked(w, s)
	}
	switch {
	case s.status != abi.WCSuccess:
		st = s.status // falcon reports what Fill said in its own words, or nothing where the request completes in error
	case st != abi.WCSuccess && q.leaving:
		st = abi.WCWRFlushErr
		if q.wired {
			st = abi.WCRetryExcErr
		}
	case st == abi.WCRetryExcErr && s.rnrs > 0:
		st = abi.WCRNRRetryExcErr // the peer answered, to the end, that it was not ready
	}
	if st != abi.WCSuccess && w.status == abi.WCSuccess {
		w.status, w.vendor = st, vendor
	}
	if s.opcode.Info().Kind == wire.KindPullRequest {
		r.pulls--
	} else {
		r.pushes--
	}
	r.end(uint16(tag))
	w.pending--
	q.complete(now)
	q.drained(now)
	q.wake()
}

// peerNotReady counts a receiver-not-ready answer; falcon sends the packet again by itself. RNR
// retry 7 is for ever. On an ordered connection those behind the message that the receiver is not
// ready for get the same answer (Falcon §8.5.3.4), which is not about them.
func (q *QP) peerNotReady(now falcon.Time, tag uint64) {
	s := q.req.tagged(tag)
	if s == nil {
		return
	}
	q.fn.stats.RNRRx++
	if q.ordered && s.work != q.req.oldestPush() {
		return
	}
	if s.rnrs < 255 {
		s.rnrs++
	}
	if retry := q.attr.rnrRetry; retry < 7 && s.rnrs > retry {
		w := q.req.work(s.work)
		if w.status == abi.WCSuccess {
			w.status = abi.WCRNRRetryExcErr
		}
		q.complete(now)
	}
}

// oldestPush is the index of the oldest work that waits for a push.
func (r *requester) oldestPush() uint32 {
	for i := r.head; i != r.tail; i++ {
		if w := r.work(i); !w.done && !w.pulls() && w.pending > 0 {
			return i
		}
	}
	return r.tail
}

// complete ends works in order, as far as they are done; in unordered mode those that are done, in
// any. The first one that failed moves the QP to ERR or SQE, unless its requests complete in error.
func (q *QP) complete(now falcon.Time) {
	r := &q.req
	for i := r.head; i != r.tail; i++ {
		w := r.work(i)
		if w.done {
			continue
		}
		over := w.issued && w.pending == 0
		if over && w.wqe.Opcode == abi.OpReadInv && w.status == abi.WCSuccess {
			w.status = q.fn.Invalidate(q.pd, &q.windows, w.wqe.Imm)
		}
		switch {
		case w.status != abi.WCSuccess && (w.issued || w.started) && !q.survives(w):
			st := w.status
			q.report(now, w, st)
			w.done = true
			q.retireWorks()
			q.failSend(now, st)
			return
		case over:
			if w.pulls() && w.started {
				r.reads--
			}
			q.report(now, w, w.status)
			w.done = true
			if !q.unordered {
				q.retireWorks()
			}
			if !q.serving() {
				return
			}
		case !q.unordered:
			return
		}
	}
	q.retireWorks()
}

// survives reports whether the failure of w is its own matter: not where requests do not complete
// in error, nor where the transport gave up or lost its place.
func (q *QP) survives(w *work) bool {
	switch w.status {
	case abi.WCRetryExcErr, abi.WCRNRRetryExcErr, abi.WCRespTimeoutErr, abi.WCBadRespErr, abi.WCGeneralErr:
		return false
	}
	return q.cie
}

// retireWorks takes the works at head that were reported out of the ring.
func (q *QP) retireWorks() {
	for r := &q.req; r.head != r.tail && r.work(r.head).done; {
		r.release(q.retireWork())
	}
}

// retireWork takes the work at head out of the ring.
func (q *QP) retireWork() *work {
	r := &q.req
	w := r.take(r.head)
	r.head++
	if r.next-r.head > r.tail-r.head {
		r.next = r.head // it failed before it was issued
	}
	return w
}

// finish takes the work at head out of the ring, with a completion unless it has one or succeeded
// unsignaled.
func (q *QP) finish(now falcon.Time, st abi.WCStatus) {
	w := q.retireWork()
	if !w.done {
		q.report(now, w, st)
	}
	q.req.release(w)
}

// report writes the completion of w, unless it succeeded unsignaled.
func (q *QP) report(now falcon.Time, w *work, st abi.WCStatus) {
	if st == abi.WCSuccess && !q.sigAll && w.wqe.Flags&abi.SendSignaled == 0 {
		if q.fn.Trace != nil {
			q.noteSilent(w)
		}
		return
	}
	if q.fn.Trace != nil {
		q.noteCompleting(w)
	}
	cqe := abi.CQE{
		WRID: w.wqe.WRID, QPN: q.number, SrcQP: q.peer, Status: st, Opcode: wcOpcode(w.wqe.Opcode), VendorErr: w.vendor,
	}
	if st == abi.WCSuccess && w.pulls() {
		cqe.ByteLen = w.length
	}
	if st == abi.WCSuccess && w.wqe.Opcode == abi.OpReadInv {
		cqe.Flags, cqe.Imm = abi.WCFlagInv, w.wqe.Imm
	}
	q.sendCQ.Post(now, &cqe, false)
}
