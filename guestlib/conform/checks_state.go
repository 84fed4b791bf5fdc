package conform

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var stateChecks = []check{
	{"qp.states", "DEV-901", 0, qpStates},
	{"qp.attributes", "DEV-907", abi.FeatureExtendedVerbs, qpAttributes},
	{"qp.drain", "DEV-908", abi.FeatureExtendedVerbs, qpDrain},
	{"qp.blame", "DEV-909", abi.FeatureExtendedVerbs, qpBlame},
	{"qp.established", "DEV-909", abi.FeatureExtendedVerbs, qpEstablished},
	{"qp.wired", "DEV-910", 0, qpWired},
	{"qp.wired-alone", "DEV-910", 0, qpWiredAlone},
	{"gids", "DEV-949", abi.FeatureDatagrams, gids},
	{"gids.wired", "DEV-910 DEV-949", abi.FeatureDatagrams, gidsWired},
	{"qp.path", "DEV-946", abi.FeatureExtendedVerbs, qpPath},
}

// reach moves a fresh queue pair to a state.
func (q *qp) reach(to abi.QPState) {
	path := map[abi.QPState][]abi.QPState{
		abi.QPStateInit: {abi.QPStateInit},
		abi.QPStateRTR:  {abi.QPStateInit, abi.QPStateRTR},
		abi.QPStateRTS:  {abi.QPStateInit, abi.QPStateRTR, abi.QPStateRTS},
		abi.QPStateSQD:  {abi.QPStateInit, abi.QPStateRTR, abi.QPStateRTS, abi.QPStateSQD},
		abi.QPStateErr:  {abi.QPStateInit, abi.QPStateErr},
	}
	for _, s := range path[to] {
		q.modify(q.step(s, q.qpn))
	}
}

// qpStates tries each change of state from each state of an RC queue pair, with the required
// attributes.
func qpStates(t *T) {
	c := t.ready()
	pdn, cq := c.allocPD(), c.newCQ(6)
	legal := map[[2]abi.QPState]bool{
		{abi.QPStateReset, abi.QPStateInit}: true, {abi.QPStateInit, abi.QPStateInit}: true, {abi.QPStateInit, abi.QPStateRTR}: true,
		{abi.QPStateRTR, abi.QPStateRTS}: true, {abi.QPStateRTS, abi.QPStateRTS}: true, {abi.QPStateRTS, abi.QPStateSQD}: true,
		{abi.QPStateSQD, abi.QPStateRTS}: true, {abi.QPStateSQD, abi.QPStateSQD}: true,
	}
	states := []abi.QPState{abi.QPStateReset, abi.QPStateInit, abi.QPStateRTR, abi.QPStateRTS, abi.QPStateSQD, abi.QPStateErr}
	for _, from := range states {
		for _, to := range append(states, abi.QPStateSQE) {
			q := c.newQP(pdn, cq, cq, nil)
			q.reach(from)
			q.wantState(from)
			m := q.step(to, q.qpn)
			if to == abi.QPStateRTS && from != abi.QPStateRTR || to == from {
				m.Mask = abi.QPAttrState // the rest is not of these rows
			}
			st := q.try(m)
			ok := legal[[2]abi.QPState{from, to}] || to == abi.QPStateReset || to == abi.QPStateErr && from != abi.QPStateReset
			switch {
			case ok && st != abi.StatusOK:
				t.Fatalf("%s to %s: %s, want OK", from, to, st)
			case !ok && st != abi.StatusBadState:
				t.Fatalf("%s to %s: %s, want %s", from, to, st, abi.StatusBadState)
			case ok:
				q.wantState(to)
			default:
				q.wantState(from)
			}
			c.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: q.qpn}, nil)
		}
	}
}

