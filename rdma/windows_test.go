package rdma

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

const bindable = allAccess | abi.AccessMWBind

// window allocates a memory window.
func (h *host) window(pdn uint32) uint32 {
	h.w.t.Helper()
	key, st := h.fn.AllocMW(&abi.AllocMW{PDN: pdn, Type: abi.MWType2})
	ok(h.w.t, st)
	return key
}

// postBind posts a request to bind the window whose new key is rkey.
func (p *qp) postBind(rkey uint32, b abi.BindMW) {
	data := make([]byte, abi.BindMWSize)
	b.Marshal(data)
	p.postRaw(abi.SendWQE{Opcode: abi.OpBindMW, Flags: abi.SendSignaled, RKey: rkey}, data)
	p.ring()
}

func (p *qp) postInvalidate(key uint32) {
	p.post(abi.SendWQE{Opcode: abi.OpLocalInv, Flags: abi.SendSignaled, Imm: key})
}

// incKey is the next key of the same window, as ibv_inc_rkey makes it.
func incKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// TestAWindowIsBoundUsedAndInvalidated binds a window and uses, invalidates and binds it again.
// (DEV-930)
func TestAWindowIsBoundUsedAndInvalidated(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 16384, worldConfig{}, qpConfig{})
		h := p.hosts[1]
		m := h.register(p.pd[1], 16384, bindable)
		fill(p.ma.bytes(), 7)
		key := h.window(p.pd[1])
		use := func(key uint32, addr uint64, n int) abi.WCStatus {
			p.a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: addr, RKey: key}, p.ma.sge(0, n))
			return p.a.send.wait(1)[0].Status
		}
		key = incKey(key)
		p.b.postBind(key, abi.BindMW{Addr: m.addr + 1000, Length: 5000, LKey: m.key, Access: abi.AccessRemoteWrite})
		c := p.b.send.wait(1)
		success(t, c)
		if c[0].Opcode != abi.WCOpBindMW {
			t.Fatalf("completion %+v", c[0])
		}
		if st := use(key, m.addr+1000, 5000); st != abi.WCSuccess {
			t.Fatal(st)
		}
		if !bytes.Equal(m.bytes()[1000:6000], p.ma.bytes()[:5000]) || m.bytes()[6000] != 0 || m.bytes()[999] != 0 {
			t.Fatal("wrong bytes written")
		}
		if st := h.fn.DeregMR(m.key); st != abi.StatusBusy {
			t.Fatalf("region with a window: %v", st)
		}
		p.b.postInvalidate(key)
		c = p.b.send.wait(1)
		success(t, c)
		if c[0].Opcode != abi.WCOpLocalInv {
			t.Fatalf("completion %+v", c[0])
		}
		// Again, zero based, with another key: atomics and READs by offsets.
		key2 := incKey(key)
		p.b.postBind(key2, abi.BindMW{Addr: m.addr + 4096, Length: 4096, LKey: m.key, Access: verbs.RemoteRights | abi.AccessZeroBased})
		success(t, p.b.send.wait(1))
		p.a.post(abi.SendWQE{Opcode: abi.OpFetchAdd, Flags: abi.SendSignaled, RemoteAddr: 8, RKey: key2, CompareAdd: 0}, p.ma.sge(8192, 8))
		p.a.post(abi.SendWQE{Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: 0, RKey: key2}, p.ma.sge(8192, 4096))
		success(t, p.a.send.wait(2))
		if !bytes.Equal(p.ma.bytes()[8192:12288], m.bytes()[4096:8192]) {
			t.Fatal("wrong bytes read")
		}
		// The peer ends it.
		p.b.receive(1, m.sge(0, 100))
		p.a.post(abi.SendWQE{Opcode: abi.OpSendInv, Flags: abi.SendSignaled, Imm: key2}, p.ma.sge(0, 8))
		success(t, p.a.send.wait(1))
		if r := p.b.recv.wait(1)[0]; r.Flags != abi.WCFlagInv || r.Imm != key2 {
			t.Fatalf("receive %+v", r)
		}
		if st := use(key2, 0, 8); st != abi.WCRemAccessErr {
			t.Fatalf("WRITE to a window that was made invalid: %v", st)
		}
		ok(t, h.fn.DeallocMW(key2))
		ok(t, h.fn.DeregMR(m.key))
	})
}

