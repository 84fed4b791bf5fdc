package rdma

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// srq is a shared receive queue with its driver side.
type srq struct {
	h      *host
	number uint32
	ring   *ring.Producer
	mem    []byte
	cmd    abi.CreateSRQ
}

// queueMem makes memory for a queue of 2^log2 entries of 512 bytes.
func (h *host) queueMem(log2 uint8) (mem []byte, root uint64, levels uint8) {
	n := int(ring.QueueLayout(log2, 9).Size())
	at := h.alloc(n)
	return h.bytes(at, n), h.pageList(at, n, levelsFor(n)), levelsFor(n)
}

func (h *host) createSRQ(c abi.CreateSRQ) *srq {
	h.w.t.Helper()
	if c.Log2Entries == 0 {
		c.Log2Entries = 6
	}
	c.Log2Stride, c.MaxSGE = 9, 4
	s := &srq{h: h}
	s.mem, c.Pages, c.Levels = h.queueMem(c.Log2Entries)
	s.ring = ring.NewProducer(ring.Mem(s.mem), ring.QueueLayout(c.Log2Entries, 9))
	var st abi.Status
	s.number, st = h.fn.CreateSRQ(&c)
	ok(h.w.t, st)
	s.cmd = c
	return s
}

// receive posts a receive.
func (s *srq) receive(wrid uint64, sges ...abi.SGE) {
	s.h.w.t.Helper()
	var b [512]byte
	x := abi.RecvWQE{WRID: wrid, NumSGE: uint8(len(sges))}
	x.Marshal(b[:])
	for i := range sges {
		sges[i].Marshal(b[abi.RecvWQEHeader+i*abi.SGESize:])
	}
	if err := s.ring.Push(b[:]); err != nil {
		s.h.w.t.Fatal(err)
	}
	index, _, err := s.ring.Publish()
	if err != nil {
		s.h.w.t.Fatal(err)
	}
	s.h.fn.Doorbell(s.h.w.now, &abi.Doorbell{Kind: abi.DoorbellSRQ, Queue: s.number, Index: index})
}

// modify sets the limit.
func (s *srq) setLimit(n uint32) abi.Status {
	_, st := s.h.fn.ModifySRQ(&abi.ModifySRQ{SRQN: s.number, Mask: abi.SRQAttrLimit, Limit: n})
	return st
}

// TestSRQ lets three connections take the receives of one queue: each message once, in the order of
// arrival, whole, and with the queue's number in the completion. (DEV-920)
func TestSRQ(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		w := newWorld(t, worldConfig{})
		pd0, _ := w.hosts[0].fn.AllocPD()
		pd1, _ := w.hosts[1].fn.AllocPD()
		data := w.hosts[0].register(pd0, 64<<10, allAccess)
		box := w.hosts[1].register(pd1, 256<<10, allAccess)
		fill(data.bytes(), 1)
		s := w.hosts[1].createSRQ(abi.CreateSRQ{PDN: pd1})
		recv := w.hosts[1].createCQ(10)
		var senders, receivers []*qp
		for range 3 {
			a := w.hosts[0].createQP(pd0, qpConfig{})
			b := w.hosts[1].createQP(pd1, qpConfig{srq: s, recv: recv})
			w.connect(a, b, ordered)
			senders, receivers = append(senders, a), append(receivers, b)
		}
		const each = 12
		for i := range 3 * each {
			s.receive(uint64(i), box.sge(i*4096, 4096))
		}
		for i := range each {
			for j, a := range senders {
				x := abi.SendWQE{WRID: uint64(i), Opcode: abi.OpSendImm, Flags: abi.SendSignaled, Imm: uint32(j<<16 | i)}
				a.post(x, data.sge(j*1000+i, 100+i*200))
			}
		}
		for _, a := range senders {
			success(t, a.send.wait(each))
		}
		next := map[int]int{}
		seen := map[uint64]bool{}
		for _, c := range recv.wait(3 * each) {
			j, i := int(c.Imm>>16), int(c.Imm&0xffff)
			if c.Status != abi.WCSuccess || c.SRQN != s.number || c.QPN != receivers[j].number || c.SrcQP != senders[j].number || int(c.ByteLen) != 100+i*200 {
				t.Fatalf("completion %+v", c)
			}
			if next[j] != i || seen[c.WRID] {
				t.Fatalf("connection %d: message %d where %d was due (receive %d)", j, i, next[j], c.WRID)
			}
			next[j], seen[c.WRID] = i+1, true
			if !bytes.Equal(box.bytes()[c.WRID*4096:][:c.ByteLen], data.bytes()[j*1000+i:][:c.ByteLen]) {
				t.Fatalf("connection %d, message %d: wrong bytes", j, i)
			}
		}
	})
}

