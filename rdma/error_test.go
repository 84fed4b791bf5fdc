package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestErrorStatuses checks the completion status of every mistake that a requester can make, and
// that it costs both QPs their connection but nothing else. (DEV-706)
func TestErrorStatuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		access uint32 // of B's region
		qp     uint32 // remote access B's QP allows; 0 all
		post   func(p *pair)
		want   abi.WCStatus
		recv   abi.WCStatus // of B's posted receive
	}{
		{name: "WRITE with a wrong rkey", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.RKey ^= 1 << 24
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE beyond the region", post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 4089), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE at the end of the address space", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.RemoteAddr = 1<<64 - 4
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE without the region's right", access: abi.AccessLocalWrite | abi.AccessRemoteRead, post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "WRITE without the QP's right", qp: abi.AccessRemoteRead, post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "third segment of a long WRITE beyond the region", post: func(p *pair) {
			p.a.post(p.remote(abi.OpWrite, 1), p.ma.sge(0, 4096))
		}, want: abi.WCRemAccessErr},
		{name: "READ with a wrong rkey", post: func(p *pair) {
			x := p.remote(abi.OpRead, 0)
			x.RKey ^= 1 << 24
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "READ without the region's right", access: abi.AccessLocalWrite | abi.AccessRemoteWrite, post: func(p *pair) {
			p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "READ without the QP's right", qp: abi.AccessRemoteWrite, post: func(p *pair) {
			p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "atomic without the region's right", access: abi.AccessLocalWrite | abi.AccessRemoteWrite, post: func(p *pair) {
			p.a.post(p.remote(abi.OpFetchAdd, 0), p.ma.sge(0, 8))
		}, want: abi.WCRemAccessErr},
		{name: "atomic at an odd address", post: func(p *pair) { // DEV-613
			p.a.post(p.remote(abi.OpCmpSwap, 4), p.ma.sge(0, 8))
		}, want: abi.WCRemInvReqErr},
		{name: "atomic in odd memory", post: func(p *pair) {
			h := p.hosts[1]
			key, _, st := h.fn.RegMR(&abi.RegMR{
				PDN: p.pd[1], Access: allAccess, IOVA: 1 << 40, Length: 64, Offset: 4, Pages: h.pageList(p.mb.addr, 4096, 1), Levels: 1,
			})
			ok(h.w.t, st)
			x := p.remote(abi.OpFetchAdd, 0)
			x.RKey, x.RemoteAddr = key, 1<<40
			p.a.post(x, p.ma.sge(0, 8))
		}, want: abi.WCRemInvReqErr},
		{name: "masked atomic at an odd address", post: func(p *pair) {
			p.a.postMasked(p.remote(abi.OpMaskedFetchAdd, 4), abi.AtomicMasks{}, p.ma.sge(0, 8))
		}, want: abi.WCRemInvReqErr},
		{name: "masked atomic without an SGE", post: func(p *pair) {
			p.a.post(p.remote(abi.OpMaskedCmpSwap, 0))
		}, want: abi.WCLocLenErr},
		{name: "atomic with a result of 4 bytes", post: func(p *pair) {
			p.a.post(p.remote(abi.OpCmpSwap, 0), p.ma.sge(0, 4))
		}, want: abi.WCLocLenErr},
		{name: "atomic with two results", post: func(p *pair) {
			p.a.post(p.remote(abi.OpCmpSwap, 0), p.ma.sge(0, 4), p.ma.sge(4, 4))
		}, want: abi.WCLocLenErr},
		{name: "SEND longer than the receive", post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 99))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 100))
		}, want: abi.WCRemInvReqErr, recv: abi.WCLocLenErr},
		{name: "long SEND longer than the receive", post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 2050))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 4096))
		}, want: abi.WCRemInvReqErr, recv: abi.WCLocLenErr},
		{name: "SEND into a receive with a wrong lkey", post: func(p *pair) {
			s := p.mb.sge(0, 100)
			s.LKey ^= 1 << 24
			p.b.receive(7, s)
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 100))
		}, want: abi.WCRemOpErr, recv: abi.WCLocProtErr},
		{name: "SEND into a receive without local write", access: abi.AccessRemoteRead, post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 100))
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 100))
		}, want: abi.WCRemOpErr, recv: abi.WCLocProtErr},
		{name: "SEND with invalidate of an unknown key", post: func(p *pair) {
			p.b.receive(7, p.mb.sge(0, 100))
			p.a.post(abi.SendWQE{Opcode: abi.OpSendInv, Imm: p.mb.key ^ 1<<24}, p.ma.sge(0, 100))
		}, want: abi.WCRemAccessErr, recv: abi.WCWRFlushErr},
		{name: "SEND from a wrong lkey", post: func(p *pair) {
			s := p.ma.sge(0, 100)
			s.LKey ^= 1
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, s)
		}, want: abi.WCLocProtErr},
		{name: "SEND from beyond the region", post: func(p *pair) {
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(4000, 97))
		}, want: abi.WCLocProtErr},
		{name: "SEND longer than a message can be", post: func(p *pair) {
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 0), abi.SGE{Addr: p.ma.addr, Length: 1 << 31, LKey: p.ma.key})
		}, want: abi.WCLocProtErr},
		{name: "READ into memory without local write", post: func(p *pair) {
			ro := p.hosts[0].register(p.pd[0], 4096, abi.AccessRemoteRead)
			p.a.post(p.remote(abi.OpRead, 0), ro.sge(0, 100))
		}, want: abi.WCLocProtErr},
		{name: "region of another protection domain", post: func(p *pair) {
			pd, _ := p.hosts[0].fn.AllocPD()
			m := p.hosts[0].register(pd, 4096, allAccess)
			p.a.post(p.remote(abi.OpWrite, 0), m.sge(0, 100))
		}, want: abi.WCLocProtErr},
		{name: "rkey of another protection domain", post: func(p *pair) {
			pd, _ := p.hosts[1].fn.AllocPD()
			m := p.hosts[1].register(pd, 4096, allAccess)
			x := p.remote(abi.OpWrite, 0)
			x.RKey, x.RemoteAddr = m.key, m.addr
			p.a.post(x, p.ma.sge(0, 100))
		}, want: abi.WCRemAccessErr},
		{name: "unknown opcode", post: func(p *pair) {
			p.a.post(p.remote(abi.Opcode(7), 0), p.ma.sge(0, 100))
		}, want: abi.WCLocQPOpErr},
		{name: "too many SGEs", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.NumSGE = 5
			p.a.post(x, p.ma.sge(0, 1))
		}, want: abi.WCLocQPOpErr},
		{name: "inline READ", post: func(p *pair) {
			x := p.remote(abi.OpRead, 0)
			x.Flags |= abi.SendInline
			p.a.post(x)
		}, want: abi.WCLocQPOpErr},
		{name: "more inline data than the QP takes", post: func(p *pair) {
			x := p.remote(abi.OpWrite, 0)
			x.Flags, x.InlineLen = abi.SendInline, 193
			p.a.postRaw(x, nil)
			p.a.ring()
		}, want: abi.WCLocLenErr},
	} {
		orders(t, func(t *testing.T, ordered bool) {
			t.Run(c.name, func(t *testing.T) {
				p := newPair(t, ordered, 4096, worldConfig{}, qpConfig{access: c.qp})
				if c.access != 0 {
					p.mb = p.hosts[1].register(p.pd[1], 4096, c.access)
				}
				// One valid request before and two behind it.
				good := p.hosts[1].register(p.pd[1], 64, allAccess)
				x := abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, RemoteAddr: good.addr, RKey: good.key}
				if c.qp != 0 && c.qp&abi.AccessRemoteWrite == 0 {
					x.Opcode = abi.OpRead
				}
				x.Flags = abi.SendSignaled
				p.a.post(x, p.ma.sge(8, 8))
				c.post(p)
				x.WRID, x.Flags = 3, 0
				p.a.post(x, p.ma.sge(8, 8))
				x.WRID = 4
				p.a.post(x, p.ma.sge(8, 8))
				got := p.a.send.wait(4)
				if got[0].Status != abi.WCSuccess || got[1].Status != c.want || got[2].Status != abi.WCWRFlushErr || got[3].Status != abi.WCWRFlushErr ||
					got[0].WRID != 1 || got[2].WRID != 3 || got[3].WRID != 4 {
					t.Fatalf("completions %s, want success, %v, flushed, flushed", describe(got), c.want)
				}
				if p.a.q.State() != abi.QPStateErr {
					t.Fatalf("QP is in %v", p.a.q.State())
				}
				remote := c.want != abi.WCLocProtErr && c.want != abi.WCLocLenErr && c.want != abi.WCLocQPOpErr
				p.settle(1e9)
				if remote != (p.b.q.State() == abi.QPStateErr) {
					t.Fatalf("peer is in %v", p.b.q.State())
				}
				if c.recv != 0 {
					r := p.b.recv.wait(1)
					if r[0].Status != c.recv || r[0].WRID != 7 {
						t.Fatalf("receive %s, want %v", describe(r), c.recv)
					}
				}
				for i, h := range p.hosts {
					if h.credits.InUse() != (credit.Cost{}) {
						t.Fatalf("host %d: credits in use %v", i, h.credits.InUse())
					}
				}
				if len(p.hosts[0].async) != 1 || p.hosts[0].async[0].typ != abi.EventQPFatal || p.hosts[0].async[0].number != p.a.number {
					t.Fatalf("events %+v", p.hosts[0].async)
				}
				// The rest of the function works: a new pair on the same memory.
				a2, b2 := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
				p.connect(a2, b2, ordered)
				a2.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: good.addr, RKey: good.key}, p.ma.sge(8, 8))
				success(t, a2.send.wait(1))
			})
		})
	}
}

