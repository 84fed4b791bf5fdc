package rdma

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
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

// TestTheDriversBeliefIsChecked: a ModifyQP that names another current state than the queue
// pair's is refused.
func TestTheDriversBeliefIsChecked(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	m := &abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrCurState | abi.QPAttrMinRNRTimer, CurState: abi.QPStateSQD}
	if st := p.hosts[0].fn.ModifyQP(p.now, m); st != abi.StatusInvalidArgument {
		t.Errorf("wrong belief: %v", st)
	}
	m.CurState = abi.QPStateRTS
	ok(t, p.hosts[0].fn.ModifyQP(p.now, m))
}

// TestSQDFinishesStartedWork tests SQD: started works are finished, the event is sent once and only
// then, no other work is started, requests of the peer are served, and RTS continues where it
// stopped. (DEV-908)
func TestSQDFinishesStartedWork(t *testing.T) {
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

// TestEventsSayWhichSideFailed: a driver that knows the newer events is told which side caused a
// failure. (DEV-909)
func TestEventsSayWhichSideFailed(t *testing.T) {
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

// TestTheFirstPacketInRTRIsReported: a QP whose driver takes it through the states itself gets an
// event for the first packet in RTR, and sends when it is in RTS. (DEV-909)
func TestTheFirstPacketInRTRIsReported(t *testing.T) {
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

func TestQueryQPShowsWhatModifyQPSet(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	for _, c := range []struct {
		m    abi.ModifyQP
		want abi.Status
	}{
		{abi.ModifyQP{QPN: 1}, abi.StatusNotFound},
		{abi.ModifyQP{QPN: p.a.number, Mask: 1 << 31}, abi.StatusInvalidArgument},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrState, State: abi.QPStateRTR}, abi.StatusBadState},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrState, State: abi.QPStateInit}, abi.StatusBadState},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrState, State: 99}, abi.StatusBadState},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrPathMTU, PathMTU: 6}, abi.StatusInvalidArgument},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrRNRRetry, RNRRetry: 8}, abi.StatusInvalidArgument},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 32}, abi.StatusInvalidArgument},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrMaxRdAtomic, MaxRdAtomic: 64 + 1}, abi.StatusInvalidArgument},
		{abi.ModifyQP{QPN: p.a.number, Mask: abi.QPAttrTimeout | abi.QPAttrRetryCnt, Timeout: 31, RetryCnt: 7}, abi.StatusOK},
	} {
		if st := h.fn.ModifyQP(p.now, &c.m); st != c.want {
			t.Errorf("%+v: %v, want %v", c.m, st, c.want)
		}
	}
	q, st := h.fn.QueryQP(p.a.number)
	ok(t, st)
	if q.State != abi.QPStateRTS || q.PeerQPN != p.b.number || q.PathMTU != abi.MTU1024 || q.Timeout != 31 || q.PeerGID[15] != 2 {
		t.Errorf("query %+v", q)
	}
	if _, st := h.fn.QueryQP(1); st != abi.StatusNotFound {
		t.Error(st)
	}
}

// TestPathsOfConnectionsAreChecked: the address vector of a connected queue pair is set within its
// ranges, and ends with the QP's reset. (DEV-946, DEV-949)
func TestPathsOfConnectionsAreChecked(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	h.fn.SetGID(abi.GIDEntries-1, [16]byte{15: 7})
	pd, _ := h.fn.AllocPD()
	q, ud := h.createQP(pd, qpConfig{}), h.createQP(pd, qpConfig{typ: abi.QPTypeUD})
	for name, c := range map[string]struct {
		p    abi.ModifyQP
		want abi.Status
	}{
		"datagrams":    {abi.ModifyQP{QPN: ud.number}, abi.StatusInvalidArgument},
		"21-bit label": {abi.ModifyQP{FlowLabel: 1 << 20}, abi.StatusInvalidArgument},
		"5-bit SL":     {abi.ModifyQP{SL: 16}, abi.StatusInvalidArgument},
		"VLAN":         {abi.ModifyQP{VLAN: 1}, abi.StatusUnsupported},
		"no such GID":  {abi.ModifyQP{SGIDIndex: 1}, abi.StatusInvalidArgument},
		"no entry":     {abi.ModifyQP{SGIDIndex: 255}, abi.StatusInvalidArgument},
		"all there can be": {abi.ModifyQP{
			FlowLabel: 1<<20 - 1, SL: 15, VLAN: abi.NoVLAN, TrafficClass: 0xff, HopLimit: 255, DMAC: [6]byte{2, 1}, SGIDIndex: abi.GIDEntries - 1,
		}, abi.StatusOK},
	} {
		if c.p.Mask = abi.QPAttrAV; c.p.QPN == 0 {
			c.p.QPN = q.number
		}
		if st := h.fn.ModifyQP(w.now, &c.p); st != c.want {
			t.Errorf("%s: %v, want %v", name, st, c.want)
		}
	}
	is := func() [8]any {
		p, _ := h.fn.QueryQP(q.number)
		return [8]any{p.FlowLabel, p.SL, p.VLAN, p.TrafficClass, p.HopLimit, p.DMAC, p.SGIDIndex, p.PeerGID}
	}
	if got, want := is(), [8]any{uint32(1<<20 - 1), uint8(15), uint16(abi.NoVLAN), uint8(0xfc), uint8(255), [6]byte{2, 1}, uint8(abi.GIDEntries - 1), [16]byte{}}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	q.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateReset})
	if got, want := is(), [8]any{uint32(0), uint8(0), uint16(0), uint8(0), uint8(0), [6]byte{}, uint8(0), [16]byte{}}; got != want {
		t.Errorf("after RESET: %v", got)
	}
}