// TestSRQLimit holds the event: once, when fewer entries than the limit are left, and at once when
// that is so already. (DEV-921)
func TestSRQLimit(t *testing.T) {
	p := newPair(t, true, 64<<10, worldConfig{}, qpConfig{})
	h := p.hosts[1]
	h.fn.UseFeatures(abi.FeatureExtendedVerbs)
	s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1], Limit: 4})
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s})
	p.connect(a, b, true)
	for i := range 6 {
		s.receive(uint64(i), p.mb.sge(0, 100))
	}
	send := func() {
		t.Helper()
		a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
		success(t, a.send.wait(1))
	}
	send()
	send()
	if len(h.async) != 0 {
		t.Fatalf("events with 4 entries left: %+v", h.async)
	}
	send()
	if len(h.async) != 1 || h.async[0].typ != abi.EventSRQLimit || h.async[0].number != s.number {
		t.Fatalf("events %+v", h.async)
	}
	send()
	if q, _ := h.fn.QuerySRQ(s.number); q.Limit != 0 || q.Entries != 64 || q.MaxSGE != 4 {
		t.Fatalf("query %+v", q)
	}
	ok(t, s.setLimit(2)) // two are left
	if len(h.async) != 1 {
		t.Fatalf("events %+v", h.async)
	}
	ok(t, s.setLimit(3))
	if len(h.async) != 2 {
		t.Fatalf("no event for a limit above what is there: %+v", h.async)
	}
	if st := s.setLimit(65); st != abi.StatusInvalidArgument {
		t.Errorf("limit above the entries: %v", st)
	}
}

// TestSRQResize moves the queue to a smaller and a larger area; the driver posts again what was not
// read. (DEV-922)
func TestSRQResize(t *testing.T) {
	p := newPair(t, true, 64<<10, worldConfig{}, qpConfig{})
	h := p.hosts[1]
	s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1]})
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s})
	p.connect(a, b, true)
	next := uint64(0)
	for _, log2 := range []uint8{3, 8} {
		for i := range 5 {
			s.receive(next+uint64(i), p.mb.sge(0, 100))
		}
		for range 2 {
			a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
		}
		success(t, a.send.wait(2))
		m := &abi.ModifySRQ{SRQN: s.number, Mask: abi.SRQAttrArea, Log2Entries: log2}
		var mem []byte
		mem, m.Pages, m.Levels = h.queueMem(log2)
		old := s.ring.Next()
		consumer, st := h.fn.ModifySRQ(m)
		ok(t, st)
		if old-consumer != 3 {
			t.Fatalf("%d of %d entries read", consumer, old)
		}
		for i := range s.mem {
			s.mem[i] = 0xff // it is the driver's
		}
		s.mem, s.ring = mem, ring.NewProducer(ring.Mem(mem), ring.QueueLayout(log2, 9))
		for i := range uint64(3) {
			s.receive(next+2+i, p.mb.sge(0, 100))
		}
		for range 3 {
			a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
		}
		success(t, a.send.wait(3))
		for i, c := range b.recv.wait(5) {
			if c.WRID != next+uint64(i) || c.Status != abi.WCSuccess {
				t.Fatalf("receive %d: %+v", i, c)
			}
		}
		next += 5
	}
}

