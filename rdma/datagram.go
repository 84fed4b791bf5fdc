package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Queue pairs of the unreliable datagram service. They have no connection of their own: each work
// request names an address handle, whose link carries it in one packet. It completes, successfully,
// when the link took it (outgoing.go) or it cannot arrive; only errors of its own entry and memory
// are errors, which move the QP to SQE.

// datagrams reports whether the QP is of the datagram service.
func (q *QP) datagrams() bool { return q.typ == abi.QPTypeUD || q.typ == abi.QPTypeGSI }

// gsiNumber is the number of the general services interface's queue pair, one per function, for
// connection management between the kernels of guests.
const gsiNumber = 1

// groupQPN is the number that stands for a multicast group.
const groupQPN = 0xffffff

// checkDatagram looks at what is particular to datagrams in a work request whose length is known.
func (q *QP) checkDatagram(w *work) abi.WCStatus {
	x := &w.wqe
	a := q.fn.AH(x.AHN)
	switch {
	case x.Opcode != abi.OpSend && x.Opcode != abi.OpSendImm,
		x.RemoteQPN > wire.QPNMask || x.RemoteQPN == groupQPN,
		a == nil || a.PD() != q.pd:
		return abi.WCLocQPOpErr
	case int(w.length) > q.fn.Limits().MTU:
		return abi.WCLocLenErr
	}
	w.link = q.fn.carrier(a, q.Ordered())
	return abi.WCSuccess
}

// issueDatagram is issueSegment for the work at next, which is sound: the work's link takes its
// datagram, or it is lost.
func (q *QP) issueDatagram(now falcon.Time, w *work) (n int, started, ok bool) {
	l := w.link
	switch l.want(now); {
	case l.loses(w):
		q.fn.stats.DatagramsLost++
	case !l.room(now, q):
		return 0, false, false
	case l.loses(w): // it was what room had to be made of
		q.fn.stats.DatagramsLost++
	case !l.take(now, q, w):
		w.status = abi.WCLocProtErr
	default:
		n = int(w.length)
		q.fn.spend(n)
	}
	w.started, w.issued = true, true
	q.req.next++
	q.complete(now)
	return n, true, true
}

// receiveDatagram delivers the datagram of transaction rsn to the next receive, behind the room for
// the GRH.
func (q *QP) receiveDatagram(now falcon.Time, l *Link, rsn uint32, h *wire.Headers, data []byte) {
	v := q.receiveFor(q.rsp.rmsn)
	total := grhSize + len(data)
	switch {
	case v == nil:
		q.fn.stats.DatagramsLost++
		return
	case v.Status != abi.WCSuccess:
		st := v.Status
		q.failReceive(now, v, st)
		return
	case uint64(total) > v.Capacity: // the receive stays for one that fits
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
	var c verbs.Cursor
	err := v.SGEs.Scatter(c, grh[:])
	if err == nil {
		c.Advance(v.SGEs, grhSize)
		err = v.SGEs.Scatter(c, data)
	}
	if err != nil {
		q.failReceive(now, v, abi.WCLocProtErr)
		return
	}
	q.rsp.rmsn++
	q.fn.stats.PushesRx++
	q.fn.stats.BytesRx += uint64(len(data))
	if q.fn.Trace != nil {
		q.noteDelivered(l.conn, rsn, h.RBTH.Opcode, uint32(len(data)), trace.Wanted)
		q.noteReceiving(l.conn, rsn)
	}
	q.completeRecv(now, v, &cqe, h.RBTH.Solicited)
}

// failReceive completes a receive whose own entry or memory is at fault, which costs the queue pair
// unless it completes in error.
func (q *QP) failReceive(now falcon.Time, v *verbs.Receive, st abi.WCStatus) {
	q.rsp.rmsn++
	q.finishRecv(now, v, st)
	if !q.cie {
		q.fail(now, st, "receive work request failed: "+st.String())
	}
}