// TestAWindowForReadsNeedsOnlyTheRightToBind: a window for READs needs a region that may be bound,
// and no other right of it.
func TestAWindowForReadsNeedsOnlyTheRightToBind(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	m := p.hosts[1].register(p.pd[1], 4096, abi.AccessMWBind)
	fill(m.bytes(), 5)
	key := incKey(p.hosts[1].window(p.pd[1]))
	p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 100, LKey: m.key, Access: abi.AccessRemoteRead})
	success(t, p.b.send.wait(1))
	p.a.post(abi.SendWQE{Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: m.addr, RKey: key}, p.ma.sge(0, 100))
	success(t, p.a.send.wait(1))
	if !bytes.Equal(p.ma.bytes()[:100], m.bytes()[:100]) {
		t.Error("wrong bytes read")
	}
}

// TestAWindowGivesOnlyItsRights: a window gives what its binding gave, to the peer of its queue
// pair alone.
func TestAWindowGivesOnlyItsRights(t *testing.T) {
	for _, c := range []struct {
		name string
		use  func(p *pair, m *region, key uint32)
	}{
		{"right not given", func(p *pair, m *region, key uint32) {
			p.a.post(abi.SendWQE{Opcode: abi.OpRead, RemoteAddr: m.addr, RKey: key}, p.ma.sge(0, 8))
		}},
		{"before the window", func(p *pair, m *region, key uint32) {
			p.a.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: m.addr - 1, RKey: key}, p.ma.sge(0, 8))
		}},
		{"behind the window", func(p *pair, m *region, key uint32) {
			p.a.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: m.addr + 993, RKey: key}, p.ma.sge(0, 8))
		}},
		{"old key", func(p *pair, m *region, key uint32) {
			p.a.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: m.addr, RKey: key - 1}, p.ma.sge(0, 8))
		}},
		{"another queue pair of the domain", func(p *pair, m *region, key uint32) {
			b := p.hosts[1].createQP(p.pd[1], qpConfig{})
			p.a = p.hosts[0].createQP(p.pd[0], qpConfig{})
			p.connect(p.a, b, true)
			p.a.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: m.addr, RKey: key}, p.ma.sge(0, 8))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
			m := p.hosts[1].register(p.pd[1], 4096, bindable)
			key := incKey(p.hosts[1].window(p.pd[1]))
			p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 1000, LKey: m.key, Access: abi.AccessRemoteWrite})
			success(t, p.b.send.wait(1))
			c.use(p, m, key)
			if st := p.a.send.wait(1)[0].Status; st != abi.WCRemAccessErr {
				t.Fatal(st)
			}
		})
	}
}