// qpAttributes checks which attributes a change of state requires, and which it refuses.
func qpAttributes(t *T) {
	c := t.ready()
	pdn, cq := c.allocPD(), c.newCQ(6)
	q := c.newQP(pdn, cq, cq, nil)
	q.modify(q.step(abi.QPStateInit, 0))
	for _, to := range []abi.QPState{abi.QPStateRTR, abi.QPStateRTS} {
		full := q.step(to, q.qpn)
		for bit := uint32(1); bit != 0; bit <<= 1 {
			if full.Mask&bit == 0 || bit == abi.QPAttrState {
				continue
			}
			m := full
			m.Mask &^= bit
			before := q.query()
			if st := q.try(m); st != abi.StatusInvalidArgument {
				t.Fatalf("the move to %s without attribute %#x: %s, want %s", to, bit, st, abi.StatusInvalidArgument)
			}
			if q.query() != before {
				t.Fatalf("the move to %s without attribute %#x was refused and changed the QP", to, bit)
			}
		}
		m := full
		m.Mask |= abi.QPAttrQKey
		if st := q.try(m); st != abi.StatusInvalidArgument {
			t.Fatalf("the move to %s with a Q_Key, which RC has not: %s, want %s", to, st, abi.StatusInvalidArgument)
		}
		q.modify(full)
	}
	r := q.query()
	if r.PathMTU != abi.MTU1024 && r.PathMTU != abi.MTU512 && r.PathMTU != abi.MTU256 || r.RetryCnt != 7 || r.RNRRetry != 7 || r.Timeout != 14 || r.MaxDestRdAtomic != 4 || r.MinRNRTimer != 12 || r.PeerQPN != q.qpn {
		t.Fatalf("QueryQP does not return what was set: %+v", r)
	}
	if st := q.try(abi.ModifyQP{CurState: abi.QPStateSQD, State: abi.QPStateRTS, Mask: abi.QPAttrState | abi.QPAttrCurState}); st == abi.StatusOK {
		t.Fatalf("ModifyQP with CurState SQD of a QP in RTS is accepted")
	}
}

func qpDrain(t *T) {
	r := t.qpPair()
	for i := range uint64(8) {
		r.copy(i, 0, 32<<10, 16<<10)
	}
	r.a.modify(abi.ModifyQP{State: abi.QPStateSQD, SQDNotify: 1, Mask: abi.QPAttrState | abi.QPAttrSQDNotify})
	if e := r.stream.event(abi.EventSQDrained); e.Number != r.a.qpn {
		t.Fatalf("EventSQDrained of QP %#x, want %#x", e.Number, r.a.qpn)
	}
	done := uint64(0)
	for {
		e, ok := r.cq.poll()
		if !ok {
			break
		}
		if e.WRID != done || e.Status != abi.WCSuccess {
			t.Fatalf("completion %d is of work request %d, %s", done, e.WRID, e.Status)
		}
		done++
	}
	r.copy(8, 0, 32<<10, 16)
	r.cq.empty() // no send is begun
	r.b.post(abi.SendWQE{WRID: 77, Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey}, r.mr.sge(4096, 16))
	r.cq.want(77, abi.WCSuccess) // requests of the peer are served
	r.stream.never("EventSQDrained a second time", isEvent(abi.EventSQDrained))
	r.a.modify(abi.ModifyQP{State: abi.QPStateRTS, Mask: abi.QPAttrState})
	for ; done < 9; done++ {
		r.cq.want(done, abi.WCSuccess)
	}
}

func qpBlame(t *T) {
	for _, x := range []struct {
		name string
		bad  func(r *qpPair)
		want abi.EventType
		qp   func(r *qpPair) uint32
	}{
		{"a request without the right key", func(r *qpPair) {
			r.a.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: r.mr.iova, RKey: r.mr.rkey ^ 0x55_5500}, r.mr.sge(0, 8))
		}, abi.EventQPAccessErr, func(r *qpPair) uint32 { return r.b.qpn }},
		{"a message longer than the receive", func(r *qpPair) {
			r.b.postRecv(1, r.mr.sge(0, 4))
			r.a.post(abi.SendWQE{Opcode: abi.OpSend}, r.mr.sge(0, 64))
		}, abi.EventQPReqErr, func(r *qpPair) uint32 { return r.b.qpn }},
		{"a request with a local key that is none", func(r *qpPair) {
			r.a.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: r.mr.iova, RKey: r.mr.rkey}, abi.SGE{Addr: r.mr.iova, Length: 8, LKey: r.mr.lkey ^ 0x55_5500})
		}, abi.EventQPFatal, func(r *qpPair) uint32 { return r.a.qpn }},
	} {
		c := t.ready()
		r := c.qpPair(nil)
		x.bad(r)
		m := c.stream.wait(x.want.String()+" for "+x.name, isEvent(x.want))
		var e abi.AsyncEvent
		t.noError(abi.Decode(m.body, &e))
		if e.Number != x.qp(r) {
			t.Fatalf("%s for %s names QP %#x, want %#x", x.want, x.name, e.Number, x.qp(r))
		}
		c.stream.goodbye()
	}
}