func TestSendInvalidate(t *testing.T) {
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

func TestReceiverNotReady(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 8192, worldConfig{}, qpConfig{})
		for i := range 5 {
			op := abi.OpSend
			x := abi.SendWQE{WRID: uint64(i), Opcode: op, Flags: abi.SendSignaled}
			if i%2 == 1 {
				x = p.remote(abi.OpWriteImm, 0)
				x.WRID, x.Imm = uint64(i), uint32(i)
			}
			p.a.post(x, p.ma.sge(0, 3000))
		}
		p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(4096, 3000))
		p.settle(50e6)
		if n := p.hosts[0].fn.Stats().RNRRx; n == 0 {
			t.Fatal("no receiver-not-ready answer")
		}
		if _, ok := p.a.send.poll(); ok {
			t.Fatal("completion before a receive was posted")
		}
		for i := range 5 {
			p.b.receive(uint64(10+i), p.mb.sge(0, 4096))
			p.settle(20e6)
		}
		got := p.a.send.wait(6)
		success(t, got)
		for i, c := range p.b.recv.wait(5) {
			if c.Status != abi.WCSuccess || c.WRID != uint64(10+i) || c.ByteLen != 3000 {
				t.Fatalf("receive %d: %+v", i, c)
			}
		}
	})
}