// TestWhatCannotBeBoundFails: what cannot be bound or made invalid fails its request and the queue
// pair.
func TestWhatCannotBeBoundFails(t *testing.T) {
	for _, c := range []struct {
		name string
		post func(p *pair, m *region, key uint32)
		want abi.WCStatus
	}{
		{"region not bindable", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: p.mb.addr, Length: 8, LKey: p.mb.key, Access: abi.AccessRemoteWrite})
		}, abi.WCMWBindErr},
		{"beyond the region", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: m.addr + 4090, Length: 8, LKey: m.key, Access: abi.AccessRemoteWrite})
		}, abi.WCMWBindErr},
		{"nothing", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: m.addr, LKey: m.key, Access: abi.AccessRemoteWrite})
		}, abi.WCMWBindErr},
		{"local rights", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessLocalWrite})
		}, abi.WCMWBindErr},
		{"writable on read-only", func(p *pair, m *region, key uint32) {
			ro := p.hosts[1].register(p.pd[1], 4096, abi.AccessMWBind)
			p.b.postBind(key, abi.BindMW{Addr: ro.addr, Length: 8, LKey: ro.key, Access: abi.AccessRemoteWrite})
		}, abi.WCMWBindErr},
		{"atomics on read-only", func(p *pair, m *region, key uint32) {
			ro := p.hosts[1].register(p.pd[1], 4096, abi.AccessMWBind)
			p.b.postBind(key, abi.BindMW{Addr: ro.addr, Length: 8, LKey: ro.key, Access: abi.AccessRemoteAtomic})
		}, abi.WCMWBindErr},
		{"region of another domain", func(p *pair, m *region, key uint32) {
			pd, _ := p.hosts[1].fn.AllocPD()
			other := p.hosts[1].register(pd, 4096, bindable)
			p.b.postBind(key, abi.BindMW{Addr: other.addr, Length: 8, LKey: other.key, Access: abi.AccessRemoteRead})
		}, abi.WCMWBindErr},
		{"window of another domain", func(p *pair, m *region, key uint32) {
			pd, _ := p.hosts[1].fn.AllocPD()
			p.b.postBind(p.hosts[1].window(pd), abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
		}, abi.WCMWBindErr},
		{"no window", func(p *pair, m *region, key uint32) {
			p.b.postBind(m.key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
		}, abi.WCMWBindErr},
		{"a window on a window", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
			success(p.t, p.b.send.wait(1))
			p.b.postBind(p.hosts[1].window(p.pd[1]), abi.BindMW{Addr: m.addr, Length: 8, LKey: key, Access: abi.AccessRemoteRead})
		}, abi.WCMWBindErr},
		{"bound twice", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
			success(p.t, p.b.send.wait(1))
			p.b.postBind(incKey(key), abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
		}, abi.WCMWBindErr},
		{"free window made invalid", func(p *pair, m *region, key uint32) { p.b.postInvalidate(key) }, abi.WCMWBindErr},
		{"unknown key made invalid", func(p *pair, m *region, key uint32) { p.b.postInvalidate(m.key + 1) }, abi.WCMWBindErr},
		{"region with a window made invalid", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
			success(p.t, p.b.send.wait(1))
			p.b.postInvalidate(m.key)
		}, abi.WCMWBindErr},
		{"bind with SGEs", func(p *pair, m *region, key uint32) {
			p.b.post(abi.SendWQE{Opcode: abi.OpBindMW, RKey: key}, m.sge(0, 8))
		}, abi.WCLocQPOpErr},
		{"SGE of a window", func(p *pair, m *region, key uint32) {
			p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteWrite})
			success(p.t, p.b.send.wait(1))
			p.b.post(abi.SendWQE{Opcode: abi.OpSend}, abi.SGE{Addr: m.addr, Length: 8, LKey: key})
		}, abi.WCLocProtErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
			m := p.hosts[1].register(p.pd[1], 4096, bindable)
			c.post(p, m, incKey(p.hosts[1].window(p.pd[1])))
			if st := p.b.send.wait(1)[0].Status; st != c.want {
				t.Fatalf("%v, want %v", st, c.want)
			}
			if p.b.q.State() != abi.QPStateErr {
				t.Fatalf("QP in %v", p.b.q.State())
			}
		})
	}
	w := newWorld(t, worldConfig{})
	pd, _ := w.hosts[0].fn.AllocPD()
	if _, st := w.hosts[0].fn.AllocMW(&abi.AllocMW{PDN: pd, Type: 3}); st != abi.StatusUnsupported {
		t.Errorf("type 3: %v", st)
	}
	if _, st := w.hosts[0].fn.AllocMW(&abi.AllocMW{PDN: 99, Type: abi.MWType2}); st != abi.StatusNotFound {
		t.Errorf("no PD: %v", st)
	}
}

// TestInvalidationWaitsForRequestsBefore: a key becomes invalid only when the requests before it,
// long ones on a lossy link, are done with it. (DEV-931)
func TestInvalidationWaitsForRequestsBefore(t *testing.T) {
	p := newPair(t, true, 1<<20, worldConfig{arena: 32 << 20}, qpConfig{})
	fill(p.ma.bytes(), 3)
	m := p.ma
	p.a.post(p.remote(abi.OpWrite, 0), m.sge(0, 500<<10))
	p.a.postInvalidate(m.key)
	p.a.post(p.remote(abi.OpWrite, 0), m.sge(0, 8))
	got := p.a.send.wait(3)
	if got[0].Status != abi.WCSuccess || got[1].Status != abi.WCSuccess || got[2].Status != abi.WCLocProtErr {
		t.Fatalf("completions %s", describe(got))
	}
	if !bytes.Equal(p.mb.bytes()[:500<<10], m.bytes()[:500<<10]) {
		t.Fatal("wrong bytes written")
	}
}