func qpEstablished(t *T) {
	c := t.ready()
	pdn, cq := c.allocPD(), c.newCQ(6)
	mr := c.regMR(pdn, 4096, allAccess)
	a, b := c.newQP(pdn, cq, cq, nil), c.newQP(pdn, cq, cq, nil)
	b.modify(b.step(abi.QPStateInit, 0))
	b.modify(b.step(abi.QPStateRTR, a.qpn))
	a.connect(b.qpn)
	a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: mr.iova, RKey: mr.rkey}, mr.sge(8, 8))
	if e := c.stream.event(abi.EventCommEst); e.Number != b.qpn {
		t.Fatalf("EventCommEst of QP %#x, want %#x", e.Number, b.qpn)
	}
	cq.want(1, abi.WCSuccess)
}

// qpWired wires queue pairs, with either side first, and a queue pair to itself.
func qpWired(t *T) {
	c := t.ready()
	pdn, cq := c.allocPD(), c.newCQ(6)
	mr := c.regMR(pdn, 4096, allAccess)
	write := abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: mr.iova, RKey: mr.rkey}
	self := c.newQP(pdn, cq, cq, nil)
	self.connect(self.qpn)
	self.post(write, mr.sge(8, 8))
	cq.want(1, abi.WCSuccess)
	for _, first := range []bool{true, false} {
		a, b := c.newQP(pdn, cq, cq, nil), c.newQP(pdn, cq, cq, nil)
		x, y := a, b
		if !first {
			x, y = b, a
		}
		x.connect(y.qpn)
		x.post(write, mr.sge(8, 8))
		cq.empty() // work waits for the other side
		y.connect(x.qpn)
		cq.want(1, abi.WCSuccess)
	}
	if m, ok := c.stream.take(func(m *message) bool {
		return isEvent(abi.EventEstablished)(m) || isEvent(abi.EventConnectRequest)(m)
	}); ok {
		t.Fatalf("a connection that ModifyQP made has an event: %x", m.body[:8])
	}
}

// qpWiredAlone checks a queue pair whose peer leaves: nothing happens until work is posted, which
// then fails at once.
func qpWiredAlone(t *T) {
	r := t.qpPair()
	r.nop(1)
	r.cq.want(1, abi.WCSuccess)
	r.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: r.b.qpn}, nil)
	r.stream.never("an event for a peer that left, without work", anyEvent)
	r.a.wantState(abi.QPStateRTS)
	r.nop(2)
	e := r.cq.next()
	if e.WRID != 2 || e.Status == abi.WCSuccess {
		t.Fatalf("work towards a QP that is gone: work request %d, %s", e.WRID, e.Status)
	}
	t.until(func() bool { return r.a.query().State == abi.QPStateErr }, "the QP to move to ERR")
}

// qpPath checks that path attributes are kept, and that invalid ones are refused and change
// nothing.
func qpPath(t *T) {
	c := t.ready()
	cq := c.newCQ(4)
	q := c.newQP(c.allocPD(), cq, cq, nil)
	q.modify(q.step(abi.QPStateInit, 0))
	set := abi.ModifyQP{Mask: abi.QPAttrAV, FlowLabel: 0x12345, TrafficClass: 0xb8, HopLimit: 9, SL: 3}
	q.modify(set)
	check := func() {
		if p := q.query(); p.FlowLabel != 0x12345 || p.TrafficClass != 0xb8 || p.HopLimit != 9 || p.SL != 3 {
			t.Fatalf("QueryQP returns %+v", p)
		}
	}
	check()
	for _, bad := range []struct {
		in   abi.ModifyQP
		want abi.Status
	}{
		{abi.ModifyQP{Mask: abi.QPAttrAV, VLAN: 7}, abi.StatusUnsupported},
		{abi.ModifyQP{Mask: abi.QPAttrAV, FlowLabel: 1 << 20}, abi.StatusInvalidArgument},
		{abi.ModifyQP{Mask: abi.QPAttrAV, SL: 16}, abi.StatusInvalidArgument},
		{abi.ModifyQP{Mask: abi.QPAttrAV, SGIDIndex: 9}, abi.StatusInvalidArgument},
	} {
		if st := q.try(bad.in); st != bad.want {
			t.Fatalf("ModifyQP with %+v: %s, want %s", bad.in, st, bad.want)
		}
		check()
	}
	rtr := q.step(abi.QPStateRTR, q.qpn)
	rtr.FlowLabel, rtr.TrafficClass, rtr.HopLimit, rtr.SL = 0x12345, 0xb8, 9, 3
	q.modify(rtr)
	check()
}

