package rdma

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// observer makes operations of what a host's function does.
type observer struct {
	ring *trace.Ring
	make *trace.Assembler
	list []*trace.Operation
}

func (h *host) observe(qpn uint32) *observer {
	o := &observer{}
	o.ring = trace.NewRing(1024, func() int64 { return int64(h.w.now) }, qpn)
	o.make = trace.NewAssembler(func(x *trace.Operation) { o.list = append(o.list, x) })
	h.fn.UseTrace(o.ring)
	return o
}

// whole are the operations since the last call; none may be left open.
func (o *observer) whole(t *testing.T) []*trace.Operation {
	t.Helper()
	events, lost := o.ring.Take(nil)
	for i := range events {
		o.make.Take(&events[i])
	}
	n := len(o.list)
	if o.make.Finish(); lost != 0 || len(o.list) != n {
		t.Errorf("%d events lost, %d operations not whole: %+v", lost, len(o.list)-n, o.list[n:])
	}
	list := o.list
	o.list = nil
	slices.SortStableFunc(list, func(a, b *trace.Operation) int { return cmp.Compare(a.Index, b.Index) })
	return list
}

// steps names what an operation went through.
func steps(o *trace.Operation) (names []string) {
	for _, m := range o.Marks() {
		names = append(names, m.Step.String())
	}
	return names
}

// TestTheTraceOverRoCEIsWhole: the trace of a connection over RoCEv2 has each request whole at both
// ends, with its packets, lengths and steps in their order.
func TestTheTraceOverRoCEIsWhole(t *testing.T) {
	worldsOver(t, byRoCE)
	p := newPair(t, true, 1<<16, worldConfig{net: sim.Impairment{Delay: 20e3}}, qpConfig{})
	a, b := p.hosts[0].observe(0), p.hosts[1].observe(0)
	requester := []string{"doorbell", "wqe_read", "issued", "scheduled", "sealed", "acked", "cqe_written"}
	several := []string{"doorbell", "wqe_read", "issued", "scheduled", "sealed", "last_sealed", "acked", "cqe_written"}
	taken := []string{"received", "opened", "delivered", "acked"}
	pulled := []string{"received", "opened", "delivered", "scheduled", "sealed"}
	for _, c := range []struct {
		op      abi.Opcode
		n       int
		packets int
		steps   []string
		peer    []ib.Opcode
		lengths []uint32
		at      []string // the steps of each packet at the peer; nil: those of taken
	}{
		{abi.OpWrite, 100, 1, requester, []ib.Opcode{ib.WriteOnly}, []uint32{100}, nil},
		{abi.OpWrite, 3000, 3, several, []ib.Opcode{ib.WriteFirst, ib.WriteMiddle, ib.WriteLast}, []uint32{1024, 1024, 952}, nil},
		{abi.OpSend, 1500, 2, several, []ib.Opcode{ib.SendFirst, ib.SendLast}, []uint32{1024, 476}, nil},
		{abi.OpRead, 700, 1, requester, []ib.Opcode{ib.ReadRequest}, []uint32{700}, pulled},
		{abi.OpFetchAdd, 8, 1, requester, []ib.Opcode{ib.FetchAdd}, []uint32{8}, pulled},
	} {
		p.b.receive(1, p.mb.sge(0, 4096))
		x := p.remote(c.op, 0)
		x.WRID = 77
		p.a.post(x, p.ma.sge(0, c.n))
		success(t, p.a.send.wait(1))
		p.settle(1e9)
		own := a.whole(t)
		if len(own) != 1 || own[0].QPN != p.a.number || own[0].WRID != 77 || own[0].Op != uint8(c.op) || own[0].Length != uint32(c.n) || own[0].Packets != c.packets ||
			own[0].Again != 0 || own[0].Over().Name != "roce" || own[0].Loopback || own[0].Responder || !slices.Equal(steps(own[0]), c.steps) {
			t.Errorf("%v of %d bytes: %+v with steps %q", c.op, c.n, own, steps(own[0]))
		}
		peer := b.whole(t)
		if len(peer) != len(c.peer) {
			t.Fatalf("%v of %d bytes: %d packets at the peer, want %d", c.op, c.n, len(peer), len(c.peer))
		}
		for i, o := range peer {
			want := c.at
			if want == nil {
				want = taken
			}
			if c.op == abi.OpSend && i == len(peer)-1 {
				want = []string{"received", "opened", "delivered", "cqe_written", "acked"}
			}
			if !o.Responder || o.Over().Name != "roce" || ib.Opcode(o.Op) != c.peer[i] || o.Length != c.lengths[i] || o.QPN != p.b.number || !slices.Equal(steps(o), want) {
				t.Errorf("%v of %d bytes, packet %d: %+v with steps %q", c.op, c.n, i, o, steps(o))
			}
		}
	}
}