// TestRNRRetryForEver: RNR retry 7 outlasts every timeout of the transport, also for requests
// behind it. Falcon §11 reclaims what is unanswered; a peer that answers "not ready" is alive.
func TestRNRRetryForEver(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		for _, loss := range []float64{0, 0.3} {
			p := newPair(t, ordered, 8192, worldConfig{net: sim.Impairment{Loss: loss}, seed: 11}, qpConfig{})
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 7})
			p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 0}) // 655 ms
			for range 40 {
				p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 64))
			}
			p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(4096, 3000))
			p.settle(300e9)
			if n := p.hosts[0].fn.Stats().RNRRx; n < 300 {
				t.Fatalf("%d times not ready in five minutes", n)
			}
			if c, ok := p.a.send.poll(); ok && ordered {
				t.Fatalf("completion without a receive: %+v", c)
			}
			for range 40 {
				p.b.receive(1, p.mb.sge(0, 4096))
			}
			success(t, p.a.send.wait(41))
			success(t, p.b.recv.wait(40))
		}
	})
}

func TestReceiverNeverReady(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 3})
	p.a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpSend}, p.ma.sge(0, 3000))
	p.a.post(abi.SendWQE{WRID: 2, Opcode: abi.OpSend}, p.ma.sge(0, 3000))
	got := p.a.send.wait(2)
	if got[0].Status != abi.WCRNRRetryExcErr || got[1].Status != abi.WCWRFlushErr {
		t.Fatalf("completions %s", describe(got))
	}
}