// gids checks the GID table: at first it has the function's own address; the link-local one may be
// added, others must not.
func gids(t *T) {
	c := t.ready()
	var e abi.GIDEntry
	c.must(abi.AdminOpQueryGID, &abi.GIDIndex{}, &e)
	if e.GID != c.gid() {
		t.Fatalf("entry 0 has %x, want the function's address %x", e.GID, c.gid())
	}
	local := c.linkLocal()
	c.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: 5, GID: local}, nil)
	c.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: 5, GID: local, VLAN: abi.NoVLAN}, nil) // again
	if c.must(abi.AdminOpQueryGID, &abi.GIDIndex{Index: 5}, &e); e.GID != local || e.Index != 5 {
		t.Fatalf("entry 5 is %+v", e)
	}
	c.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: 6, GID: local}, nil) // twice
	c.must(abi.AdminOpDelGID, &abi.GIDIndex{Index: 6}, nil)
	c.refuse(abi.AdminOpAddGID, &abi.GIDEntry{Index: abi.GIDEntries, GID: local}, abi.StatusInvalidArgument)
	c.refuse(abi.AdminOpAddGID, &abi.GIDEntry{Index: 6}, abi.StatusInvalidArgument)
	c.refuse(abi.AdminOpAddGID, &abi.GIDEntry{Index: 6, VLAN: 5, GID: [16]byte{0xfd, 15: 1}}, abi.StatusUnsupported)
	c.refuse(abi.AdminOpAddGID, &abi.GIDEntry{Index: 6, GID: [16]byte{0xff, 2, 15: 1}}, abi.StatusUnsupported)
	c.refuse(abi.AdminOpQueryGID, &abi.GIDIndex{Index: 6}, abi.StatusNotFound)
	c.must(abi.AdminOpDelGID, &abi.GIDIndex{Index: 5}, nil)
	c.refuse(abi.AdminOpDelGID, &abi.GIDIndex{Index: 5}, abi.StatusNotFound)
	c.refuse(abi.AdminOpDelGID, &abi.GIDIndex{Index: 500}, abi.StatusNotFound)
	c.refuse(abi.AdminOpCreateAH, &abi.CreateAH{PDN: c.allocPD(), DGID: c.gid(), SGIDIndex: 5}, abi.StatusInvalidArgument)
}

// gidsWired wires two queue pairs by the function's link-local address. Both addresses of a header
// must have the same IP version.
func gidsWired(t *T) {
	const index = 5
	c := t.ready()
	local := c.linkLocal()
	c.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: index, GID: local}, nil)
	pdn, cq := c.allocPD(), c.newCQ(6)
	mr := c.regMR(pdn, 4096, allAccess)
	a, b := c.newQP(pdn, cq, cq, nil), c.newQP(pdn, cq, cq, nil)
	for q, peer := range map[*qp]*qp{a: b, b: a} {
		q.modify(q.step(abi.QPStateInit, peer.qpn))
		rtr := q.step(abi.QPStateRTR, peer.qpn)
		rtr.SGIDIndex = index
		if netip.AddrFrom16(rtr.DGID).Is4In6() {
			if st := q.try(rtr); st != abi.StatusInvalidArgument {
				t.Fatalf("ModifyQP with an IPv6 address as source and an IPv4 one as destination: %s", st)
			}
		}
		rtr.DGID = local
		q.modify(rtr)
		q.modify(q.step(abi.QPStateRTS, peer.qpn))
	}
	copy(mr.bytes(), "by another name")
	a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: mr.iova + 64, RKey: mr.rkey}, mr.sge(0, 15))
	cq.want(1, abi.WCSuccess)
	if got := string(mr.bytes()[64:79]); got != "by another name" {
		t.Fatalf("a WRITE to the link-local address brought %q", got)
	}
	c.must(abi.AdminOpDelGID, &abi.GIDIndex{Index: index}, nil) // what is connected stays
	a.post(abi.SendWQE{WRID: 2, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: mr.iova + 64, RKey: mr.rkey}, mr.sge(0, 15))
	cq.want(2, abi.WCSuccess)
}
