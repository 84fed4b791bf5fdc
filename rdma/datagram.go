package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Queue pairs of the unreliable datagram service. They have no connection of their own: each work request names an
// address handle, whose link carries it in one packet. It completes, successfully, when it left or cannot arrive; only
// errors of its own entry and memory are errors, which move the QP to SQE.

// datagrams reports whether the QP is of the datagram service.
func (q *QP) datagrams() bool { return q.typ == abi.QPTypeUD || q.typ == abi.QPTypeGSI }

// gsiNumber is the number of the general services interface's queue pair, one per function, for connection management
// between the kernels of guests.
const gsiNumber = 1

// groupQPN is the number that stands for a multicast group.
const groupQPN = 0xffffff

// checkDatagram looks at what is particular to datagrams in a work request whose length is known.
func (q *QP) checkDatagram(w *work) abi.WCStatus {
	x := &w.wqe
	a := q.fn.ahs.get(x.AHN)
	switch {
	case x.Opcode != abi.OpSend && x.Opcode != abi.OpSendImm,
		x.RemoteQPN > wire.QPNMask || x.RemoteQPN == groupQPN,
		a == nil || a.pd != q.pd:
		return abi.WCLocQPOpErr
	case int(w.length) > q.fn.limits.MTU:
		return abi.WCLocLenErr
	}
	w.link = a.link(q.Ordered())
	return abi.WCSuccess
}

// issueDatagram is issueSegment for the work at next, which is sound.
func (q *QP) issueDatagram(now falcon.Time, w *work) (n int, started, ok bool) {
	r, l := &q.req, w.link
	switch l.want(now); l.state {
	case linkWanted:
		l.block(q)
		return 0, false, false
	case linkOpen:
		if len(r.free) == 0 || r.pushes >= maxPushes {
			return 0, false, false // a completion wakes the QP
		}
	}
	if l.state != linkOpen || int(w.length) > l.segment {
		q.fn.stats.DatagramsLost++
		w.started, w.issued = true, true
		r.next++
		q.complete(now)
		return 0, true, true
	}
	op := wire.UDSendOnly
	if w.wqe.Opcode == abi.OpSendImm {
		op = wire.UDSendOnlyImm
	}
	s := segment{work: r.next, opcode: op, sn: l.sn, length: w.length}
	switch err := l.conn.PushLast(now, linkTag(q, r.nextSlot()), wire.PushLength(op, int(w.length))); {
	case err == nil:
	case errors.Is(err, falcon.ErrXoff):
		l.block(q)
		q.fn.stats.CreditWaits++
		return 0, false, false
	default: // closed, its event is on the way
		l.state = linkIdle
		return 0, false, true
	}
	kept := r.begin(&s)
	if q.fn.trace != nil {
		q.noteIssued(w, kept)
	}
	l.sn++
	w.started, w.issued, w.offset = true, true, w.length
	w.pending++
	r.pushes++
	r.next++
	q.fn.stats.PushesTx++
	q.fn.stats.BytesTx += uint64(w.length)
	return int(w.length), true, true
}

// fillDatagram writes the packet of s.
func (q *QP) fillDatagram(s *segment, w *work, dst []byte) (int, error) {
	x, h := &w.wqe, &q.fn.e.headers
	*h = wire.Headers{RBTH: wire.RBTH{
		Opcode: s.opcode, DestQP: x.RemoteQPN, SN: s.sn, Pad: uint8(wire.PadLen(int(s.length))),
		Solicited: x.Flags&abi.SendSolicited != 0,
	}}
	h.Datagram = wire.DETH{QKey: x.RemoteQKey, SourceQP: q.number}
	if x.RemoteQKey&abi.QKeyControlled != 0 {
		h.Datagram.QKey = q.attr.qkey // a program may use a controlled Q_Key only through its QP's (InfiniBand §10.2.5)
	}
	h.Imm.Data = x.Imm
	return q.fillData(h, s, w, int(s.length), dst)
}

// datagramDone takes the end of a datagram. Whether it arrived is not the sender's to know.
func (q *QP) datagramDone(now falcon.Time, tag uint64) {
	if s := q.req.tagged(tag); s != nil {
		q.segmentDone(now, tag, s, s.status, 0)
	}
}

// receiveDatagram delivers the datagram of transaction rsn to the next receive, behind the room for the GRH.
func (q *QP) receiveDatagram(now falcon.Time, l *Link, rsn uint32, h *wire.Headers, data []byte) {
	v := q.receiveFor(q.rsp.rmsn)
	total := grhSize + len(data)
	switch {
	case v == nil:
		q.fn.stats.DatagramsLost++
		return
	case v.status != abi.WCSuccess:
		st := v.status
		q.failReceive(now, v, st)
		return
	case uint64(total) > v.capacity: // the receive stays for one that fits
		q.fn.stats.DatagramsLost++
		return
	}
	cqe := abi.CQE{
		ByteLen: uint32(total), SrcQP: h.Datagram.SourceQP, Opcode: abi.WCOpRecv, Flags: abi.WCFlagGRH, SL: l.packetType(),
	}
	if h.RBTH.Opcode == wire.UDSendOnlyImm {
		cqe.Flags |= abi.WCFlagImm
		cqe.Imm = h.Imm.Data
	}
	grh := &q.fn.e.grh
	l.putGRH(grh, len(data))
	var c cursor
	err := scatter(v.sges, c, grh[:])
	if err == nil {
		c.advance(v.sges, grhSize)
		err = scatter(v.sges, c, data)
	}
	if err != nil {
		q.failReceive(now, v, abi.WCLocProtErr)
		return
	}
	q.rsp.rmsn++
	q.fn.stats.PushesRx++
	q.fn.stats.BytesRx += uint64(len(data))
	if q.fn.trace != nil {
		q.noteDelivered(l.conn, rsn, h.RBTH.Opcode, uint32(len(data)), trace.Wanted)
		q.noteReceiving(l.conn, rsn)
	}
	q.completeRecv(now, v, &cqe, h.RBTH.Solicited)
}

// failReceive completes a receive whose own entry or memory is at fault, which costs the queue pair unless it completes in error.
func (q *QP) failReceive(now falcon.Time, v *receive, st abi.WCStatus) {
	q.rsp.rmsn++
	q.finishRecv(now, v, st)
	if !q.cie {
		q.fail(now, st, "receive work request failed: "+st.String())
	}
}