// TestTheTraceOfDatagramsIsWhole: a datagram over RoCEv2 ends when it is sent, at the other end
// when it is there; with the trace of one queue pair those of others do not show.
func TestTheTraceOfDatagramsIsWhole(t *testing.T) {
	worldsOver(t, byRoCE)
	p := newUDPair(t, worldConfig{}, qpConfig{})
	a, b := p.hosts[0].observe(0), p.hosts[1].observe(0)
	for _, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm} {
		p.qps[1].receive(1, p.mem[1].sge(0, 2000))
		p.qps[0].post(p.to(0, op), p.mem[0].sge(0, 333))
		success(t, p.qps[0].send.wait(1))
		success(t, p.qps[1].recv.wait(1))
		p.settle(1e6)
		own, peer := a.whole(t), b.whole(t)
		if len(own) != 1 || own[0].Length != 333 || own[0].Packets != 1 || own[0].Over().Name != "roce" ||
			!slices.Equal(steps(own[0]), []string{"doorbell", "wqe_read", "issued", "scheduled", "sealed", "cqe_written"}) {
			t.Errorf("%v: %+v with steps %q", op, own, steps(own[0]))
		}
		want := ib.UD | ib.SendOnly
		if op == abi.OpSendImm {
			want = ib.UD | ib.SendOnlyImm
		}
		if len(peer) != 1 || ib.Opcode(peer[0].Op) != want || peer[0].Length != 333 || peer[0].QPN != p.qps[1].number || peer[0].Over().Name != "roce" ||
			!slices.Equal(steps(peer[0]), []string{"received", "opened", "delivered", "cqe_written"}) {
			t.Errorf("%v: %+v with steps %q", op, peer, steps(peer[0]))
		}
	}
	a, b = p.hosts[0].observe(p.qps[0].number+1), p.hosts[1].observe(p.qps[1].number+1)
	p.qps[1].receive(1, p.mem[1].sge(0, 2000))
	p.qps[0].post(p.to(0, abi.OpSend), p.mem[0].sge(0, 10))
	success(t, p.qps[1].recv.wait(1))
	if own, peer := a.whole(t), b.whole(t); len(own)+len(peer) != 0 {
		t.Errorf("traces of others: %+v %+v", own, peer)
	}
}

// sealing seals each packet that Falcon takes, as the shard does.
type sealing struct {
	*rof.Engine
	ring *trace.Ring
}

func (s *sealing) Fill(c *falcon.Conn, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	n, err := s.Engine.Fill(c, kind, tag, dst)
	if s.ring != nil {
		s.ring.SealedPacket()
	}
	return n, err
}

