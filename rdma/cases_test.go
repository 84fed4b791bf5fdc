package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// watcher sees every event of one side and holds it to the contract of RDMA over Falcon §6.8.
type watcher struct {
	t       *testing.T
	e       *Engine
	ordered bool
	taken   map[uint32]bool // requests delivered and not to come again
	next    uint32          // on an ordered connection
	started bool
	done    map[uint32]bool // transactions of this side that completed, by RSN
	pushes  int             // requests delivered
}

func (w *watcher) Fill(c *falcon.Conn, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	return Wire[*rof.Engine](w.e).Fill(c, kind, tag, dst)
}

func (w *watcher) HandleEvent(now falcon.Time, ev *falcon.Event) {
	switch ev.Kind {
	case falcon.EvPush, falcon.EvPull:
		w.pushes++
		if w.taken[ev.RSN] {
			w.t.Errorf("RSN %d delivered twice", ev.RSN)
		}
		if w.ordered {
			if w.started && ev.RSN != w.next {
				w.t.Errorf("RSN %d delivered where %d was due", ev.RSN, w.next)
			}
			w.started, w.next = true, ev.RSN+1
		}
		again := func() uint64 { st := w.e.Stats(); return st.RNRTx + st.PullsDeferred }
		before := again()
		Wire[*rof.Engine](w.e).HandleEvent(now, ev)
		if again() == before {
			w.taken[ev.RSN] = true
		} else {
			w.next = ev.RSN // it will come again
		}
		return
	case falcon.EvPushDone, falcon.EvPullDone:
		if ev.Code != falcon.CmplAck || w.done[ev.RSN] {
			w.t.Errorf("transaction of RSN %d: %v, completed before: %t", ev.RSN, ev.Code, w.done[ev.RSN])
		}
		w.done[ev.RSN] = true
	}
	Wire[*rof.Engine](w.e).HandleEvent(now, ev)
}

// TestContract_AtMostOnceInOrder checks both sides against RDMA over Falcon §6.8 while the link
// loses, repeats and reorders: a request is delivered at most once (1), a transaction completes
// once (2), and an ordered connection keeps the order (3).
func TestContract_AtMostOnceInOrder(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		var side [2]*watcher
		p := newPair(t, ordered, 64<<10, worldConfig{
			seed: 7, net: sim.Impairment{Delay: 20e3, Jitter: 40e3, Loss: 0.05, Duplicate: 0.1, Reorder: 0.2, ReorderDelay: 200e3},
			watch: func(i int, e *Engine) sim.Handler {
				side[i] = &watcher{t: t, e: e, ordered: ordered, taken: map[uint32]bool{}, done: map[uint32]bool{}}
				return side[i]
			},
		}, qpConfig{})
		for i := range 40 {
			x := p.remote([]abi.Opcode{abi.OpWrite, abi.OpRead, abi.OpSend, abi.OpFetchAdd}[i%4], 0)
			n := 3000
			if i%4 == 3 {
				n = 8
			}
			x.WRID = uint64(i)
			if i%8 == 2 {
				p.settle(3e6) // some SENDs find no receive yet
			}
			p.a.post(x, p.ma.sge(8192, n))
			if i%4 == 2 {
				p.b.receive(uint64(i), p.mb.sge(16384, 4096))
			}
		}
		for i, c := range p.a.send.wait(40) {
			if c.Status != abi.WCSuccess || c.WRID != uint64(i) {
				t.Fatalf("completion %d: %+v", i, c)
			}
		}
		if side[1].pushes < 100 {
			t.Fatalf("%d requests delivered: the test tests nothing", side[1].pushes)
		}
	})
}

// TestContract_UndeliverableIsReported: RDMA over Falcon §6.8 (1), last sentence: a packet that
// cannot be delivered at all ends in an error of the work request and an event, not in silence.
func TestContract_UndeliverableIsReported(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.cut(0, true)
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 100))
	if got := p.a.send.wait(1)[0].Status; got != abi.WCRetryExcErr {
		t.Fatal(got)
	}
	if e := p.hosts[0].async; len(e) != 1 || e[0].typ != abi.EventQPFatal || e[0].number != p.a.number {
		t.Fatalf("events %+v", e)
	}
}

