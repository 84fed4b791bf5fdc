package verbs

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Queue pairs of the unreliable datagram service have no connection of their own. Each work request
// names an address handle, whose destination takes it as one packet. The request completes
// successfully when the destination has taken it or when it cannot arrive. Only an error in its own
// entry or memory is an error; it moves the QP to SQE.

// datagramSender is the sending side of a queue pair of the datagram service.
type datagramSender struct {
	q       *QP
	last    *AH         // of the last datagram that contained its address
	blocked Destination // that the QP waits for
}

// check checks what is specific to datagrams in a work request whose length is known.
func (d *datagramSender) check(now vtime.Time, w *SendWR, entry []byte) (abi.WCStatus, Reason) {
	q := d.q
	x := &w.WQE
	switch {
	case x.Opcode != abi.OpSend && x.Opcode != abi.OpSendImm:
		return abi.WCLocQPOpErr, because("opcode %d is none of a QP for datagrams", uint64(x.Opcode))
	case x.RemoteQPN > abi.GroupQPN:
		return abi.WCLocQPOpErr, because("QP %#x is none: numbers have 24 bits", uint64(x.RemoteQPN))
	case int(w.Length) > q.owner.Limits().MTU:
		return abi.WCLocLenErr, because("a datagram of %d bytes does not fit the MTU, %d", uint64(w.Length), uint64(q.owner.Limits().MTU))
	case x.AHN == 0:
		w.to = d.destination(now, entry, x.RemoteQPN)
	default:
		if a := q.in.ahs.AH(x.AHN); a != nil && a.pd == q.pd && a.to.leads(x.RemoteQPN) {
			w.to = q.in.ahs.destination(a, q.Ordered())
		}
	}
	switch {
	case w.to != nil:
		return abi.WCSuccess, Reason{}
	case x.AHN == 0:
		return abi.WCLocQPOpErr, because("its address is impossible, or leads to no QP %#x", uint64(x.RemoteQPN))
	}
	return abi.WCLocQPOpErr, because("address handle %#x is none of the QP's protection domain, or leads to no QP %#x", uint64(x.AHN), uint64(x.RemoteQPN))
}

// destination returns the destination of a datagram whose entry contains the address vector, nil if
// the vector is invalid. An address that the last datagram had too is found without a look-up.
func (d *datagramSender) destination(now vtime.Time, entry []byte, qpn uint32) Destination {
	q := d.q
	x := &q.shared.address
	x.Unmarshal(entry)
	path, st := pathOf(x.FlowLabel, x.TrafficClass, x.HopLimit, x.SL, x.VLAN)
	sgid, has := q.owner.GID(x.SGIDIndex)
	to := Address{GID: x.DGID, SGID: sgid, Path: path}
	switch {
	case st != abi.StatusOK || !has || !to.leads(qpn):
		return nil
	case d.last == nil || d.last.to != to || d.last.gone:
		d.last = q.in.ahs.standing(now, to)
	}
	return q.in.ahs.destination(d.last, q.Ordered())
}

// issue does the work of issuePacket for the valid work at next: its destination takes the
// datagram, or the datagram is lost.
func (d *datagramSender) issue(now vtime.Time, w *SendWR) (n int, started, ok bool) {
	q := d.q
	x := &w.WQE
	out := &q.shared.datagram
	*out = Datagram{
		Datagram: transport.Datagram{
			To: x.RemoteQPN, From: q.number, QKey: x.RemoteQKey, Imm: x.Imm, HasImm: x.Opcode == abi.OpSendImm,
			Solicited: x.Flags&abi.SendSolicited != 0, Length: int(w.Length), Work: w.Index,
		},
		SGEs: w.SGEs, From: d,
	}
	if x.RemoteQKey&abi.QKeyControlled != 0 {
		out.QKey = q.attr.qkey // a program may use a controlled Q_Key only through its QP's (InfiniBand §10.2.5)
	}
	if x.Flags&abi.SendInline != 0 {
		out.SGEs, out.Inline = nil, w.Inline
	}
	switch w.to.Send(now, out) {
	case Taken:
		n = int(w.Length)
		q.sched.Spend(n)
	case Lost:
		q.owner.Account.DatagramsLost++
	case Full:
		return 0, false, false
	case Unreadable:
		w.Status = abi.WCLocProtErr
	}
	w.started, w.Issued = true, true
	q.req.next++
	q.complete(now)
	return n, true, true
}

// Wait implements Waiter.
func (d *datagramSender) Wait(c Destination) (news bool) {
	news = d.blocked != c
	d.blocked, d.q.waitCredit = c, true
	return news
}

// Resume implements Waiter.
func (d *datagramSender) Resume(c Destination) {
	if d.blocked == c {
		d.blocked, d.q.waitCredit = nil, false
		d.q.wake()
	}
}

// Arrival is a received datagram.
type Arrival struct {
	*transport.Datagram
	Data []byte
	GRH  *[GRHSize]byte         // written before the data
	SL   uint8                  // service level for the completion
	Conn transport.DatagramConn // connection that it arrived on
	ID   uint32                 // its number on that connection, for traces
}

// GRHSize is the size of the GRH before the data of a received datagram (abi.GRHSize).
const GRHSize = 40

// Deliver gives a datagram to its queue pair. A datagram that cannot be delivered is dropped
// without telling the sender or the receiver (InfiniBand §9.8.3). Only the counters show it.
func (t *QPs) Deliver(now vtime.Time, d *Arrival) { t.deliver(now, t.QP(d.To), d) }

