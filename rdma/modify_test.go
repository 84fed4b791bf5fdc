package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// complete is a ModifyQP that sets every attribute of mask to a good value.
func complete(qpn, mask uint32, state abi.QPState) *abi.ModifyQP {
	return &abi.ModifyQP{
		QPN: qpn, Mask: mask | abi.QPAttrState, State: state, PathMTU: abi.MTU1024, MinRNRTimer: 1, RetryCnt: 7, RNRRetry: 7, Timeout: 14,
		MaxRdAtomic: 1, MaxDestRdAtomic: 1, DestQPN: 0x123456, RQPSN: 0xffffff, SQPSN: 1, DGID: [16]byte{15: 9}, Access: abi.AccessRemoteRead, QKey: 0x11,
	}
}

// TestCurState: the driver's belief is checked.
func TestCurState(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	m := &abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrCurState | abi.QPAttrMinRNRTimer, CurState: abi.QPStateSQD}
	if st := p.hosts[0].fn.ModifyQP(p.now, m); st != abi.StatusInvalidArgument {
		t.Errorf("wrong belief: %v", st)
	}
	m.CurState = abi.QPStateRTS
	ok(t, p.hosts[0].fn.ModifyQP(p.now, m))
}

// TestDrain tests SQD: started works are finished, the event is sent once and only then, no other
// work is started, requests of the peer are served, and RTS continues where it stopped. (DEV-908)
func TestDrain(t *testing.T) {
	for _, notify := range []uint8{0, 1} {
		p := newPair(t, true, 1<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		h := p.hosts[0]
		h.fn.UseFeatures(abi.FeatureExtendedVerbs)
		fill(p.ma.bytes(), 4)
		p.cut(0, true)
		for i := range 3 {
			x := p.remote(abi.OpWrite, 0)
			x.WRID = uint64(i)
			p.a.post(x, p.ma.sge(0, 300<<10)) // more than is issued at once
		}
		p.step()
		p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState | abi.QPAttrSQDNotify, State: abi.QPStateSQD, SQDNotify: notify})
		if q, _ := h.fn.QueryQP(p.a.number); q.State != abi.QPStateSQD || q.Draining != 1 {
			t.Fatalf("query %+v", q)
		}
		p.cut(0, false)
		p.run(1e9, func() bool {
			q, _ := h.fn.QueryQP(p.a.number)
			return q.Draining == 0
		})
		started := 0
		for c, any := p.a.send.poll(); any; c, any = p.a.send.poll() {
			success(t, []abi.CQE{c})
			started++
		}
		if started == 3 {
			t.Fatal("all works were begun at once: the test tests nothing")
		}
		p.settle(1e8)
		if _, any := p.a.send.poll(); any {
			t.Fatal("a work was begun in SQD")
		}
		if q, _ := h.fn.QueryQP(p.a.number); q.Draining != 0 {
			t.Fatal("still draining")
		}
		if n := len(h.async); n != int(notify) || n == 1 && (h.async[0].typ != abi.EventSQDrained || h.async[0].number != p.a.number) {
			t.Fatalf("notify %d: events %+v", notify, h.async)
		}
		p.b.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.ma.addr, RKey: p.ma.key}, p.mb.sge(0, 8))
		success(t, p.b.send.wait(1))
		p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 2})
		p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateRTS})
		success(t, p.a.send.wait(3-int(started)))
		// A queue that is empty is drained at once.
		h.async = nil
		p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState | abi.QPAttrSQDNotify, State: abi.QPStateSQD, SQDNotify: 1})
		p.settle(1e6)
		if len(h.async) != 1 || h.async[0].typ != abi.EventSQDrained {
			t.Fatalf("events %+v", h.async)
		}
	}
}

// TestEventsOfFailures: a driver that knows the newer events is told which side caused a failure.
// (DEV-909)
func TestEventsOfFailures(t *testing.T) {
	for _, c := range []struct {
		name string
		want abi.EventType
		post func(p *pair)
	}{
		{"invalid request", abi.EventQPReqErr, func(p *pair) { p.a.post(p.remote(abi.OpFetchAdd, 4), p.ma.sge(0, 8)) }},
		{"access", abi.EventQPAccessErr, func(p *pair) { p.a.post(p.remote(abi.OpWrite, 4090), p.ma.sge(0, 8)) }},
		{"own fault", abi.EventQPFatal, func(p *pair) {
			ro := p.hosts[1].register(p.pd[1], 4096, 0)
			p.b.receive(1, ro.sge(0, 100))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 8))
		}},
	} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		h := p.hosts[1]
		h.fn.UseFeatures(abi.FeatureExtendedVerbs)
		c.post(p)
		p.settle(1e9)
		if len(h.async) != 1 || h.async[0].typ != c.want || h.async[0].number != p.b.number {
			t.Errorf("%s: events %+v, want %v", c.name, h.async, c.want)
		}
		if n := h.fe.Stats().ConnsClosed[falcon.CloseULP]; (n == 1) != (c.want == abi.EventQPReqErr) {
			t.Errorf("%s: %d connections ended for a violation", c.name, n)
		}
	}
}

