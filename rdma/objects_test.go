package rdma

import (
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestCommandsAreRefusedAtTheirLimits checks when commands are refused.
func TestCommandsAreRefusedAtTheirLimits(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectPD: 2, abi.ObjectMR: 1, abi.ObjectCQ: 1, abi.ObjectQP: 1}, QPEntries: 64, CQEntries: 64, SGEs: 2, Inline: 64}})
	h := w.hosts[0]
	pd, _ := h.fn.AllocPD()
	if _, st := h.fn.AllocPD(); st != abi.StatusOK {
		t.Fatal(st)
	}
	if _, st := h.fn.AllocPD(); st != abi.StatusNoResources {
		t.Errorf("third PD: %v", st)
	}
	addr := h.alloc(8192)
	list := h.pageList(addr, 8192, 1)
	good := abi.RegMR{PDN: pd, Access: abi.AccessLocalWrite, IOVA: 1 << 40, Length: 8192, Pages: list, Levels: 1}
	reg := func(name string, want abi.Status, change func(r *abi.RegMR)) {
		t.Helper()
		r := good
		change(&r)
		if _, _, st := h.fn.RegMR(&r); st != want {
			t.Errorf("RegMR %s: %v, want %v", name, st, want)
		}
	}
	reg("no PD", abi.StatusNotFound, func(r *abi.RegMR) { r.PDN = 0 })
	reg("length 0", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Length = 0 })
	reg("too long", abi.StatusTooLarge, func(r *abi.RegMR) { r.Length = abi.MaxMRSize + 1 })
	reg("longer than its list reaches", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Length = abi.MaxMRSize })
	reg("pages too small", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.PageShift = 11 })
	reg("pages too large", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.PageShift = 31 })
	reg("no such pages", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.PageShift = 255 })
	reg("offset of a page", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Offset = 4096 })
	reg("offset of a larger page", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.PageShift, r.Offset = 21, 1<<21 })
	reg("passes the end", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.IOVA = 1<<64 - 100 })
	reg("unknown right", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Access = 1 << 30 })
	reg("remote without local write", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Access = abi.AccessRemoteWrite })
	reg("no levels", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Levels = 0 })
	reg("four levels", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Levels = 4 })
	reg("offset of a page", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Offset = 4096 })
	reg("unmapped list", abi.StatusMemoryFault, func(r *abi.RegMR) { r.Pages = 0 })
	reg("odd list", abi.StatusInvalidArgument, func(r *abi.RegMR) { r.Pages = list + 8 })
	reg("good", abi.StatusOK, func(*abi.RegMR) {})
	reg("second", abi.StatusNoResources, func(*abi.RegMR) {})

	if _, st := h.fn.CreateCQ(&abi.CreateCQ{Log2Entries: 7, Levels: 1, Pages: list}); st != abi.StatusTooLarge {
		t.Errorf("CQ of 128: %v", st)
	}
	if _, st := h.fn.CreateCQ(&abi.CreateCQ{Log2Entries: 0, Levels: 1, Pages: list}); st != abi.StatusInvalidArgument {
		t.Errorf("CQ of 1: %v", st)
	}
	cq := h.createCQ(6)
	if _, st := h.fn.CreateCQ(&abi.CreateCQ{Log2Entries: 1, Levels: 1, Pages: list}); st != abi.StatusNoResources {
		t.Errorf("second CQ: %v", st)
	}
	base := abi.CreateQP{
		PDN: pd, SendCQ: cq.number, RecvCQ: cq.number, Type: abi.QPTypeRC, SQLog2Entries: 1, RQLog2Entries: 1,
		SQLog2Stride: 7, RQLog2Stride: 6, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64, SQLevels: 1, RQLevels: 1, SQPages: list, RQPages: list,
	}
	create := func(name string, want abi.Status, change func(c *abi.CreateQP)) {
		t.Helper()
		c := base
		change(&c)
		if _, st := h.fn.CreateQP(&c); st != want {
			t.Errorf("CreateQP %s: %v, want %v", name, st, want)
		}
	}
	create("no PD", abi.StatusNotFound, func(c *abi.CreateQP) { c.PDN = 99 })
	create("no CQ", abi.StatusNotFound, func(c *abi.CreateQP) { c.RecvCQ = 0 })
	create("no such type", abi.StatusUnsupported, func(c *abi.CreateQP) { c.Type = 200 })
	create("3 SGEs", abi.StatusTooLarge, func(c *abi.CreateQP) { c.MaxSendSGE = 3 })
	create("65 inline", abi.StatusTooLarge, func(c *abi.CreateQP) { c.MaxInline = 65 })
	create("128 entries", abi.StatusTooLarge, func(c *abi.CreateQP) { c.SQLog2Entries = 7 })
	create("2^200 entries", abi.StatusTooLarge, func(c *abi.CreateQP) { c.RQLog2Entries = 200 })
	create("stride too small", abi.StatusInvalidArgument, func(c *abi.CreateQP) { c.SQLog2Stride = 6 })
	create("stride absurd", abi.StatusInvalidArgument, func(c *abi.CreateQP) { c.SQLog2Stride = 63 })
	create("unmapped", abi.StatusMemoryFault, func(c *abi.CreateQP) { c.SQPages = 0 })
	create("good", abi.StatusOK, func(*abi.CreateQP) {})
	create("second", abi.StatusNoResources, func(*abi.CreateQP) {})
	if c := h.fn.Counts(); c != (verbs.Counts{abi.ObjectPD: 2, abi.ObjectMR: 1, abi.ObjectCQ: 1, abi.ObjectQP: 1}) {
		t.Errorf("counts %+v", c)
	}
}