func TestTheRetryTimeIsTheDrivers(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	if got := p.a.q.RetryTime(); got != 0 {
		t.Errorf("driver set nothing: %d", got)
	}
	for _, c := range []struct {
		timeout, retry uint8
		want           falcon.Time
	}{{0, 7, falcon.Forever}, {31, 7, 8 * 4096 << 31}, {18, 7, 8 * 4096 << 18}, {1, 0, 2e9}} {
		p.a.modify(abi.ModifyQP{Mask: abi.QPAttrTimeout | abi.QPAttrRetryCnt, Timeout: c.timeout, RetryCnt: c.retry})
		if got := p.a.q.RetryTime(); got != c.want {
			t.Errorf("timeout %d, retry %d: %d, want %d", c.timeout, c.retry, got, c.want)
		}
	}
}

// holding holds every completion back until one that must not wait releases them.
type holding struct{}

func (holding) Work(uint32, abi.Opcode) abi.WCStatus { return abi.WCSuccess }
func (holding) Access() bool                         { return false }
func (holding) Key(uint32) bool                      { return false }
func (holding) Stuck(uint32) bool                    { return false }
func (holding) Hold(uint32) bool                     { return true }
func (holding) Overrun(uint32) bool                  { return false }

// TestDrainedComesAfterAllCompletions: when a driver gets the event that its send queue has
// drained, it finds the completions of all started requests, also those that were held back by
// Faults. (DEV-908)
func TestDrainedComesAfterAllCompletions(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	h.fn.UseFeatures(abi.FeatureExtendedVerbs)
	h.fn.UseFaults(holding{})
	for range 3 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 64))
	}
	p.settle(1e8)
	if _, any := p.a.send.poll(); any {
		t.Fatal("a completion was not kept back: the test tests nothing")
	}
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState | abi.QPAttrSQDNotify, State: abi.QPStateSQD, SQDNotify: 1})
	p.settle(1e6)
	if len(h.async) != 1 || h.async[0].typ != abi.EventSQDrained {
		t.Fatalf("events %+v", h.async)
	}
	for i := range 3 {
		if x, any := p.a.send.poll(); !any || x.Status != abi.WCSuccess {
			t.Errorf("completion %d: %v %s", i, any, x.Status)
		}
	}
}

// TestWorkIsFlushedInOrder fails a QP with work in every state, posts more, and expects all of it
// to be flushed in order. (DEV-610)
func TestWorkIsFlushedInOrder(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{log2: 8})
	p.cut(0, true)
	for i := range 200 {
		p.a.receive(uint64(i), p.ma.sge(0, 8))
		x := p.remote(abi.OpWrite, 0)
		x.WRID, x.Flags = uint64(i), 0
		p.a.post(x, p.ma.sge(0, 2000))
		if i == 100 {
			p.step()
		}
	}
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
	for i := 200; i < 210; i++ {
		p.a.receive(uint64(i), p.ma.sge(0, 8))
		x := p.remote(abi.OpWrite, 0)
		x.WRID = uint64(i)
		p.a.post(x, p.ma.sge(0, 2000))
	}
	for _, q := range []*cq{p.a.send, p.a.recv} {
		for i, c := range q.wait(210) {
			if c.WRID != uint64(i) || c.Status != abi.WCWRFlushErr {
				t.Fatalf("completion %d: %d %v", i, c.WRID, c.Status)
			}
		}
	}
	if len(p.hosts[0].async) != 0 {
		t.Fatalf("the driver asked for ERR and got %+v", p.hosts[0].async)
	}
	p.settle(2e9)
	if p.a.q.Connected() {
		t.Fatal("connection outlived its linger")
	}
}

