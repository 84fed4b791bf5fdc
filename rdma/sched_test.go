package rdma

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// shortTurns makes each Run one turn, of at most four requests and 8 KiB of a queue pair.
func shortTurns(quantum int) func(*Engine) {
	return func(e *Engine) {
		e.turns, e.shared.TurnOps, e.shared.TurnBytes = 1, 4, 8<<10
		e.sched.active.Quantum = quantum
	}
}

// TestQueuePairsTakeTurns puts one QP with megabytes to send in front of one with a few bytes. Both
// get their turn.
func TestQueuePairsTakeTurns(t *testing.T) {
	p := newPair(t, true, 1<<20, worldConfig{arena: 64 << 20, tune: shortTurns(1 << 20)}, qpConfig{})
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{})
	p.connect(a, b, true)
	for range 20 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 1<<20))
	}
	for range 20 {
		a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
	}
	e := p.hosts[0].e
	for _, want := range []struct{ big, small int }{{8, 0}, {8, 4}, {16, 4}, {16, 8}, {24, 8}} {
		if !e.Run(p.now) {
			t.Fatal("no more work")
		}
		big := p.a.info().Pushes
		if small := a.info().Pushes; big != want.big || small != want.small {
			t.Fatalf("%d and %d packets issued, want %d and %d", big, small, want.big, want.small)
		}
	}
	success(t, a.send.wait(20))
	success(t, p.a.send.wait(20))
}

// twoFunctions is two functions of a NIC, whose queue pairs have 20 packets to issue.
type twoFunctions struct{ *pair }

func newTwoFunctions(t *testing.T) twoFunctions {
	p := loopPair(t, worldConfig{tune: shortTurns(8 << 10)}, qpConfig{})
	p.step() // nobody waits for a turn any more
	return twoFunctions{p}
}

func (f twoFunctions) post(q *qp, from, to *region) {
	for range 20 {
		q.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: to.addr, RKey: to.key}, from.sge(0, pathMTU))
	}
}

// run returns how much each function issues in one Run.
func (f twoFunctions) run() (issued [2]uint64) {
	f.t.Helper()
	before := [2]uint64{f.hosts[0].fn.Stats().PushesTx, f.hosts[1].fn.Stats().PushesTx}
	if !f.hosts[0].e.Run(f.now) {
		f.t.Fatal("no more work")
	}
	for i, h := range f.hosts {
		issued[i] = h.fn.Stats().PushesTx - before[i]
	}
	return issued
}

// TestFunctionsTakeTurns: of two functions of a NIC each issues a quantum in its turn, though both
// have more.
func TestFunctionsTakeTurns(t *testing.T) {
	f := newTwoFunctions(t)
	f.post(f.a, f.ma, f.mb)
	f.post(f.b, f.mb, f.ma)
	for i, want := range [][2]uint64{{4, 0}, {2, 0}, {0, 4}, {0, 2}} {
		if got := f.run(); got != want {
			t.Errorf("run %d: packets issued %v, want %v", i, got, want)
		}
	}
	success(t, f.a.send.wait(20))
	success(t, f.b.send.wait(20))
}

// TestGuaranteedFunctionGoesFirst: a function that has not used up its guarantee does not wait for
// another's turn to end. Once it has, it waits.
func TestGuaranteedFunctionGoesFirst(t *testing.T) {
	f := newTwoFunctions(t)
	node := credit.New(credit.New(nil, credit.NoLimit()), credit.NoLimit())
	if err := node.Guarantee(credit.Cost{credit.ReqPktTx: 1}); err != nil {
		t.Fatal(err)
	}
	f.hosts[1].fn.UseCredits(node)
	f.post(f.a, f.ma, f.mb)
	got := [][2]uint64{f.run()}
	f.post(f.b, f.mb, f.ma)
	got = append(got, f.run())
	node.TakeOne(credit.ReqPktTx, false)
	got = append(got, f.run(), f.run())
	if want := [][2]uint64{{4, 0}, {0, 4}, {0, 2}, {2, 0}}; !slices.Equal(got, want) {
		t.Errorf("packets issued %v, want %v", got, want)
	}
	success(t, f.a.send.wait(20))
	success(t, f.b.send.wait(20))
}

// TestWeight2IssuesTwoQuanta: a function of weight 2 issues two quanta in its turn. One of weight 0
// issues one, like one of weight 1.
func TestWeight2IssuesTwoQuanta(t *testing.T) {
	for weight, want := range map[int][][2]uint64{
		0: {{4, 0}, {2, 0}, {0, 4}, {0, 2}},
		1: {{4, 0}, {2, 0}, {0, 4}, {0, 2}},
		2: {{4, 0}, {4, 0}, {3, 0}, {0, 4}, {0, 2}},
	} {
		f := newTwoFunctions(t)
		f.hosts[0].fn.SetWeight(weight)
		f.post(f.a, f.ma, f.mb)
		f.post(f.b, f.mb, f.ma)
		for i, want := range want {
			if got := f.run(); got != want {
				t.Errorf("weight %d, run %d: packets issued %v, want %v", weight, i, got, want)
			}
		}
		success(t, f.a.send.wait(20))
		success(t, f.b.send.wait(20))
	}
}

// TestQueuePairsWithWorkWaitForTheRate: if a function's rate is used up, its queue pairs with
// something to send wait for it, and no others do.
func TestQueuePairsWithWorkWaitForTheRate(t *testing.T) {
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

// TestAFunctionWaitsForItsRateOnce: a function whose rate is used up waits once. More work for it,
// of the queue pair that waits or of another, does not count as another wait, and gets its turn
// with the rest.
func TestAFunctionWaitsForItsRateOnce(t *testing.T) {
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

// TestAllQueuePairsFinishWithLittleCredit runs many QPs on a NIC with little credit. All wait, all
// finish, and all credit is returned.
func TestAllQueuePairsFinishWithLittleCredit(t *testing.T) {
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
