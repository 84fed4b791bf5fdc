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

// checkDatagram checks what is specific to datagrams in a work request whose length is known.
func (s *sender) checkDatagram(now vtime.Time, w *SendWR, entry []byte) (abi.WCStatus, Reason) {
	x := &w.WQE
	switch {
	case x.Opcode != abi.OpSend && x.Opcode != abi.OpSendImm:
		return abi.WCLocQPOpErr, because("opcode %d cannot be used on a QP for datagrams", uint64(x.Opcode))
	case x.RemoteQPN > abi.GroupQPN:
		return abi.WCLocQPOpErr, because("QP %#x is none: numbers have 24 bits", uint64(x.RemoteQPN))
	case int(w.Length) > s.owner.Limits().MTU:
		return abi.WCLocLenErr, because("a datagram of %d bytes does not fit the MTU, %d", uint64(w.Length), uint64(s.owner.Limits().MTU))
	case x.AHN == 0:
		w.to = s.destination(now, entry, x.RemoteQPN)
	default:
		if a := s.ahs.AH(x.AHN); a != nil && a.pd == s.pd && a.to.fits(x.RemoteQPN) {
			w.to = s.ahs.destination(a, s.ordered)
		}
	}
	switch {
	case w.to != nil:
		return abi.WCSuccess, Reason{}
	case x.AHN == 0:
		return abi.WCLocQPOpErr, because("its address is impossible, or leads to no QP %#x", uint64(x.RemoteQPN))
	}
	return abi.WCLocQPOpErr, because("address handle %#x is not in the QP's protection domain, or does not lead to QP %#x", uint64(x.AHN), uint64(x.RemoteQPN))
}

// destination returns the destination of a datagram whose entry contains the address vector, nil if
// the vector is invalid. An address that the last datagram had too is found without a look-up.
func (s *sender) destination(now vtime.Time, entry []byte, qpn uint32) Destination {
	x := &s.shared.address
	x.Unmarshal(entry)
	path, st := pathOf(x.FlowLabel, x.TrafficClass, x.HopLimit, x.SL, x.VLAN)
	sgid, has := s.owner.GID(x.SGIDIndex)
	to := Address{GID: x.DGID, SGID: sgid, Path: path}
	switch {
	case st != abi.StatusOK || !has || !to.fits(qpn):
		return nil
	case s.lastAH == nil || s.lastAH.to != to || s.lastAH.gone:
		s.lastAH = s.ahs.handleFor(now, to)
	}
	return s.ahs.destination(s.lastAH, s.ordered)
}

// issueDatagram does the work of issuePacket for the valid work at next: its destination takes the
// datagram, or the datagram is lost.
func (q *QP) issueDatagram(now vtime.Time, w *SendWR) (n int, started, ok bool) {
	x := &w.WQE
	out := &q.shared.datagram
	*out = Datagram{
		Datagram: transport.Datagram{
			To: x.RemoteQPN, From: q.number, QKey: x.RemoteQKey, Imm: x.Imm, HasImm: x.Opcode == abi.OpSendImm,
			Solicited: x.Flags&abi.SendSolicited != 0, Length: int(w.Length), Work: w.Index,
		},
		SGEs: w.SGEs, From: q,
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
	q.send.works.next++
	q.complete(now)
	return n, true, true
}

// Wait implements Waiter.
func (q *QP) Wait(c Destination) (news bool) {
	news = q.full != c
	q.full, q.blocked = c, true
	return news
}

// Resume implements Waiter.
func (q *QP) Resume(c Destination) {
	if q.full == c {
		q.full, q.blocked = nil, false
		q.wake()
	}
}

// Arrival is a received datagram.
type Arrival struct {
	*transport.Datagram
	Data []byte
	GRH  *[GRHSize]byte // written before the data
	SL   uint8          // service level for the completion

	// For traces.
	Conn       uint32 // number of the connection that it arrived on; 0: none
	ID         uint32 // its number on that connection
	Opcode     uint8  // of its packet
	Wire       uint8  // number of the wire
	TraceFlags uint8  // trace.Loopback
}

// GRHSize is the size of the GRH before the data of a received datagram (abi.GRHSize).
const GRHSize = 40

// Deliver gives a datagram to its queue pair. A datagram that cannot be delivered is dropped
// without telling the sender or the receiver (InfiniBand §9.8.3). Only the counters show it.
func (t *QPs) Deliver(now vtime.Time, d *Arrival) { t.deliver(now, t.QP(d.To), d) }

func (t *QPs) deliver(now vtime.Time, q *QP, d *Arrival) {
	switch {
	case len(d.Data) > t.owner.limits.MTU, !t.owner.Working(), q == nil || !q.datagrams() || !q.Serving() || q.recv.cq.Broken():
		t.owner.Account.DatagramsLost++
	case q.attr.qkey != d.QKey:
		t.owner.Stats.BadQKeys++
	default:
		// A failed receive fails the queue pair, unless its requests complete in error.
		if st := q.recv.datagram(now, d); st != abi.WCSuccess && !q.inError {
			q.fail(now, st, "receive work request failed: "+st.String())
		}
	}
}

// datagram writes a datagram to the next receive, behind the GRH. A receive whose own entry or
// memory is invalid completes in error; its status is returned.
func (r *receiver) datagram(now vtime.Time, d *Arrival) (failed abi.WCStatus) {
	v := r.receiveFor(r.messages.first)
	total := GRHSize + len(d.Data)
	switch {
	case v == nil:
		r.owner.Account.DatagramsLost++
		return abi.WCSuccess
	case v.Status != abi.WCSuccess:
		failed = v.Status
		r.messages.first++
		r.finish(now, v, failed)
		return failed
	case uint64(total) > v.Capacity: // the receive stays for a datagram that fits
		r.owner.Account.DatagramsLost++
		return abi.WCSuccess
	}
	r.messages.first++
	cqe := abi.CQE{
		ByteLen: uint32(total), SrcQP: d.From, Opcode: abi.WCOpRecv, Flags: abi.WCFlagGRH, SL: d.SL,
	}
	if d.HasImm {
		cqe.Flags |= abi.WCFlagImm
		cqe.Imm = d.Imm
	}
	if r.owner.sourceMAC {
		cqe.SourceMAC = r.owner.gateway // Annex A17.4.5.1
	}
	var c Cursor
	err := v.SGEs.Scatter(c, d.GRH[:])
	if err == nil {
		c.Advance(v.SGEs, GRHSize)
		err = v.SGEs.Scatter(c, d.Data)
	}
	if err != nil {
		r.finish(now, v, abi.WCLocProtErr)
		return abi.WCLocProtErr
	}
	r.owner.Account.PushesRx++
	r.owner.Account.BytesRx += uint64(len(d.Data))
	if r.owner.traces(r.number) {
		r.noteDatagram(d)
	}
	r.report(now, v, &cqe, d.Solicited)
	return abi.WCSuccess
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