// TestReceivesPostedInERRAreFlushed: a receive that is posted to a QP in ERR is flushed when its
// doorbell comes. (DEV-610)
func TestReceivesPostedInERRAreFlushed(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
	p.settle(1e9) // it sleeps
	for i := range 3 {
		p.a.receive(uint64(i), p.ma.sge(0, 100))
		if c := p.a.recv.wait(1)[0]; c.WRID != uint64(i) || c.Status != abi.WCWRFlushErr {
			t.Fatalf("%+v", c)
		}
	}
}

// TestAResetQueuePairIsUsedAgain reuses a QP.
func TestAResetQueuePairIsUsedAgain(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	for range 3 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 2000))
		p.step()
		for _, q := range []*qp{p.a, p.b} {
			q.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateReset})
			if q.q.State() != abi.QPStateReset || q.q.Connected() {
				t.Fatal("not reset")
			}
			clear(q.sqMem)
			clear(q.rqMem)
			q.resetRings()
			q.modify(abi.ModifyQP{
				Mask:  abi.QPAttrState | abi.QPAttrAccess,
				State: abi.QPStateInit, Access: abi.AccessRemoteWrite | abi.AccessRemoteRead,
			})
		}
		p.settle(1e6)
		p.connect(p.a, p.b, true)
		for p.a.send.drop() {
		}
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 2000))
		success(t, p.a.send.wait(1))
	}
}

func TestDisconnectedFlushesBothEnds(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.cut(0, true)
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 2000))
	p.step()
	p.a.q.Disconnected(p.now)
	if p.a.q.Connected() || p.a.send.wait(1)[0].Status != abi.WCWRFlushErr {
		t.Fatal("not flushed")
	}
	p.a.q.Disconnected(p.now)
}

// TestACutLinkFailsAndFlushes cuts the link: the requester gives up, flushes, and holds nothing any
// more.
func TestACutLinkFailsAndFlushes(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.cut(0, true)
	p.cut(1, true)
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 3000))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 3000))
	got := p.a.send.wait(2)
	if got[0].Status != abi.WCRetryExcErr || got[1].Status != abi.WCWRFlushErr {
		t.Fatalf("completions %s", describe(got))
	}
	p.settle(20e9)
	if u := p.hosts[0].credits.InUse(); u != (credit.Cost{}) {
		t.Fatalf("credits in use %v", u)
	}
	if p.a.q.Connected() {
		t.Fatal("connection still open")
	}
}

// TestWithoutItsPeerTheOldestRequestFails: when the peer's queue pair has gone, the oldest request
// fails, whether it was sent before or is posted later, and those behind it are flushed.
func TestWithoutItsPeerTheOldestRequestFails(t *testing.T) {
	for _, before := range []bool{true, false} {
		p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
		f := p.hosts[0].fn
		f.UseFeatures(abi.FeatureExtendedVerbs)
		p.a, p.b = p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
		ok(t, f.ModifyQP(p.now, complete(p.a.number, verbs.AttrPath|abi.QPAttrMaxDestRdAtomic|abi.QPAttrMinRNRTimer, abi.QPStateRTR)))
		ok(t, f.ModifyQP(p.now, complete(p.a.number, verbs.AttrRetry|abi.QPAttrMaxRdAtomic, abi.QPStateRTS)))
		p.connect(p.a, p.b, true)
		post := func() {
			for i := range 3 {
				x := p.remote(abi.OpWrite, 0)
				x.WRID = uint64(i + 1)
				p.a.post(x, p.ma.sge(0, 8))
			}
		}
		if before {
			p.cut(0, true)
			post()
			p.settle(1e5)
		}
		p.a.q.PeerLeft(p.now)
		if !before {
			if p.settle(1e5); p.a.q.State() != abi.QPStateRTS {
				t.Fatalf("state %v without work", p.a.q.State())
			}
			post()
		}
		p.settle(1e9)
		var all []abi.CQE
		for x, ok := p.a.send.poll(); ok; x, ok = p.a.send.poll() {
			all = append(all, x)
		}
		if got := describe(all); got != fmt.Sprintf("1:%v 2:%v 3:%v ", abi.WCRetryExcErr, abi.WCWRFlushErr, abi.WCWRFlushErr) {
			t.Errorf("posted before %v: %s", before, got)
		}
	}
}

// TestERRNeedsNoNetwork: a queue pair of a NIC without a transport moves to ERR like any other.
func TestERRNeedsNoNetwork(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	p := h.createQP(pd, qpConfig{})
	h.rof().UseFalcon(nil)
	p.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
	if p.q.State() != abi.QPStateErr {
		t.Errorf("state %v", p.q.State())
	}
}
