package rdma

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestCompletionOverflow fills a CQ. It gets an event, and its QPs fail. Other CQs and QPs of the
// function survive.
func TestCompletionOverflow(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	small := h.createCQ(2)
	a, b := h.createQP(p.pd[0], qpConfig{send: small}), p.hosts[1].createQP(p.pd[1], qpConfig{})
	p.connect(a, b, true)
	for range 6 {
		a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	}
	p.settle(1e9)
	if a.q.State() != abi.QPStateErr || p.a.q.State() != abi.QPStateRTS {
		t.Fatalf("QPs in %v and %v", a.q.State(), p.a.q.State())
	}
	if len(h.async) != 2 || h.async[0].typ != abi.EventCQError || h.async[0].number != small.number ||
		h.async[1].typ != abi.EventQPFatal || h.async[1].number != a.number {
		t.Fatalf("events %+v", h.async)
	}
	success(t, small.wait(4))
	if _, ok := small.poll(); ok {
		t.Fatal("entry after the overflow")
	}
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	success(t, p.a.send.wait(1))
	ok(t, h.fn.DestroyQP(p.now, a.number))
	ok(t, h.fn.DestroyCQ(small.number))
}

// TestFullQueueIsNotOverflow uses every slot of a CQ, round and round.
func TestFullQueueIsNotOverflow(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{send: nil})
	small := p.hosts[0].createCQ(2)
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{send: small}), p.hosts[1].createQP(p.pd[1], qpConfig{})
	p.connect(a, b, true)
	for range 9 {
		for range 4 {
			a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
		}
		p.settle(1e7)
		success(t, small.wait(4))
	}
}

// TestArm tests DEV-707 and DEV-708.
func TestArm(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	events := func() int {
		h := p.hosts[1]
		n := len(h.cqEvents)
		for _, c := range h.cqEvents {
			if c != p.b.recv.number {
				t.Fatalf("event of CQ %#x", c)
			}
		}
		h.cqEvents = nil
		return n
	}
	send := func(flags uint8) {
		t.Helper()
		p.b.receive(1, p.mb.sge(0, 100))
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: flags | abi.SendSignaled}, p.ma.sge(0, 10))
		success(t, p.a.send.wait(1))
	}
	cq := p.b.recv
	send(0)
	if events() != 0 {
		t.Fatal("event without arming")
	}
	cq.arm(false) // an entry waits already
	if events() != 1 {
		t.Fatal("no event for the entry that was there: lost wake-up")
	}
	cq.poll()
	cq.arm(false)
	if events() != 0 {
		t.Fatal("event of an empty CQ")
	}
	send(0)
	send(0)
	if events() != 1 {
		t.Fatal("want exactly one event per arming")
	}
	cq.poll()
	cq.poll()
	cq.arm(true)
	send(0)
	if events() != 0 {
		t.Fatal("unsolicited completion raised a solicited event")
	}
	send(abi.SendSolicited)
	if events() != 1 {
		t.Fatal("no solicited event")
	}
	cq.arm(true) // the solicited one was not polled yet
	if events() != 1 {
		t.Fatal("no event for the solicited entry that was there")
	}
	cq.poll()
	cq.poll()
	cq.arm(true)
	if events() != 0 {
		t.Fatal("event of an empty CQ")
	}
	cq.arm(false)
	cq.arm(true) // does not weaken the earlier request
	send(0)
	if events() != 1 {
		t.Fatal("arming for solicited weakened arming for any")
	}
	cq.poll()
	cq.arm(true)
	p.b.receive(1, p.mb.sge(0, 1))
	p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 10))
	p.settle(1e8)
	if events() != 1 {
		t.Fatal("a failed completion counts as solicited")
	}
}

// TestFence: a WRITE waits until the READ before it is done, and no longer.
func TestFence(t *testing.T) {
	for _, fence := range []bool{false, true} {
		p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
		p.cut(1, true) // nothing comes back
		p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 8))
		x := p.remote(abi.OpWrite, 100)
		if fence {
			x.Flags |= abi.SendFence
		}
		fill(p.ma.bytes()[100:108], 1)
		p.a.post(x, p.ma.sge(100, 8))
		p.settle(1e7)
		if arrived := p.mb.bytes()[100] != 0 || p.mb.bytes()[101] != 0; arrived == fence {
			t.Fatalf("fence %t: WRITE arrived %t while the READ was open", fence, arrived)
		}
		p.cut(1, false)
		success(t, p.a.send.wait(2))
		if p.mb.bytes()[100] != p.ma.bytes()[100] {
			t.Fatal("WRITE lost")
		}
	}
}

