package rdma

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
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
	x := &w.WQE
	a := q.fn.AH(x.AHN)
	switch {
	case x.Opcode != abi.OpSend && x.Opcode != abi.OpSendImm,
		x.RemoteQPN >= groupQPN,
		a == nil || a.PD() != q.pd:
		return abi.WCLocQPOpErr
	case int(w.Length) > q.fn.Limits().MTU:
		return abi.WCLocLenErr
	}
	w.link = q.fn.carrier(a, q.Ordered())
	return abi.WCSuccess
}

// issueDatagram is issueSegment for the work at next, which is sound: the work's link takes its
// datagram, or it is lost.
func (q *QP) issueDatagram(now vtime.Time, w *work) (n int, started, ok bool) {
	l := w.link
	switch l.want(now); {
	case l.loses(w):
		q.fn.Account.DatagramsLost++
	case !l.room(now, q):
		return 0, false, false
	case l.loses(w): // it was what room had to be made of
		q.fn.Account.DatagramsLost++
	case !l.take(now, q, w):
		w.Status = abi.WCLocProtErr
	default:
		n = int(w.Length)
		q.fn.spend(n)
	}
	w.started, w.Issued = true, true
	q.req.next++
	q.complete(now)
	return n, true, true
}

// receiveDatagram delivers a datagram to the next receive, behind the room for
// the GRH.
func (q *QP) receiveDatagram(now vtime.Time, l *Link, d *transport.Datagram, data []byte, id uint32) {
	v := q.receiveFor(q.rsp.message)
	total := grhSize + len(data)
	switch {
	case v == nil:
		q.fn.Account.DatagramsLost++
		return
	case v.Status != abi.WCSuccess:
		st := v.Status
		q.failReceive(now, v, st)
		return
	case uint64(total) > v.Capacity: // the receive stays for one that fits
		q.fn.Account.DatagramsLost++
		return
	}
	cqe := abi.CQE{
		ByteLen: uint32(total), SrcQP: d.From, Opcode: abi.WCOpRecv, Flags: abi.WCFlagGRH, SL: l.packetType(),
	}
	if d.HasImm {
		cqe.Flags |= abi.WCFlagImm
		cqe.Imm = d.Imm
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
	q.rsp.message++
	q.fn.Account.PushesRx++
	q.fn.Account.BytesRx += uint64(len(data))
	if q.traced() {
		l.conn.NoteDelivered(d, id)
		q.noteReceiving(l.conn.ID(), id)
	}
	q.completeRecv(now, v, &cqe, d.Solicited)
}

// failReceive completes a receive whose own entry or memory is at fault, which costs the queue pair
// unless it completes in error.
func (q *QP) failReceive(now vtime.Time, v *verbs.Receive, st abi.WCStatus) {
	q.rsp.message++
	q.finishRecv(now, v, st)
	if !q.cie {
		q.fail(now, st, "receive work request failed: "+st.String())
	}
}
