package rdma

import (
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestDestroyAllKinds makes an object of every kind, runs traffic over all of them, and destroys
// them in random order at random moments. Destroying fails while another object needs this one, and
// succeeds otherwise. In the end nothing is left.
func TestDestroyAllKinds(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 17))
		x := newXRC(t, seed%2 == 0)
		p, h := x.pair, x.hosts[1]
		f := h.fn
		m := h.register(p.pd[1], 8192, bindable)
		s := h.createSRQ(abi.CreateSRQ{PDN: p.pd[1]})
		send, recv := h.createCQ(8), h.createCQ(8)
		modes := []qpConfig{{}, {cie: true}, {ordering: abi.OrderingWeak}, {ordering: abi.OrderingUnordered, cie: true}}
		c := modes[seed%4]
		a := p.hosts[0].createQP(p.pd[0], c)
		c.srq, c.send, c.recv = s, send, recv
		b := h.createQP(p.pd[1], c)
		p.connect(a, b, c.ordering == abi.OrderingStrong)
		key := incKey(h.window(p.pd[1]))
		b.postBind(key, abi.BindMW{Addr: m.addr, Length: 4096, LKey: m.key, Access: verbs.RemoteRights})
		p.settle(1e6)
		ok(t, f.ModifyCQ(&abi.ModifyCQ{CQN: recv.number, Count: 8, Period: 1000}))
		recv.arm(false)
		for i := range 20 {
			s.receive(uint64(i), m.sge(4096, 4096))
			x.srqs[i%2].receive(uint64(i), x.mb.sge(0, 4096))
			a.post(abi.SendWQE{Opcode: []abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpRead}[i%3], RemoteAddr: m.addr, RKey: key, Flags: abi.SendSignaled}, p.ma.sge(0, r.IntN(1000)))
			w := x.remote([]abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpRead}[i%3], 0)
			w.RemoteSRQN = x.srqs[i%2].number
			x.a.post(w, p.ma.sge(0, r.IntN(4000)))
		}
		f.EachQP(func(q *verbs.QPInfo) {
			if q.Number != b.number && q.Number != x.b.number {
				ok(t, f.DestroyQP(p.now, q.Number)) // of the stage
			}
		})
		p.settle(r.Int64N(3e5))
		ud := h.createUD(p.pd[1], qpConfig{})
		ah := h.createAH(p.pd[1], p.hosts[0].gid(), 0, 0)
		for range 5 {
			ud.post(abi.SendWQE{Opcode: abi.OpSend, AHN: ah, RemoteQPN: 77, RemoteQKey: testQKey}, m.sge(0, 100))
		}
		p.settle(r.Int64N(1e5))
		alive := map[string]func() abi.Status{
			"UD": func() abi.Status { return f.DestroyQP(p.now, ud.number) }, "AH": func() abi.Status { return f.DestroyAH(p.now, ah) },
			"UD send CQ": func() abi.Status { return f.DestroyCQ(ud.send.number) }, "UD receive CQ": func() abi.Status { return f.DestroyCQ(ud.recv.number) },
			"MR": func() abi.Status { return f.DeregMR(m.key) }, "MW": func() abi.Status { return f.DeallocMW(key) },
			"QP": func() abi.Status { return f.DestroyQP(p.now, b.number) }, "target": func() abi.Status { return f.DestroyQP(p.now, x.b.number) },
			"SRQ": func() abi.Status { return f.DestroySRQ(s.number) }, "XRC SRQ 0": func() abi.Status { return f.DestroySRQ(x.srqs[0].number) },
			"XRC SRQ 1": func() abi.Status { return f.DestroySRQ(x.srqs[1].number) }, "domain": func() abi.Status { return f.CloseXRCD(x.xrcd) },
			"send CQ": func() abi.Status { return f.DestroyCQ(send.number) }, "receive CQ": func() abi.Status { return f.DestroyCQ(recv.number) },
			"XRC CQ 0": func() abi.Status { return f.DestroyCQ(x.cqs[0].number) }, "XRC CQ 1": func() abi.Status { return f.DestroyCQ(x.cqs[1].number) },
			"other MR": func() abi.Status { return f.DeregMR(x.mb.key) }, "PD": func() abi.Status { return f.DeallocPD(p.pd[1]) },
		}
		names := []string{"MR", "MW", "QP", "target", "SRQ", "XRC SRQ 0", "XRC SRQ 1", "domain", "send CQ", "receive CQ", "XRC CQ 0", "XRC CQ 1", "other MR", "PD", "UD", "AH", "UD send CQ", "UD receive CQ"}
		// Which object keeps which, by the rules.
		keeps := map[string][]string{
			"MR": {"MW", "QP"}, "SRQ": {"QP"}, "domain": {"target", "XRC SRQ 0", "XRC SRQ 1"}, "send CQ": {"QP"}, "receive CQ": {"QP"},
			"XRC CQ 0": {"XRC SRQ 0"}, "XRC CQ 1": {"XRC SRQ 1"}, "PD": {"MR", "MW", "QP", "SRQ", "XRC SRQ 0", "XRC SRQ 1", "other MR", "UD", "AH"},
			"UD send CQ": {"UD"}, "UD receive CQ": {"UD"},
			"XRC SRQ 0": {"target"}, "XRC SRQ 1": {"target"},
		}
		for tries := 0; len(alive) > 0; tries++ {
			if tries > 2000 {
				t.Fatalf("seed %d: left %v", seed, alive)
			}
			name := names[r.IntN(len(names))]
			destroy := alive[name]
			if destroy == nil {
				p.settle(r.Int64N(5e4))
				continue
			}
			held := false
			for _, k := range keeps[name] {
				held = held || alive[k] != nil
			}
			switch st := destroy(); {
			case st == abi.StatusOK:
				delete(alive, name)
				if st := destroy(); st != abi.StatusNotFound {
					t.Fatalf("seed %d: %s destroyed twice: %v", seed, name, st)
				}
			case st != abi.StatusBusy || !held:
				t.Fatalf("seed %d: %s: %v, held %t", seed, name, st, held)
			}
		}
		p.hosts[0].fn.Close(p.now)
		p.settle(2e9)
		f.Close(p.now)
		if n := f.Counts(); n != (verbs.Counts{}) {
			t.Fatalf("seed %d: left %+v", seed, n)
		}
		for i, h := range p.hosts {
			if u := h.credits.InUse(); u != (credit.Cost{}) {
				t.Fatalf("seed %d: host %d: credits in use %v", seed, i, u)
			}
			if h.e.shared.Timers.Deadline() != vtime.Never {
				t.Fatalf("seed %d: host %d: timers are left", seed, i)
			}
		}
	}
}