// TestCredits runs many QPs on a NIC with little credit. All wait, all finish, and all credit is
// returned.
func TestCredits(t *testing.T) {
	limit := credit.Cost{credit.ReqPktTx: 3, credit.ReqBufTx: 40, credit.ReqPktRx: 3, credit.ReqBufRx: 40, credit.DataPktTx: 2, credit.DataBufTx: 20, credit.NetPktRx: 5, credit.NetBufRx: 5}
	p := newPair(t, true, 64<<10, worldConfig{arena: 64 << 20, credit: limit}, qpConfig{})
	qps := []*qp{p.a, p.b}
	for i := range 6 {
		a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
		p.connect(a, b, i%2 == 0)
		qps = append(qps, a, b)
	}
	for _, q := range qps {
		mine, other := p.ma, p.mb
		if q.h == p.hosts[1] {
			mine, other = other, mine
		}
		for i := range 6 {
			op := abi.OpWrite
			if i%2 == 1 {
				op = abi.OpRead
			}
			q.post(abi.SendWQE{Opcode: op, Flags: abi.SendSignaled, RemoteAddr: other.addr, RKey: other.key}, mine.sge(32<<10, 9000))
		}
	}
	for _, q := range qps {
		success(t, q.send.wait(6))
	}
	p.settle(1e9)
	for i, h := range p.hosts {
		if n := h.fn.Stats().CreditWaits; n == 0 || n > 1<<32 {
			t.Errorf("host %d waited %d times: none, the test tests nothing; many, it was counted down", i, int64(n))
		}
		if u := h.credits.InUse(); u != (credit.Cost{}) {
			t.Errorf("host %d: credits in use %v", i, u)
		}
	}
}

// TestFlushOrder fails a QP with work in every state, posts more, and expects all of it to be
// flushed in order. (DEV-610)
func TestFlushOrder(t *testing.T) {
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

// TestReset reuses a QP.
func TestReset(t *testing.T) {
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

func TestDisconnected(t *testing.T) {
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

// TestDestroyInAnyOrder destroys objects at random moments in random order, with traffic running:
// what is in use is refused, in the end nothing is left, in the function, in falcon or in the
// credit tree.
func TestDestroyInAnyOrder(t *testing.T) {
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

// TestLimits checks when commands are refused.
func TestLimits(t *testing.T) {
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

func TestModifyAndQuery(t *testing.T) {
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

// TestPageListBytes: page lists of scattered regions take host memory only up to a bound, and give
// it back.
func TestPageListBytes(t *testing.T) {
	const pages = 8
	w := newWorld(t, worldConfig{limits: verbs.Limits{PageListBytes: 3 * 4 * pages}})
	h := w.hosts[0]
	pdn, st := h.fn.AllocPD()
	ok(t, st)
	list := h.pageList(h.alloc(pages*abi.PageSize), pages*abi.PageSize, 1)
	entries := h.bytes(list, 8*pages)
	register := func() (uint32, abi.Status) {
		key, _, st := h.fn.RegMR(&abi.RegMR{PDN: pdn, Length: pages * abi.PageSize, Pages: list, Levels: 1})
		return key, st
	}
	for range 10 { // contiguous: a list of no size
		_, st := register()
		ok(t, st)
	}
	first, last := binary.LittleEndian.Uint64(entries), binary.LittleEndian.Uint64(entries[8*(pages-1):])
	binary.LittleEndian.PutUint64(entries, last)
	binary.LittleEndian.PutUint64(entries[8*(pages-1):], first)
	var keys []uint32
	for range 20 {
		key, st := register()
		if st == abi.StatusNoResources {
			break
		}
		ok(t, st)
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > 3 {
		t.Fatalf("%d scattered regions registered, room for 3", len(keys))
	}
	ok(t, h.fn.DeregMR(keys[0]))
	_, st = register()
	ok(t, st)
	if _, st = register(); st != abi.StatusNoResources {
		t.Fatalf("over the bound again: %v", st)
	}
	h.fn.Close(w.now)
	if h.fn.PageListBytes() != 0 {
		t.Fatalf("%d bytes still counted after Close", h.fn.PageListBytes())
	}
}

// TestArmWord: an armed CQ sends one event for each arming, at the requested entry, and none for
// entries that the driver finds when it checks again (DEV-709, DRV-709).
func TestArmWord(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.hosts[1].fn.UseFeatures(abi.FeatureArmWord)
	expect := func(what string, want int) {
		t.Helper()
		if got := len(p.hosts[1].cqEvents); got != want {
			t.Fatalf("%s: %d events, want %d", what, got, want)
		}
		p.hosts[1].cqEvents = nil
	}
	send := func(flags uint8) {
		t.Helper()
		p.b.receive(1, p.mb.sge(0, 100))
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: flags | abi.SendSignaled}, p.ma.sge(0, 10))
		success(t, p.a.send.wait(1))
	}
	cq := p.b.recv
	send(0)
	expect("not armed", 0)
	if !cq.armWord(false) {
		t.Fatal("the entry that was there is not found")
	}
	expect("an entry of before", 0)
	cq.poll()
	if cq.armWord(false) {
		t.Fatal("an empty CQ has an entry")
	}
	send(0)
	send(0)
	expect("two entries after one arming", 1)
	cq.poll()
	cq.poll()
	if cq.armWord(true) {
		t.Fatal("an empty CQ has a solicited entry")
	}
	send(0)
	expect("unsolicited", 0)
	send(abi.SendSolicited)
	send(abi.SendSolicited)
	expect("solicited", 1)
	if !cq.armWord(true) {
		t.Fatal("the solicited entry is not found")
	}
	for range 3 {
		cq.poll()
	}
	cq.armWord(true)
	cq.armWord(false) // replaces it
	send(0)
	expect("armed twice", 1)
	if x, _ := cq.poll(); x.Flags != 0 {
		t.Fatalf("flags %#x of an unsolicited entry", x.Flags)
	}
}