// TestSRQFailure fails one of two QPs of a shared queue: what it had taken is flushed, then
// EventLastWQE, and the other QP takes the rest. (DEV-923)
func TestSRQFailure(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 64<<10, worldConfig{}, qpConfig{})
		h := p.hosts[1]
		h.fn.UseFeatures(abi.FeatureExtendedVerbs)
		s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1]})
		recv := h.createCQ(8)
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s, recv: recv})
		a2, b2 := p.hosts[0].createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[1], qpConfig{srq: s, recv: recv})
		p.connect(a, b, ordered)
		p.connect(a2, b2, ordered)
		s.receive(1, p.mb.sge(0, 64<<10))
		s.receive(2, p.mb.sge(0, 5000))
		// A message longer than the window: when its first packets are there it has taken a
		// receive.
		a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 64<<10))
		p.run(1e9, func() bool { return h.fn.SRQ(s.number).Taken() > 0 })
		b.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
		got := recv.wait(1)
		if got[0].WRID != 1 || got[0].Status != abi.WCWRFlushErr || got[0].SRQN != s.number {
			t.Fatalf("flushed %+v", got[0])
		}
		p.settle(1e8)
		if len(h.async) != 1 || h.async[0].typ != abi.EventLastWQE || h.async[0].number != b.number {
			t.Fatalf("events %+v", h.async)
		}
		a2.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 4000))
		success(t, a2.send.wait(1))
		if got := recv.wait(1)[0]; got.WRID != 2 || got.Status != abi.WCSuccess || got.QPN != b2.number {
			t.Fatalf("received %+v", got)
		}
		if st := h.fn.DestroySRQ(s.number); st != abi.StatusBusy {
			t.Fatalf("destroyed a queue in use: %v", st)
		}
		ok(t, h.fn.DestroyQP(p.now, b.number))
		ok(t, h.fn.DestroyQP(p.now, b2.number))
		ok(t, h.fn.DestroySRQ(s.number))
	})
}

// xrc is an XRC connection from host 0 to host 1, and two SRQs of its domain there.
type xrc struct {
	*pair
	xrcd uint32
	srqs [2]*srq
	cqs  [2]*cq
}

func newXRC(t testing.TB, ordered bool) *xrc {
	t.Helper()
	x := &xrc{pair: newPair(t, ordered, 64<<10, worldConfig{}, qpConfig{})}
	h := x.hosts[1]
	h.fn.UseFeatures(abi.FeatureExtendedVerbs)
	var st abi.Status
	x.xrcd, st = h.fn.OpenXRCD()
	ok(t, st)
	for i := range x.srqs {
		x.cqs[i] = h.createCQ(8)
		x.srqs[i] = h.createSRQ(abi.CreateSRQ{PDN: x.pd[1], Type: abi.SRQTypeXRC, XRCDN: x.xrcd, CQN: x.cqs[i].number})
	}
	x.a = x.hosts[0].createQP(x.pd[0], qpConfig{typ: abi.QPTypeXRCSend})
	x.b = h.createQP(0, qpConfig{typ: abi.QPTypeXRCRecv, xrcd: x.xrcd})
	x.connect(x.a, x.b, ordered)
	return x
}

// TestShowXRC: both ends of an XRC connection can be looked at, though the target has no queue.
func TestShowXRC(t *testing.T) {
	x := newXRC(t, true)
	for i, q := range []*qp{x.a, x.b} {
		if info := q.info(); info.Number != q.number || info.Type != q.q.Type() || info.State != abi.QPStateRTS || info.Posted != 0 {
			t.Errorf("QP of NIC %d: %+v", i, info)
		}
		x.hosts[i].fn.EachQueue(func(u *verbs.QueueInfo) {
			if u.Number == x.b.number && i == 1 && u.Kind != verbs.CompletionQueue {
				t.Errorf("a target with a queue: %+v", u)
			}
		})
	}
}

