package rdma

import (
	"fmt"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestCountersOfAnExchange: both functions count a known exchange exactly: a WRITE of three
// packets, a READ, an atomic, a SEND that finds no receive at first, a WRITE that is refused, and
// two requests that are flushed behind it.
func TestCountersOfAnExchange(t *testing.T) { eachWire(t, exchange) }

func exchange(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 24}) // 41 ms
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 3000))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(4096, 1500))
	p.a.post(p.remote(abi.OpFetchAdd, 0), p.ma.sge(0, 8))
	success(t, p.a.send.wait(3))
	p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
	p.settle(100e3)
	p.b.receive(1, p.mb.sge(0, 100))
	success(t, p.a.send.wait(1))
	x := p.remote(abi.OpWrite, 0)
	x.RKey ^= 1 << 24
	p.a.post(x, p.ma.sge(0, 8))
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	p.a.send.wait(3)
	p.settle(10e6)
	refused := uint64(1)
	if !overRoCE && !overLoopback {
		refused = 3 // those behind it, which were under way, too
	}
	for i, want := range []Stats{
		{Stats: verbs.Stats{Posted: 7, Completed: 7, Flushed: 2, Errors: 1, QPErrors: 1, Doorbells: 7}, Counters: transport.Counters{PushesTx: 7, PullsTx: 3, BytesTx: 3034, BytesRx: 1508, RNRRx: 1}},
		{Stats: verbs.Stats{Completed: 1, QPErrors: 1, Doorbells: 1}, Counters: transport.Counters{PushesRx: 4, PullsRx: 3, BytesRx: 3010, RNRTx: 1, Refused: refused}},
	} {
		if got := p.hosts[i].fn.Stats(); got != want {
			t.Errorf("host %d: %+v\nwant %+v", i, got, want)
		}
	}
}

// TestTracedEvents: the trace shows for a completion whether an event follows: at once, after
// further completions, or not at all.
func TestTracedEvents(t *testing.T) {
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

// TestPDOfSRQ: a protection domain is busy as long as it has a shared receive queue.
func TestPDOfSRQ(t *testing.T) {
	h := newWorld(t, worldConfig{}).hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	s := h.createSRQ(abi.CreateSRQ{PDN: pd})
	if st := h.fn.DeallocPD(pd); st != abi.StatusBusy {
		t.Errorf("with a queue: %v", st)
	}
	ok(t, h.fn.DestroySRQ(s.number))
	ok(t, h.fn.DeallocPD(pd))
}

// TestFlowOfALink: a link has the flow label of the first handle that uses it.
func TestFlowOfALink(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	for _, flow := range []uint32{5, 9} {
		_, st := h.fn.CreateAH(w.now, &abi.CreateAH{PDN: pd, DGID: w.hosts[1].gid(), FlowLabel: flow})
		ok(t, st)
	}
	if l := h.fn.Links.Find(rof.LinkKey{GID: w.hosts[1].gid(), Ordered: true}); l == nil || l.FlowLabel() != 5 || l.Handles() != 2 {
		t.Errorf("link %+v, want flow label 5 and two handles", l)
	}
}

// TestLinkDisconnected: a link gives up its connection in Disconnected, and a second call changes
// nothing.
func TestLinkDisconnected(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	p.qps[0].post(p.to(0, abi.OpSend), p.mem[0].sge(0, 100))
	success(t, p.qps[0].send.wait(1))
	n := 0
	p.hosts[0].fn.Links.Each(func(l *rof.Link) {
		if !l.Connected() {
			return
		}
		n++
		for range 2 {
			if l.Disconnected(p.now); l.Connected() {
				t.Error("still connected")
			}
		}
	})
	if n == 0 {
		t.Error("no link has a connection")
	}
}

// TestLinkOwns: a link has one connection at a time, and no longer owns an earlier one.
func TestLinkOwns(t *testing.T) {
	p := newUDPair(t, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	l := h.rof().NextLink() // that of its address handle
	conns := [2]*rof.Datagrams{p.unanswered(), p.unanswered()}
	check := func(when string, own [2]bool) {
		t.Helper()
		if got := [2]bool{l.Owns(conns[0]), l.Owns(conns[1])}; got != own {
			t.Errorf("%s: owns %v, want %v", when, got, own)
		}
	}
	check("none", [2]bool{})
	l.Open(p.now, conns[0], h.gid())
	check("the first", [2]bool{true, false})
	l.Disconnected(p.now)
	check("none again", [2]bool{})
	l.Open(p.now, conns[1], h.gid())
	check("the second", [2]bool{false, true})
}

// TestErrorWithoutANetwork: a queue pair of a NIC without a transport moves to ERR like any other.
func TestErrorWithoutANetwork(t *testing.T) {
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

// TestPeerLeft: when the peer's queue pair has gone, the oldest request fails, whether it was sent
// before or is posted later, and those behind it are flushed.
func TestPeerLeft(t *testing.T) {
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

// TestQPsThatWaitForTheRate: if a function's rate is used up, its queue pairs with something to
// send wait for it, and no others do.
func TestQPsThatWaitForTheRate(t *testing.T) {
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{})
	idle := p.hosts[0].createQP(p.pd[0], qpConfig{})
	waits := func(want ...uint32) {
		t.Helper()
		var got []uint32
		p.hosts[0].fn.EachQP(func(i *verbs.QPInfo) {
			if i.Rate {
				got = append(got, i.Number)
			}
		})
		if !slices.Equal(got, want) {
			t.Errorf("QPs %v wait for the rate, want %v", got, want)
		}
	}
	waits()
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	waits() // the doorbell alone does not make it wait
	success(t, p.a.send.wait(1))
	p.hosts[0].fn.sched.rate.SetRate(p.now, 1e6)
	for range 20 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 40000))
	}
	p.step()
	waits(p.a.number)
	if idle.q.Queued.On() != nil {
		t.Error("a queue pair without work is queued")
	}
}

// TestDoorbellsDuringTheWait: a function whose rate is used up waits once. More work for it, of the
// queue pair that waits or of another, does not count as another wait, and gets its turn with the
// rest.
func TestDoorbellsDuringTheWait(t *testing.T) {
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{})
	other, peer := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
	p.connect(other, peer, true)
	p.hosts[0].fn.sched.rate.SetRate(p.now, 1e6)
	for range 20 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 40000))
	}
	p.step()
	f, e := p.hosts[0].fn, p.hosts[0].e
	for _, q := range []*qp{other, p.a} {
		q.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		if e.Ready() || e.Run(p.now) {
			t.Error("it has a turn before its rate lets it")
		}
	}
	if n := f.Stats().RateWaits; n != 1 {
		t.Errorf("%d waits counted of 1", n)
	}
	e.RateChanged(p.now, f)
	p.hosts[0].fn.sched.rate.SetRate(p.now, 0)
	success(t, other.send.wait(1))
	success(t, p.a.send.wait(21))
}