// TestCommEstablished: a QP whose driver takes it through the states itself gets an event for the
// first packet in RTR, and sends when it is in RTS. (DEV-909)
func TestCommEstablished(t *testing.T) {
	w := newWorld(t, worldConfig{})
	p := &pair{world: w}
	for i, h := range w.hosts {
		p.pd[i], _ = h.fn.AllocPD()
		h.fn.UseFeatures(abi.FeatureExtendedVerbs)
	}
	p.ma = w.hosts[0].register(p.pd[0], 4096, allAccess)
	p.mb = w.hosts[1].register(p.pd[1], 4096, allAccess)
	p.a, p.b = w.hosts[0].createQP(p.pd[0], qpConfig{}), w.hosts[1].createQP(p.pd[1], qpConfig{})
	h := w.hosts[1]
	m := complete(p.b.number, verbs.AttrPath|abi.QPAttrMaxDestRdAtomic|abi.QPAttrMinRNRTimer, abi.QPStateRTR)
	m.DestQPN = p.a.number
	ok(t, h.fn.ModifyQP(w.now, m))
	w.connect(p.a, p.b, true)
	if p.b.q.State() != abi.QPStateRTR {
		t.Fatalf("QP is in %v", p.b.q.State())
	}
	p.b.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.ma.addr, RKey: p.ma.key}, p.mb.sge(0, 8))
	p.settle(1e7)
	if _, any := p.b.send.poll(); any || len(h.async) != 0 {
		t.Fatalf("sent in RTR, or events %+v", h.async)
	}
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 8))
	success(t, p.a.send.wait(2))
	if len(h.async) != 1 || h.async[0].typ != abi.EventCommEst || h.async[0].number != p.b.number {
		t.Fatalf("events %+v", h.async)
	}
	ok(t, h.fn.ModifyQP(w.now, complete(p.b.number, verbs.AttrRetry|abi.QPAttrMaxRdAtomic, abi.QPStateRTS)))
	success(t, p.b.send.wait(1))
}

// TestXRCTransitions: both ends of an XRC connection come up with the masks of verbs, which
// ibv_xsrq_pingpong sends, and neither with less. (DEV-907)
func TestXRCTransitions(t *testing.T) {
	const (
		state = abi.QPAttrState
		init  = state | abi.QPAttrPKeyIndex | abi.QPAttrPort | abi.QPAttrAccess
		path  = state | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN
		recv  = path | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer
		retry = state | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic
	)
	for name, c := range map[string]struct {
		typ      abi.QPType
		rtr, rts uint32
	}{
		"initiator":                 {abi.QPTypeXRCSend, path, retry},
		"target":                    {abi.QPTypeXRCRecv, recv, state | abi.QPAttrTimeout | abi.QPAttrSQPSN},
		"initiator, masks of RC":    {abi.QPTypeXRCSend, recv, retry},
		"target, masks of RC":       {abi.QPTypeXRCRecv, recv, retry},
		"reliable connection, both": {abi.QPTypeRC, recv, retry},
	} {
		w := newWorld(t, worldConfig{})
		h := w.hosts[0]
		h.fn.UseFeatures(abi.FeatureExtendedVerbs)
		pd, _ := h.fn.AllocPD()
		xrcd, _ := h.fn.OpenXRCD()
		p := h.createQP(pd, qpConfig{typ: c.typ, xrcd: xrcd})
		peer := [16]byte{15: 9}
		try := func(mask uint32, to abi.QPState) abi.Status {
			return h.fn.ModifyQP(w.now, &abi.ModifyQP{
				QPN: p.number, Mask: mask, State: to, PathMTU: abi.MTU1024, DestQPN: 5, DGID: peer, Timeout: 14, RetryCnt: 7, MinRNRTimer: 12,
				MaxDestRdAtomic: 1, MaxRdAtomic: 1,
			})
		}
		steps := []struct {
			mask uint32
			to   abi.QPState
		}{{init, abi.QPStateInit}, {c.rtr, abi.QPStateRTR}, {c.rts, abi.QPStateRTS}, {state, abi.QPStateSQD}}
		for _, s := range steps {
			for bit := uint32(2); bit <= s.mask; bit <<= 1 {
				required := s.mask&bit != 0 && s.to != abi.QPStateInit && s.to != abi.QPStateSQD
				if required && name != "initiator, masks of RC" && name != "target, masks of RC" {
					if st := try(s.mask&^bit, s.to); st != abi.StatusInvalidArgument {
						t.Errorf("%s to %v without %#x: %v", name, s.to, bit, st)
					}
				}
			}
			if st := try(s.mask, s.to); st != abi.StatusOK {
				t.Fatalf("%s to %v: %v", name, s.to, st)
			}
		}
		if st := try(abi.QPAttrAV, 0); st != abi.StatusOK {
			t.Errorf("%s: the path again: %v", name, st)
		}
		peer[0]++
		if st := try(abi.QPAttrAV, 0); st != abi.StatusInvalidArgument {
			t.Errorf("%s: another path: %v", name, st)
		}
	}
}