// TestXRC sends every kind of request over one XRC connection to two SRQs.
// (DEV-924)
func TestXRC(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		x := newXRC(t, ordered)
		fill(x.ma.bytes(), 5)
		var want [2]int
		for i := range 30 {
			to := i % 3 % 2
			var w abi.SendWQE
			n := 100 + i*300
			off := i * 2000 % 40000
			switch i % 5 {
			case 0:
				w = abi.SendWQE{Opcode: abi.OpSend}
			case 1:
				w = x.remote(abi.OpWriteImm, off)
			case 2:
				w = x.remote(abi.OpWrite, off)
			case 3:
				w = x.remote(abi.OpRead, off)
			case 4:
				w = x.remote(abi.OpFetchAdd, off)
				n = 8
			}
			w.WRID, w.Flags, w.Imm, w.RemoteSRQN = uint64(i), abi.SendSignaled, uint32(i), x.srqs[to].number
			if w.Opcode == abi.OpSend || w.Opcode == abi.OpWriteImm {
				x.srqs[to].receive(uint64(1000+want[to]), x.mb.sge(50000, 12000))
				want[to]++
			}
			at := 1000
			if w.Opcode == abi.OpRead || w.Opcode == abi.OpFetchAdd {
				at = 40000
			}
			x.a.post(w, x.ma.sge(at, n))
			if s := x.a.send.wait(1); s[0].Status != abi.WCSuccess || s[0].WRID != uint64(i) {
				t.Fatalf("request %d (%v): %+v", i, w.Opcode, s[0])
			}
			switch w.Opcode {
			case abi.OpWrite, abi.OpWriteImm:
				if !bytes.Equal(x.mb.bytes()[off:off+n], x.ma.bytes()[at:at+n]) {
					t.Fatalf("request %d: wrong bytes written", i)
				}
			case abi.OpRead:
				if !bytes.Equal(x.mb.bytes()[off:off+n], x.ma.bytes()[at:at+n]) {
					t.Fatalf("request %d: wrong bytes read", i)
				}
			}
		}
		for i := range want {
			for k, c := range x.cqs[i].wait(want[i]) {
				if c.Status != abi.WCSuccess || c.WRID != uint64(1000+k) || c.SRQN != x.srqs[i].number || c.QPN != x.b.number || c.SrcQP != x.a.number {
					t.Fatalf("SRQ %d: completion %+v", i, c)
				}
			}
		}
	})
}

