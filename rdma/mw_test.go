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

// TestWindow binds a window and uses, invalidates and binds it again.
// (DEV-930)
func TestWindow(t *testing.T) {
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

// TestWindowToRead: a window for READs needs a region that may be bound, and no other right of it.
func TestWindowToRead(t *testing.T) {
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

// TestWindowRights: a window gives what its binding gave, to the peer of its queue pair alone.
func TestWindowRights(t *testing.T) {
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

// TestBindRefusals: what cannot be bound or made invalid fails its request and the queue pair.
func TestBindRefusals(t *testing.T) {
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

// TestInvalidateWaits: a key becomes invalid only when the requests before it, long ones on a lossy
// link, are done with it. (DEV-931)
func TestInvalidateWaits(t *testing.T) {
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

// TestReadInvalidate: after the READ the key of its sink is invalid. (DEV-931)
func TestReadInvalidate(t *testing.T) {
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

// TestRereg changes everything of a region, one thing at a time. The key then has the new meaning;
// if it would name other memory, it becomes invalid. An error changes nothing. (DEV-933)
func TestRereg(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	h := p.hosts[1]
	rereg := func(r abi.ReregMR) (uint32, abi.Status) {
		g, st := h.fn.StartReregMR(&r)
		if st != abi.StatusOK {
			return 0, st
		}
		for {
			if done, lkey, _, st := g.Read(1); done {
				return lkey, st
			}
		}
	}
	use := func(name string, key uint32, addr uint64, want abi.WCStatus) {
		t.Helper()
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{})
		p.connect(a, b, true)
		a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: addr, RKey: key}, p.ma.sge(0, 8))
		if st := a.send.wait(1)[0].Status; st != want {
			t.Fatalf("%s: %v, want %v", name, st, want)
		}
		ok(t, h.fn.DestroyQP(p.now, b.number))
	}
	m := h.register(p.pd[1], 8192, abi.AccessLocalWrite)
	use("no right yet", m.key, m.addr, abi.WCRemAccessErr)
	k2, st := rereg(abi.ReregMR{LKey: m.key, Mask: abi.ReregAccess, Access: allAccess})
	ok(t, st)
	if k2 != m.key {
		t.Errorf("another key, %#x after %#x, for the same memory", k2, m.key)
	}
	use("access given", k2, m.addr, abi.WCSuccess)
	other := h.alloc(4 << 20)
	k3, st := rereg(abi.ReregMR{LKey: k2, Mask: abi.ReregTranslation, IOVA: 0, Length: 4 << 20, Pages: h.pageList(other, 4<<20, 2), Levels: 2})
	ok(t, st)
	fill(p.ma.bytes(), 8)
	use("translation", k3, 3<<20, abi.WCSuccess)
	use("old key", k2, m.addr, abi.WCRemAccessErr)
	if !bytes.Equal(h.bytes(other+3<<20, 8), p.ma.bytes()[:8]) {
		t.Fatal("written elsewhere")
	}
	for _, c := range []struct {
		name string
		r    abi.ReregMR
		want abi.Status
	}{
		{"nothing", abi.ReregMR{LKey: k3}, abi.StatusInvalidArgument},
		{"unknown bit", abi.ReregMR{LKey: k3, Mask: 8}, abi.StatusInvalidArgument},
		{"old key", abi.ReregMR{LKey: k2, Mask: abi.ReregAccess}, abi.StatusNotFound},
		{"no PD", abi.ReregMR{LKey: k3, Mask: abi.ReregPD, PDN: 77}, abi.StatusNotFound},
		{"remote without local write", abi.ReregMR{LKey: k3, Mask: abi.ReregAccess, Access: abi.AccessRemoteWrite}, abi.StatusInvalidArgument},
		{"unmapped", abi.ReregMR{LKey: k3, Mask: abi.ReregTranslation, Length: 4096, Levels: 1}, abi.StatusMemoryFault},
		{"no length", abi.ReregMR{LKey: k3, Mask: abi.ReregTranslation, Levels: 1}, abi.StatusInvalidArgument},
		{"zero based at an address", abi.ReregMR{LKey: k3, Mask: abi.ReregAccess | abi.ReregTranslation, Access: abi.AccessZeroBased, IOVA: 4096, Length: 4096, Levels: 1}, abi.StatusInvalidArgument},
	} {
		if _, st := rereg(c.r); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
	}
	use("unchanged by errors", k3, 3<<20, abi.WCSuccess)
	pd, _ := h.fn.AllocPD()
	k4, st := rereg(abi.ReregMR{LKey: k3, Mask: abi.ReregPD, PDN: pd})
	ok(t, st)
	use("other domain", k4, 0, abi.WCRemAccessErr)
	if st := h.fn.DeallocPD(pd); st != abi.StatusBusy {
		t.Errorf("PD with a region: %v", st)
	}
	ok(t, h.fn.DeregMR(k4))
	ok(t, h.fn.DeallocPD(pd))
	// One that a request made invalid is good again.
	p.b.postInvalidate(p.mb.key)
	success(t, p.b.send.wait(1))
	use("invalid", p.mb.key, p.mb.addr, abi.WCRemAccessErr)
	k5, st := rereg(abi.ReregMR{LKey: p.mb.key, Mask: abi.ReregAccess, Access: allAccess})
	ok(t, st)
	use("valid again", k5, p.mb.addr, abi.WCSuccess)
	use("key that was made invalid", p.mb.key, p.mb.addr, abi.WCRemAccessErr)
}

// TestWindowEnds: a window ends with its queue pair, and everything can be destroyed then.
// (DEV-932)
func TestWindowEnds(t *testing.T) {
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

// TestBindWithoutPeer: what concerns one side only needs no peer: a wired queue pair whose peer is
// not there yet binds, makes invalid and fails by itself, while a WRITE and all behind it wait.
func TestBindWithoutPeer(t *testing.T) {
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