// TestCase68_RequestForOtherQP sends requests on a QP's connection that name another QP of the
// function. They get a NACK with code 8 and have no effect on either QP, and the connection's own
// QP continues (RDMA over Falcon §6.9).
func TestCase68_RequestForOtherQP(t *testing.T) {
	raw := &rawULP{}
	w := newWorld(t, worldConfig{peer: raw})
	h := w.hosts[1]
	pd, _ := h.fn.AllocPD()
	m := h.register(pd, 8192, allAccess)
	own, other := h.createQP(pd, qpConfig{}), h.createQP(pd, qpConfig{})
	attacker := w.attack(own, true)
	for i, op := range []wire.Opcode{wire.WriteOnly, wire.SendOnly, wire.ReadRequest, wire.FetchAdd} {
		x := wire.Headers{
			RBTH: wire.RBTH{Opcode: op, DestQP: other.number, SN: 1},
			RETH: wire.RETH{VA: m.addr, RKey: m.key}, Atomic: wire.AtomicETH{VA: m.addr, RKey: m.key}, SETH: wire.SETH{RMSN: 1},
		}
		raw.send = x.Append(nil)
		var err error
		if op.Info().Kind == wire.KindPushData {
			err = attacker.Push(w.now, 1, len(raw.send))
		} else {
			err = attacker.Pull(w.now, 1, len(raw.send), 64)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.settle(1e9)
		if n := h.fn.Stats().CIDMismatches; n != uint64(i+1) {
			t.Fatalf("%v: %d mismatches", op, n)
		}
	}
	if n := w.sim.Nodes[0].Engine.Stats().NacksReceived; n < 4 {
		t.Errorf("%d NACKs", n)
	}
	if own.q.State() != abi.QPStateRTS || other.q.State() != abi.QPStateInit || len(h.async) != 0 {
		t.Errorf("QPs in %v and %v, events %+v", own.q.State(), other.q.State(), h.async)
	}
	x := wire.Headers{RBTH: wire.RBTH{Opcode: wire.WriteOnly, DestQP: own.number, SN: 1}, RETH: wire.RETH{VA: m.addr, RKey: m.key, Length: 4}}
	raw.send = append(x.Append(nil), 1, 2, 3, 4)
	if err := attacker.Push(w.now, 2, len(raw.send)); err != nil {
		t.Fatal(err)
	}
	w.settle(1e9)
	if m.bytes()[3] != 4 {
		t.Error("the connection's own QP does not go on")
	}
}

// answerer answers READs with a response for a QP of its choice, its number off by skew.
type answerer struct {
	dest uint32
	sn   uint32
	skew uint32
}

func (a *answerer) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	h := wire.Headers{RBTH: wire.RBTH{Opcode: wire.ReadRespOnly, DestQP: a.dest, SN: a.sn + a.skew}}
	n := len(h.Append(dst[:0]))
	return n + copy(dst[n:], []byte{1, 2, 3, 4}), nil
}

func (a *answerer) HandleEvent(now falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPull {
		var h wire.Headers
		_, _ = h.Parse(ev.Data)
		a.sn = h.RBTH.SN
		_ = ev.Conn.RespondPull(now, ev.RSN, 0, wire.ReadRespOnly.HeaderLen()+4)
	}
}

// TestCase68_ResponseForOtherQP lets the peer answer a READ with a response for another QP. It is
// dropped silently, without a NACK or access to memory, and the QP continues. Its READ, which has
// no answer, fails when that is certain.
func TestCase68_ResponseForOtherQP(t *testing.T) {
	peer := &answerer{}
	w := newWorld(t, worldConfig{peer: peer})
	h := w.hosts[1]
	pd, _ := h.fn.AllocPD()
	m := h.register(pd, 8192, allAccess)
	own, other := h.createQP(pd, qpConfig{}), h.createQP(pd, qpConfig{})
	w.attack(own, true)
	read := abi.SendWQE{WRID: 1, Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: 1, RKey: 1}
	peer.dest = own.number
	own.post(read, m.sge(0, 4))
	success(t, own.send.wait(1))
	if m.bytes()[0] != 1 {
		t.Fatal("a good response has no effect")
	}
	clear(m.bytes())
	peer.dest = other.number
	own.post(read, m.sge(0, 4))
	w.settle(1e9)
	if s := h.fn.Stats(); s.CIDMismatches != 1 || own.q.State() != abi.QPStateRTS || m.bytes()[0] != 0 || h.fe.Stats().NacksSent != 0 {
		t.Fatalf("%+v, QP in %v, %d NACKs", s, own.q.State(), h.fe.Stats().NacksSent)
	}
	if c, got := own.send.poll(); got {
		t.Fatalf("completion %+v", c)
	}
	if got := own.send.wait(1)[0].Status; got != abi.WCRespTimeoutErr {
		t.Fatal(got)
	}
}