// TestAReadInvalidatesItsSink: after the READ the key of its sink is invalid. (DEV-931)
func TestAReadInvalidatesItsSink(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 1<<16, worldConfig{}, qpConfig{})
		fill(p.mb.bytes(), 9)
		sink := p.hosts[0].register(p.pd[0], 1<<16, abi.AccessLocalWrite)
		x := p.remote(abi.OpReadInv, 0)
		x.Imm = sink.key
		p.a.post(x, sink.sge(0, 50000))
		c := p.a.send.wait(1)
		success(t, c)
		if c[0].Opcode != abi.WCOpRead || c[0].Flags != abi.WCFlagInv || c[0].Imm != sink.key || c[0].ByteLen != 50000 {
			t.Fatalf("completion %+v", c[0])
		}
		if !bytes.Equal(sink.bytes()[:50000], p.mb.bytes()[:50000]) {
			t.Fatal("wrong bytes read")
		}
		p.a.post(p.remote(abi.OpRead, 0), sink.sge(0, 8))
		if st := p.a.send.wait(1)[0].Status; st != abi.WCLocProtErr {
			t.Fatalf("READ into memory whose key is invalid: %v", st)
		}
	})
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	x := p.remote(abi.OpReadInv, 0)
	x.Imm = p.ma.key + 1
	p.a.post(x, p.ma.sge(0, 8))
	if st := p.a.send.wait(1)[0].Status; st != abi.WCLocQPOpErr {
		t.Fatalf("unknown key: %v", st)
	}
}

// TestAWindowEndsWithItsQueuePair: a window ends with its queue pair, and everything can be
// destroyed then. (DEV-932)
func TestAWindowEndsWithItsQueuePair(t *testing.T) {
	for _, end := range []func(p *pair){
		func(p *pair) { ok(p.t, p.hosts[1].fn.DestroyQP(p.now, p.b.number)) },
		func(p *pair) { p.b.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateReset}) },
		func(p *pair) { p.hosts[1].fn.Close(p.now) },
	} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		f := p.hosts[1].fn
		m := p.hosts[1].register(p.pd[1], 4096, bindable)
		key := incKey(p.hosts[1].window(p.pd[1]))
		p.b.postBind(key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
		success(t, p.b.send.wait(1))
		for range 3 {
			p.b.postBind(incKey(p.hosts[1].window(p.pd[1])), abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
			success(t, p.b.send.wait(1))
		}
		other := p.hosts[1].createQP(p.pd[1], qpConfig{})
		away := p.hosts[0].createQP(p.pd[0], qpConfig{})
		p.connect(away, other, true)
		stays := incKey(p.hosts[1].window(p.pd[1]))
		other.postBind(stays, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
		success(t, other.send.wait(1))
		end(p)
		if f.Counts() != (verbs.Counts{}) { // the windows of other queue pairs stay
			away.post(abi.SendWQE{Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: m.addr, RKey: stays}, p.ma.sge(0, 8))
			success(t, away.send.wait(1))
			ok(t, f.DeallocMW(stays))
		}
		if f.Counts() == (verbs.Counts{}) {
			continue // closed
		}
		ok(t, f.DeregMR(m.key))
		ok(t, f.DeallocMW(key))
	}
}

// TestLocalRequestsNeedNoPeer: what concerns one side only needs no peer: a wired queue pair whose
// peer is not there yet binds, makes invalid and fails by itself, while a WRITE and all behind it
// wait.
func TestLocalRequestsNeedNoPeer(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	pd, _ := h.fn.AllocPD()
	m := h.register(pd, 8192, bindable)
	wired := func() *qp {
		a := h.createQP(pd, qpConfig{})
		ok(t, h.fn.ModifyQP(w.now, complete(a.number, verbs.AttrPath|abi.QPAttrMaxDestRdAtomic|abi.QPAttrMinRNRTimer, abi.QPStateRTR)))
		ok(t, h.fn.ModifyQP(w.now, complete(a.number, verbs.AttrRetry|abi.QPAttrMaxRdAtomic, abi.QPStateRTS)))
		return a
	}
	a := wired()
	key := h.window(pd)
	for range 20 { // more than a turn
		key = incKey(key)
		a.postBind(key, abi.BindMW{Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteRead})
		a.postInvalidate(key)
	}
	w.settle(1e6)
	success(t, a.send.wait(40))
	a.post(abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: 1, RKey: 1}, m.sge(0, 8))
	a.postInvalidate(m.key)
	w.settle(1e9)
	if c, any := a.send.poll(); any {
		t.Fatalf("completion %+v without a peer", c)
	}
	if got := a.send.wait(2); got[0].Status != abi.WCRetryExcErr || got[1].Status != abi.WCWRFlushErr {
		t.Fatalf("completions %s", describe(got))
	}
	a = wired()
	a.postInvalidate(key)
	w.settle(1e6)
	if c, any := a.send.poll(); !any || c.Status != abi.WCMWBindErr || a.q.State() != abi.QPStateErr {
		t.Fatalf("a key that is invalid already: %+v, QP in %v", c, a.q.State())
	}
}