func (t *QPs) deliver(now vtime.Time, q *QP, d *Arrival) {
	switch {
	case len(d.Data) > t.owner.limits.MTU, !t.owner.Working(), q == nil || !q.datagrams() || !q.Serving() || q.recvCQ.Broken():
		t.owner.Account.DatagramsLost++
	case q.attr.qkey != d.QKey:
		t.owner.Stats.BadQKeys++
	default:
		q.receiveDatagram(now, d)
	}
}

// receiveDatagram writes a datagram to the next receive, behind the GRH.
func (r *responder) receiveDatagram(now vtime.Time, d *Arrival) {
	q := r.q
	v := r.receiveFor(r.rsp.message)
	total := GRHSize + len(d.Data)
	switch {
	case v == nil:
		q.owner.Account.DatagramsLost++
		return
	case v.Status != abi.WCSuccess:
		st := v.Status
		r.failReceive(now, v, st)
		return
	case uint64(total) > v.Capacity: // the receive stays for a datagram that fits
		q.owner.Account.DatagramsLost++
		return
	}
	cqe := abi.CQE{
		ByteLen: uint32(total), SrcQP: d.From, Opcode: abi.WCOpRecv, Flags: abi.WCFlagGRH, SL: d.SL,
	}
	if d.HasImm {
		cqe.Flags |= abi.WCFlagImm
		cqe.Imm = d.Imm
	}
	if q.owner.sourceMAC {
		cqe.SourceMAC = q.owner.gateway // Annex A17.4.5.1
	}
	var c Cursor
	err := v.SGEs.Scatter(c, d.GRH[:])
	if err == nil {
		c.Advance(v.SGEs, GRHSize)
		err = v.SGEs.Scatter(c, d.Data)
	}
	if err != nil {
		r.failReceive(now, v, abi.WCLocProtErr)
		return
	}
	r.rsp.message++
	q.owner.Account.PushesRx++
	q.owner.Account.BytesRx += uint64(len(d.Data))
	if q.owner.traces(q.number) {
		d.Conn.NoteDelivered(d.Datagram, d.ID)
		r.noteReceiving(d.Conn.ID(), d.ID)
	}
	r.completeRecv(now, v, &cqe, d.Solicited)
}

// failReceive completes a receive whose own entry or memory is invalid. This fails the queue pair,
// unless its requests complete in error.
func (r *responder) failReceive(now vtime.Time, v *Receive, st abi.WCStatus) {
	q := r.q
	r.rsp.message++
	r.finishRecv(now, v, st)
	if !q.cie {
		q.fail(now, st, "receive work request failed: "+st.String())
	}
}

// Groups holds the multicast groups that queue pairs of a function are attached to. The limit
// counts attachments: one queue pair in one group.
type Groups struct {
	owner        *Owner
	qps          *QPs
	destinations Destinations
	members      map[[16]byte][]*QP
	attached     int
	most         int
}

// AttachMcast attaches a queue pair to a multicast group (InfiniBand §11.3.1).
func (t *Groups) AttachMcast(p *abi.Mcast) abi.Status {
	q := t.qps.QP(p.QPN)
	switch {
	case !t.owner.Working():
		return abi.StatusBadState
	case q == nil:
		return abi.StatusNotFound
	case q.typ != abi.QPTypeUD || !IsMulticast(p.GID):
		return abi.StatusInvalidArgument
	case t.destinations.To(&Address{GID: p.GID}, false) == nil:
		return abi.StatusUnsupported
	case slices.Contains(t.members[p.GID], q):
		return abi.StatusOK
	case t.attached >= t.most:
		return abi.StatusNoResources
	}
	if t.members == nil {
		t.members = map[[16]byte][]*QP{}
	}
	t.members[p.GID] = append(t.members[p.GID], q)
	q.groups = append(q.groups, p.GID)
	t.attached++
	return abi.StatusOK
}

// DetachMcast detaches a queue pair from a multicast group.
func (t *Groups) DetachMcast(p *abi.Mcast) abi.Status {
	q := t.qps.QP(p.QPN)
	if q == nil || !slices.Contains(q.groups, p.GID) {
		return abi.StatusNotFound
	}
	q.groups = slices.DeleteFunc(q.groups, func(g [16]byte) bool { return g == p.GID })
	t.leave(q, p.GID)
	return abi.StatusOK
}

// forget detaches a queue pair that is being destroyed from all groups.
func (t *Groups) forget(q *QP) {
	for _, g := range q.groups {
		t.leave(q, g)
	}
	q.groups = nil
}

func (t *Groups) leave(q *QP, gid [16]byte) {
	left := slices.DeleteFunc(t.members[gid], func(m *QP) bool { return m == q })
	if t.members[gid] = left; len(left) == 0 {
		delete(t.members, gid)
	}
	t.attached--
}

// Joined reports whether any queue pair is attached to a group.
func (t *Groups) Joined(gid [16]byte) bool { return len(t.members[gid]) > 0 }

// DeliverGroup delivers a datagram to at most most queue pairs of a group, beginning with number
// first. Each receives or drops it independently. A queue pair of the sender receives it too. n is
// the number of queue pairs served; more reports whether others remain, from first+n on.
func (t *Groups) DeliverGroup(now vtime.Time, gid [16]byte, d *Arrival, first, most int) (n int, more bool) {
	members := t.members[gid]
	members = members[min(first, len(members)):]
	n = min(most, len(members))
	for _, q := range members[:n] {
		d.To = q.number
		t.qps.deliver(now, q, d)
	}
	return n, n < len(members)
}

func (t *Groups) count() int        { return t.attached }
func (t *Groups) setLimit(most int) { t.most = most }

func (t *Groups) closeAll(vtime.Time) {} // the queue pairs were destroyed before, and detached