// TestEveryTypeTakesItsPartsOnly checks which parts queue pairs of each type may have.
func TestEveryTypeTakesItsPartsOnly(t *testing.T) {
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

// TestQuotasAreEnforcedAndReturned fills a function with each kind of object. The quota is
// enforced, counted and returned, no kind takes another's room, and lowering a quota removes no
// object. (DEV-311, DEV-312)
func TestQuotasAreEnforcedAndReturned(t *testing.T) {
	const n = 3
	all := func(n int) (c verbs.Counts) {
		for k := range c {
			c[k] = n
		}
		return c
	}
	limits := verbs.Limits{Objects: all(n)}
	w := newWorld(t, worldConfig{limits: limits})
	h := w.hosts[0]
	f := h.fn
	pd, st := f.AllocPD()
	ok(t, st)
	_, list, levels := h.queueMem(1)
	cqn, st := f.CreateCQ(&abi.CreateCQ{Log2Entries: 1, Levels: levels, Pages: list})
	ok(t, st)
	kinds := []struct {
		kind    abi.Object
		have    int
		make    func() (uint32, abi.Status)
		destroy func(uint32) abi.Status
	}{
		{abi.ObjectPD, 1, f.AllocPD, f.DeallocPD},
		{abi.ObjectCQ, 1, func() (uint32, abi.Status) {
			return f.CreateCQ(&abi.CreateCQ{Log2Entries: 1, Levels: levels, Pages: list})
		}, f.DestroyCQ},
		{abi.ObjectMR, 0, func() (uint32, abi.Status) {
			key, _, st := f.RegMR(&abi.RegMR{PDN: pd, Length: 100, Pages: list, Levels: levels})
			return key, st
		}, f.DeregMR},
		{abi.ObjectMW, 0, func() (uint32, abi.Status) { return f.AllocMW(&abi.AllocMW{PDN: pd, Type: abi.MWType2}) }, f.DeallocMW},
		{abi.ObjectQP, 0, func() (uint32, abi.Status) {
			return f.CreateQP(&abi.CreateQP{
				PDN: pd, SendCQ: cqn, RecvCQ: cqn, Type: abi.QPTypeRC, SQLog2Entries: 1, RQLog2Entries: 1, SQLog2Stride: 6, RQLog2Stride: 5,
				SQLevels: levels, RQLevels: levels, SQPages: list, RQPages: list,
			})
		}, func(qpn uint32) abi.Status { return f.DestroyQP(w.now, qpn) }},
		{abi.ObjectSRQ, 0, func() (uint32, abi.Status) {
			return f.CreateSRQ(&abi.CreateSRQ{PDN: pd, Log2Entries: 1, Log2Stride: 5, Levels: levels, Pages: list})
		}, f.DestroySRQ},
		{abi.ObjectXRCD, 0, f.OpenXRCD, f.CloseXRCD},
		{abi.ObjectAH, 0, func() (uint32, abi.Status) {
			return f.CreateAH(w.now, &abi.CreateAH{PDN: pd, DGID: w.hosts[1].gid()})
		}, func(ahn uint32) abi.Status { return f.DestroyAH(w.now, ahn) }},
	}
	if len(kinds) != int(abi.NumObjects)-1 { // attachments to groups want RoCEv2: device/shard has them
		t.Fatalf("%d kinds are counted, %d tested", abi.NumObjects, len(kinds))
	}
	count := func(k abi.Object) int { return f.Counts()[k] }
	made := map[abi.Object][]uint32{}
	for range 2 { // everything full before anything goes, and once more
		for _, k := range kinds {
			for i := k.have; i < n; i++ {
				number, st := k.make()
				ok(t, st)
				made[k.kind] = append(made[k.kind], number)
			}
			if _, st := k.make(); st != abi.StatusNoResources || count(k.kind) != n {
				t.Errorf("%s: one too many: %v, counted %d", k.kind, st, count(k.kind))
			}
		}
		f.SetLimits(verbs.Limits{Objects: all(1)})
		for _, k := range kinds {
			if count(k.kind) != n {
				t.Errorf("%s: a lowered quota left %d", k.kind, count(k.kind))
			}
			ok(t, k.destroy(made[k.kind][0]))
			if _, st := k.make(); st != abi.StatusNoResources {
				t.Errorf("%s: above the lowered quota: %v", k.kind, st)
			}
			for _, number := range made[k.kind][1:] {
				ok(t, k.destroy(number))
			}
			made[k.kind] = nil
		}
		f.SetLimits(limits)
	}
	if got := f.Counts(); got != (verbs.Counts{abi.ObjectPD: 1, abi.ObjectCQ: 1}) {
		t.Errorf("left %+v", got)
	}
	for range n {
		_, st := kinds[len(kinds)-1].make()
		ok(t, st)
	}
	f.Close(w.now)
	if got := f.Counts(); got != (verbs.Counts{}) {
		t.Errorf("left after Close: %+v", got)
	}
}

// TestObjectsOfAllKindsAreDestroyedInAnyOrder makes an object of every kind, runs traffic over all
// of them, and destroys them in random order at random moments. Destroying fails while another
// object needs this one, and succeeds otherwise. In the end nothing is left.
func TestObjectsOfAllKindsAreDestroyedInAnyOrder(t *testing.T) {
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

// TestObjectsAreDestroyedInAnyOrderUnderTraffic destroys objects at random moments in random order,
// with traffic running: what is in use is refused, in the end nothing is left, in the function, in
// falcon or in the credit tree.
func TestObjectsAreDestroyedInAnyOrderUnderTraffic(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		p := newPair(t, seed%2 == 0, 32<<10, worldConfig{seed: seed}, qpConfig{})
		h := p.hosts[0]
		for i := range 20 {
			p.b.receive(uint64(i), p.mb.sge(0, 4096))
			x := p.remote([]abi.Opcode{abi.OpSend, abi.OpWrite, abi.OpRead}[r.IntN(3)], 0)
			p.a.post(x, p.ma.sge(0, r.IntN(20000)))
			y := abi.SendWQE{Opcode: abi.OpRead, RemoteAddr: p.ma.addr, RKey: p.ma.key}
			p.b.post(y, p.mb.sge(0, r.IntN(20000)))
		}
		p.settle(r.Int64N(1e6))
		qp, cqs, mr, pd := p.a.number, []uint32{p.a.send.number, p.a.recv.number}, p.ma.key, p.pd[0]
		hasQP, hasMR, hasPD := true, true, true
		for hasQP || hasMR || hasPD || len(cqs) > 0 {
			switch r.IntN(5) {
			case 0:
				if hasQP {
					ok(t, h.fn.DestroyQP(p.now, qp))
				}
				hasQP = false
			case 1:
				if len(cqs) == 0 {
					continue
				}
				st := h.fn.DestroyCQ(cqs[0])
				if busy := st == abi.StatusBusy; busy != hasQP {
					t.Fatalf("destroy of a CQ in use %t: %v", hasQP, st)
				}
				if st == abi.StatusOK {
					cqs = cqs[1:]
				}
			case 2:
				if hasMR {
					ok(t, h.fn.DeregMR(mr))
				}
				hasMR = false
			case 3:
				if !hasPD {
					continue
				}
				st := h.fn.DeallocPD(pd)
				if busy := st == abi.StatusBusy; busy != (hasQP || hasMR) {
					t.Fatalf("dealloc of a PD in use %t: %v", hasQP || hasMR, st)
				}
				hasPD = st != abi.StatusOK
			default:
				p.settle(r.Int64N(2e5))
			}
		}
		if h.fn.Counts() != (verbs.Counts{}) {
			t.Fatalf("left: %+v", h.fn.Counts())
		}
		p.hosts[1].fn.Close(p.now)
		if p.hosts[1].fn.Counts() != (verbs.Counts{}) {
			t.Fatalf("left after Close: %+v", p.hosts[1].fn.Counts())
		}
		p.settle(1e9)
		for i, h := range p.hosts {
			if u := h.credits.InUse(); u != (credit.Cost{}) {
				t.Fatalf("host %d: credits in use %v", i, u)
			}
			if !h.e.sched.active.Empty() || h.e.shared.Lingering() != 0 {
				t.Fatalf("host %d: a QP is still queued", i)
			}
		}
	}
}