// TestPeerGone cuts the link: the requester gives up, flushes, and holds nothing any more.
func TestPeerGone(t *testing.T) {
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

// TestWrongQP sends to a QP number that does not own the connection (RDMA over Falcon §6.9). The
// request is refused, and the QP that owns the connection continues.
func TestWrongQP(t *testing.T) {
	for _, op := range []abi.Opcode{abi.OpWrite, abi.OpRead, abi.OpFetchAdd} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		other := p.hosts[1].createQP(p.pd[1], qpConfig{})
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
		p.connectAs(a, b, true, other.number, a.number)
		a.post(p.remote(op, 0), p.ma.sge(0, 8))
		if got := a.send.wait(1)[0].Status; got != abi.WCRemInvReqErr {
			t.Fatalf("%v: %v", op, got)
		}
		if b.q.State() != abi.QPStateRTS || other.q.State() != abi.QPStateInit {
			t.Fatalf("%v: QPs are in %v and %v", op, b.q.State(), other.q.State())
		}
		if n := p.hosts[1].fn.Stats().CIDMismatches; n != 1 {
			t.Fatalf("%v: %d mismatches counted", op, n)
		}
	}
}

// TestWrongQPUnreliable: the same on an unreliable connection, where neither end is told.
func TestWrongQPUnreliable(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	a, b := p.hosts[0].createQP(p.pd[0], uc), p.hosts[1].createQP(p.pd[1], uc)
	p.connectAs(a, b, true, b.number+1, a.number)
	a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	a.send.wait(1)
	p.settle(1e6)
	if n := p.hosts[1].fn.Stats().CIDMismatches; n != 1 || b.q.State() != abi.QPStateRTS {
		t.Fatalf("%d mismatches counted, QP in %v", n, b.q.State())
	}
}

// TestDeregister ends a registration while it is in use. Only what has not been sent or answered
// fails.
func TestDeregister(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		p := newPair(t, true, 1<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 1<<20))
		p.step()
		ok(t, p.hosts[0].fn.DeregMR(p.ma.key))
		if got := p.a.send.wait(1)[0].Status; got != abi.WCLocProtErr {
			t.Fatalf("WRITE from a region that is gone: %v", got)
		}
	})
	t.Run("remote", func(t *testing.T) {
		p := newPair(t, true, 1<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 1<<20))
		p.step()
		ok(t, p.hosts[1].fn.DeregMR(p.mb.key))
		if got := p.a.send.wait(1)[0].Status; got != abi.WCRemAccessErr && got != abi.WCRemOpErr {
			t.Fatalf("READ of a region that is gone: %v", got)
		}
	})
}

// TestStaleKeys registers again and again: no old key becomes valid for another region soon.
func TestStaleKeys(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectMR: 2}}})
	h := w.hosts[0]
	pd, _ := h.fn.AllocPD()
	addr := h.alloc(4096)
	list := h.pageList(addr, 4096, 1)
	seen := map[uint32]bool{}
	for range 400 {
		key, _, st := h.fn.RegMR(&abi.RegMR{PDN: pd, IOVA: addr, Length: 4096, Pages: list, Levels: 1})
		ok(t, st)
		if seen[key] {
			t.Fatalf("key %#x again after %d registrations", key, len(seen))
		}
		seen[key] = true
		ok(t, h.fn.DeregMR(key))
		if h.fn.DeregMR(key) != abi.StatusNotFound {
			t.Fatal("key still valid")
		}
	}
}