// TestXRCRefusals: what an XRC request names wrongly costs the connection, and nothing else.
func TestXRCRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		post func(x *xrc)
		want abi.WCStatus
	}{
		{"no such SRQ", func(x *xrc) { x.a.post(abi.SendWQE{Opcode: abi.OpSend, RemoteSRQN: 0x55}, x.ma.sge(0, 8)) }, abi.WCRemInvReqErr},
		{"a basic SRQ", func(x *xrc) {
			s := x.hosts[1].createSRQ(abi.CreateSRQ{PDN: x.pd[1]})
			x.a.post(abi.SendWQE{Opcode: abi.OpSend, RemoteSRQN: s.number}, x.ma.sge(0, 8))
		}, abi.WCRemInvReqErr},
		{"an SRQ of another domain", func(x *xrc) {
			other, _ := x.hosts[1].fn.OpenXRCD()
			s := x.hosts[1].createSRQ(abi.CreateSRQ{PDN: x.pd[1], Type: abi.SRQTypeXRC, XRCDN: other, CQN: x.cqs[0].number})
			x.a.post(abi.SendWQE{Opcode: abi.OpSend, RemoteSRQN: s.number}, x.ma.sge(0, 8))
		}, abi.WCRemInvReqErr},
		{"memory of another domain than the SRQ's", func(x *xrc) {
			pd, _ := x.hosts[1].fn.AllocPD()
			m := x.hosts[1].register(pd, 4096, allAccess)
			w := abi.SendWQE{Opcode: abi.OpWrite, RemoteAddr: m.addr, RKey: m.key, RemoteSRQN: x.srqs[0].number}
			x.a.post(w, x.ma.sge(0, 8))
		}, abi.WCRemAccessErr},
		{"READ of memory of another domain", func(x *xrc) {
			pd, _ := x.hosts[1].fn.AllocPD()
			m := x.hosts[1].register(pd, 4096, allAccess)
			w := abi.SendWQE{Opcode: abi.OpRead, RemoteAddr: m.addr, RKey: m.key, RemoteSRQN: x.srqs[0].number}
			x.a.post(w, x.ma.sge(0, 8))
		}, abi.WCRemAccessErr},
		{"an SRQ that failed", func(x *xrc) {
			small := x.hosts[1].createCQ(1)
			s := x.hosts[1].createSRQ(abi.CreateSRQ{PDN: x.pd[1], Type: abi.SRQTypeXRC, XRCDN: x.xrcd, CQN: small.number})
			for i := range 4 {
				s.receive(uint64(i), x.mb.sge(0, 100))
			}
			for range 4 {
				x.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled, RemoteSRQN: s.number}, x.ma.sge(0, 8))
				x.settle(1e7)
			}
			success(x.t, x.a.send.wait(3)) // the third overflowed the CQ
			if ev := x.hosts[1].async; len(ev) < 2 || ev[0].typ != abi.EventCQError || ev[1].typ != abi.EventSRQError || ev[1].number != s.number {
				x.t.Fatalf("events %+v", ev)
			}
		}, abi.WCRemOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newXRC(t, true)
			c.post(x)
			if got := x.a.send.wait(1)[0]; got.Status != c.want {
				t.Fatalf("%v, want %v", got.Status, c.want)
			}
		})
	}
	t.Run("an RC request at an XRC target", func(t *testing.T) {
		x := newXRC(t, true)
		a := x.hosts[0].createQP(x.pd[0], qpConfig{})
		b := x.hosts[1].createQP(0, qpConfig{typ: abi.QPTypeXRCRecv, xrcd: x.xrcd})
		x.connect(a, b, true)
		a.post(x.remote(abi.OpWrite, 0), x.ma.sge(0, 8))
		if got := a.send.wait(1)[0]; got.Status != abi.WCRemInvReqErr {
			t.Fatal(got.Status)
		}
	})
	t.Run("an XRC request at an RC queue pair", func(t *testing.T) {
		x := newXRC(t, true)
		a := x.hosts[0].createQP(x.pd[0], qpConfig{typ: abi.QPTypeXRCSend})
		b := x.hosts[1].createQP(x.pd[1], qpConfig{})
		x.connect(a, b, true)
		a.post(x.remote(abi.OpWrite, 0), x.ma.sge(0, 8))
		if got := a.send.wait(1)[0]; got.Status != abi.WCRemInvReqErr {
			t.Fatal(got.Status)
		}
	})
}

// TestXRCDestroy checks which objects cannot be destroyed while others exist.
func TestXRCDestroy(t *testing.T) {
	x := newXRC(t, true)
	f := x.hosts[1].fn
	busy := func(name string, st abi.Status) {
		t.Helper()
		if st != abi.StatusBusy {
			t.Errorf("%s in use: %v", name, st)
		}
	}
	busy("domain", f.CloseXRCD(x.xrcd))
	busy("CQ", f.DestroyCQ(x.cqs[0].number))
	ok(t, f.DestroyQP(x.now, x.b.number))
	busy("domain", f.CloseXRCD(x.xrcd))
	for i, s := range x.srqs {
		ok(t, f.DestroySRQ(s.number))
		ok(t, f.DestroyCQ(x.cqs[i].number))
	}
	ok(t, f.CloseXRCD(x.xrcd))
	if f.CloseXRCD(x.xrcd) != abi.StatusNotFound || f.DestroySRQ(x.srqs[0].number) != abi.StatusNotFound {
		t.Error("destroyed twice")
	}
}