// TestTheTraceOverFalconIsWhole: the trace of a connection over Falcon has the steps of requests
// and of responses; each packet is sealed once.
func TestTheTraceOverFalconIsWhole(t *testing.T) {
	var seals [2]*sealing
	p := newPair(t, true, 8192, worldConfig{watch: func(i int, e *Engine) sim.Handler {
		seals[i] = &sealing{Engine: Wire[*rof.Engine](e)}
		return seals[i]
	}}, qpConfig{})
	a, b := p.hosts[0].observe(0), p.hosts[1].observe(0)
	seals[0].ring, seals[1].ring = a.ring, b.ring
	for op, packets := range map[abi.Opcode]int{abi.OpWrite: 3, abi.OpRead: 3, abi.OpFetchAdd: 1} {
		p.a.post(p.remote(op, 0), p.ma.sge(0, map[bool]int{true: 3000, false: 8}[packets > 1]))
		success(t, p.a.send.wait(1))
		p.settle(1e9)
		a.ring.SealedPacket() // there is none any more
		b.ring.SealedPacket()
		own := a.whole(t)
		if len(own) != 1 || own[0].Packets != packets || own[0].Loopback || own[0].Over().Name == "roce" || own[0].Again != 0 {
			t.Errorf("%v: %+v", op, own)
		}
		events, _ := b.ring.Take(nil)
		seen := map[trace.Kind]int{}
		for i := range events {
			e := &events[i]
			seen[e.Kind]++
			if (e.Flags&trace.Responder != 0) != (e.Kind != trace.Delivered) || e.Flags&trace.Loopback != 0 {
				t.Errorf("%v: flags %#x of %+v", op, e.Flags, e)
			}
		}
		want := map[trace.Kind]int{trace.Delivered: packets}
		if op != abi.OpWrite {
			want[trace.Scheduled], want[trace.Sealed], want[trace.Acked] = packets, packets, packets
		}
		if !maps.Equal(seen, want) {
			t.Errorf("%v: the peer's events by kind %v, want %v", op, seen, want)
		}
	}
}

// TestTheTraceInsideANICIsWhole: inside a NIC each request is whole at both ends, too. Nothing of
// it is sealed: the responder's part ends when it is answered.
func TestTheTraceInsideANICIsWhole(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	a, b := p.hosts[0].observe(0), p.hosts[1].observe(0)
	for _, c := range []struct {
		op      abi.Opcode
		n       int
		packets int
		peer    []string
	}{
		{abi.OpWrite, 5000, (5000 + pathMTU - 1) / pathMTU, []string{"delivered", "acked"}},
		{abi.OpRead, 700, 1, []string{"delivered", "scheduled", "acked"}},
		{abi.OpFetchAdd, 8, 1, []string{"delivered", "scheduled", "acked"}},
	} {
		p.a.post(p.remote(c.op, 0), p.ma.sge(0, c.n))
		success(t, p.a.send.wait(1))
		p.settle(1e6)
		a.ring.SealedPacket() // of another connection
		b.ring.SealedPacket()
		own, peer := a.whole(t), b.whole(t)
		if len(own) != 1 || !own[0].Loopback || own[0].Packets != c.packets ||
			!slices.Equal(steps(own[0]), []string{"doorbell", "wqe_read", "issued", "scheduled", "acked", "cqe_written"}) {
			t.Errorf("%v: %+v with steps %q", c.op, own, steps(own[0]))
		}
		if len(peer) != c.packets {
			t.Errorf("%v: %d packets at the peer, want %d", c.op, len(peer), c.packets)
		}
		for _, o := range peer {
			if !o.Responder || !o.Loopback || o.QPN != p.b.number || !slices.Equal(steps(o), c.peer) {
				t.Errorf("%v: %+v with steps %q", c.op, o, steps(o))
			}
		}
	}
}

// TestTheTraceShowsWhetherAnEventFollows: the trace shows for a completion whether an event
// follows: at once, after further completions, or not at all.
func TestTheTraceShowsWhetherAnEventFollows(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	at := int64(0)
	r := trace.NewRing(256, func() int64 { at++; return at }, 0)
	h, c := p.hosts[0], p.a.send
	h.fn.UseTrace(r)
	write := func(what string, wanted bool) {
		t.Helper()
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		c.wait(1)
		list, _ := r.Take(nil)
		n := 0
		for _, e := range list {
			if e.Kind == trace.Completed {
				n++
				if got := e.Flags&trace.Wanted != 0; got != wanted {
					t.Errorf("%s: an event follows: %v, want %v", what, got, wanted)
				}
			}
		}
		if n != 1 {
			t.Errorf("%s: %d completions in the trace", what, n)
		}
	}
	write("not armed", false)
	c.arm(false)
	write("armed", true)
	ok(t, h.fn.ModifyCQ(&abi.ModifyCQ{CQN: c.number, Count: 3, Period: 50000}))
	c.arm(false)
	write("first of three", true)
	write("second of three", true)
}