// TestWindowsOfType1ServeAllOfTheirDomain binds a window of type 1 by one queue pair, uses it by
// others of its protection domain, binds it elsewhere and frees it. (DEV-936)
func TestWindowsOfType1ServeAllOfTheirDomain(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newPair(t, true, 16384, worldConfig{}, qpConfig{})
		h := p.hosts[1]
		m, m2 := h.register(p.pd[1], 16384, bindable), h.register(p.pd[1], 16384, bindable)
		fill(p.ma.bytes(), 7)
		key, st := h.fn.AllocMW(&abi.AllocMW{PDN: p.pd[1], Type: abi.MWType1})
		ok(t, st)
		use := func(from *qp, key uint32, addr uint64, n int) abi.WCStatus {
			from.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: addr, RKey: key}, p.ma.sge(0, n))
			return from.send.wait(1)[0].Status
		}
		// another joins a queue pair of the same domain; it is used up by an error.
		another := func(pdn uint32) (from, to *qp) {
			from, to = p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(pdn, qpConfig{})
			p.connect(from, to, true)
			return from, to
		}
		bind := func(by *qp, b abi.BindMW) {
			t.Helper()
			key = incKey(key)
			by.postBind(key, b)
			success(t, by.send.wait(1))
		}
		bind(p.b, abi.BindMW{Addr: m.addr + 1000, Length: 5000, LKey: m.key, Access: verbs.RemoteRights})
		from, to := another(p.pd[1])
		for _, q := range []*qp{p.a, from} {
			clear(m.bytes())
			if st := use(q, key, m.addr+1000, 5000); st != abi.WCSuccess || !bytes.Equal(m.bytes()[1000:6000], p.ma.bytes()[:5000]) {
				t.Fatalf("%v, or other bytes", st)
			}
		}
		other, st := h.fn.AllocPD()
		ok(t, st)
		if x, _ := another(other); use(x, key, m.addr+1000, 8) != abi.WCRemAccessErr {
			t.Fatal("a queue pair of another domain may use it")
		}
		if st := h.fn.DeregMR(m.key); st != abi.StatusBusy {
			t.Fatalf("region with a window: %v", st)
		}

		// Bound elsewhere by another queue pair: the old key and the old place are over.
		old := key
		bind(to, abi.BindMW{Addr: m2.addr, Length: 8, LKey: m2.key, Access: abi.AccessRemoteWrite})
		ok(t, h.fn.DeregMR(m.key))
		if st := use(p.a, key, m2.addr, 8); st != abi.WCSuccess {
			t.Fatal(st)
		}
		for name, x := range map[string]struct {
			key uint32
			op  abi.Opcode
			at  uint64
		}{
			"the old key": {old, abi.OpWrite, m2.addr}, "behind its end": {key, abi.OpWrite, m2.addr + 1},
			"a right that it does not give": {key, abi.OpRead, m2.addr},
		} {
			q, _ := another(p.pd[1])
			q.post(abi.SendWQE{Opcode: x.op, Flags: abi.SendSignaled, RemoteAddr: x.at, RKey: x.key}, p.ma.sge(0, 8))
			if c := q.send.wait(1)[0]; c.Status != abi.WCRemAccessErr {
				t.Errorf("%s: %v", name, c.Status)
			}
		}

		// Neither the end of the queue pair that bound it nor keys made invalid end the binding.
		ok(t, h.fn.DestroyQP(p.now, to.number))
		_, r := another(p.pd[1])
		r.postInvalidate(key)
		if c := r.send.wait(1)[0]; c.Status != abi.WCMWBindErr {
			t.Errorf("LocalInv: %v", c.Status)
		}
		q, r := another(p.pd[1])
		r.receive(1, m2.sge(0, 100))
		q.post(abi.SendWQE{Opcode: abi.OpSendInv, Flags: abi.SendSignaled, Imm: key}, p.ma.sge(0, 8))
		if c := q.send.wait(1)[0]; c.Status != abi.WCRemAccessErr {
			t.Errorf("SendInv: %v", c.Status)
		}
		if st := use(p.a, key, m2.addr, 8); st != abi.WCSuccess {
			t.Fatal(st)
		}

		// What cannot be bound costs the queue pair, and leaves the window as it is.
		for name, b := range map[string]abi.BindMW{
			"by offsets":        {Addr: m2.addr, Length: 8, LKey: m2.key, Access: abi.AccessRemoteWrite | abi.AccessZeroBased},
			"behind the region": {Addr: m2.addr, Length: 16385, LKey: m2.key, Access: abi.AccessRemoteWrite},
			"a region gone":     {Addr: m.addr, Length: 8, LKey: m.key, Access: abi.AccessRemoteWrite},
		} {
			_, r := another(p.pd[1])
			r.postBind(incKey(key), b)
			if c := r.send.wait(1)[0]; c.Status != abi.WCMWBindErr {
				t.Errorf("%s: %v", name, c.Status)
			}
		}
		if st := use(p.a, key, m2.addr, 8); st != abi.WCSuccess {
			t.Fatal(st)
		}

		old = key
		bind(p.b, abi.BindMW{}) // of no bytes: it is free
		ok(t, h.fn.DeregMR(m2.key))
		for _, k := range []uint32{old, key} {
			if q, _ := another(p.pd[1]); use(q, k, m2.addr, 8) != abi.WCRemAccessErr {
				t.Errorf("key %#x opens something", k)
			}
		}
		m3 := h.register(p.pd[1], 8, bindable)
		bind(p.b, abi.BindMW{Addr: m3.addr, Length: 8, LKey: m3.key, Access: abi.AccessRemoteRead})
		ok(t, h.fn.DeallocMW(key)) // bound as it is
		ok(t, h.fn.DeregMR(m3.key))
		if n := h.fn.Counts()[abi.ObjectMW]; n != 0 {
			t.Errorf("%d windows are left", n)
		}
	})
}

func TestASendInvalidatesAKey(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 4096, worldConfig{}, qpConfig{})
		buf := p.hosts[1].register(p.pd[1], 4096, abi.AccessLocalWrite)
		p.b.receive(1, buf.sge(0, 4096))
		p.a.post(abi.SendWQE{Opcode: abi.OpSendInv, Flags: abi.SendSignaled, Imm: p.mb.key}, p.ma.sge(0, 2000))
		success(t, p.a.send.wait(1))
		r := p.b.recv.wait(1)
		success(t, r)
		if r[0].Flags != abi.WCFlagInv || r[0].Imm != p.mb.key {
			t.Fatalf("completion %+v", r[0])
		}
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		if got := p.a.send.wait(1)[0].Status; got != abi.WCRemAccessErr {
			t.Fatalf("WRITE with the invalidated key: %v", got)
		}
	})
}