// TestCreateOfEveryType checks which parts queue pairs of each type may have.
func TestCreateOfEveryType(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	pd, _ := h.fn.AllocPD()
	xrcd, _ := h.fn.OpenXRCD()
	cq := h.createCQ(4)
	basic := h.createSRQ(abi.CreateSRQ{PDN: pd})
	shared := h.createSRQ(abi.CreateSRQ{PDN: pd, Type: abi.SRQTypeXRC, XRCDN: xrcd, CQN: cq.number})
	_, root, levels := h.queueMem(2)
	sq := abi.CreateQP{PDN: pd, SendCQ: cq.number, SQLog2Entries: 2, SQLog2Stride: 9, MaxSendSGE: 1, SQPages: root, SQLevels: levels}
	for i, c := range []struct {
		change func(c *abi.CreateQP)
		want   abi.Status
	}{
		{func(c *abi.CreateQP) { c.Type, c.RecvCQ, c.SRQN = abi.QPTypeRC, cq.number, basic.number }, abi.StatusOK},
		{func(c *abi.CreateQP) { c.Type, c.RecvCQ, c.SRQN = abi.QPTypeRC, cq.number, shared.number }, abi.StatusInvalidArgument},
		{func(c *abi.CreateQP) { c.Type, c.RecvCQ, c.SRQN = abi.QPTypeRC, cq.number, 0x77 }, abi.StatusNotFound},
		{func(c *abi.CreateQP) { c.Type, c.RecvCQ = abi.QPTypeRC, cq.number }, abi.StatusInvalidArgument}, // no RQ
		{func(c *abi.CreateQP) {
			c.Type, c.RecvCQ, c.SRQN, c.RQPages, c.RQLog2Entries = abi.QPTypeRC, cq.number, basic.number, root, 2
		}, abi.StatusInvalidArgument}, // both
		{func(c *abi.CreateQP) { c.Type = abi.QPTypeXRCSend }, abi.StatusOK},
		{func(c *abi.CreateQP) { c.Type, c.RecvCQ = abi.QPTypeXRCSend, cq.number }, abi.StatusInvalidArgument},
		{func(c *abi.CreateQP) { *c = abi.CreateQP{Type: abi.QPTypeXRCRecv, XRCDN: xrcd} }, abi.StatusOK},
		{func(c *abi.CreateQP) { *c = abi.CreateQP{Type: abi.QPTypeXRCRecv} }, abi.StatusNotFound},
		{func(c *abi.CreateQP) { c.Type, c.XRCDN = abi.QPTypeXRCRecv, xrcd }, abi.StatusInvalidArgument},
		{func(c *abi.CreateQP) { c.Type = 77 }, abi.StatusUnsupported},
	} {
		x := sq
		c.change(&x)
		if _, st := h.fn.CreateQP(&x); st != c.want {
			t.Errorf("%d: %v, want %v", i, st, c.want)
		}
	}
	_, st := h.fn.CreateSRQ(&abi.CreateSRQ{PDN: pd, Type: abi.SRQTypeXRC, XRCDN: xrcd, Log2Entries: 2, Log2Stride: 9, Pages: root, Levels: levels})
	if st != abi.StatusNotFound {
		t.Errorf("XRC SRQ without a CQ: %v", st)
	}
	for _, c := range []abi.CreateSRQ{
		{PDN: pd, XRCDN: xrcd, Log2Entries: 2, Log2Stride: 9, Pages: root, Levels: levels},
		{PDN: pd, Type: 2, Log2Entries: 2, Log2Stride: 9, Pages: root, Levels: levels},
		{PDN: pd, Log2Entries: 2, Log2Stride: 5, MaxSGE: 2, Pages: root, Levels: levels},
		{PDN: pd, Log2Entries: 2, Log2Stride: 9, Limit: 5, Pages: root, Levels: levels},
	} {
		if _, st := h.fn.CreateSRQ(&c); st != abi.StatusInvalidArgument {
			t.Errorf("%+v: %v", c, st)
		}
	}
	h.fn.Close(w.now)
	if n := h.fn.Counts(); n != (verbs.Counts{}) {
		t.Errorf("left after Close: %+v", n)
	}
}
