package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func TestASendWaitsForAReceive(t *testing.T) {
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

// TestRNRRetry7OutlastsEveryTimeout: RNR retry 7 outlasts every timeout of the transport, also for
// requests behind it. Falcon §11 reclaims what is unanswered; a peer that answers "not ready" is
// alive.
func TestRNRRetry7OutlastsEveryTimeout(t *testing.T) {
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

func TestRNRRetriesEndInAnError(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 3})
	p.a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpSend}, p.ma.sge(0, 3000))
	p.a.post(abi.SendWQE{WRID: 2, Opcode: abi.OpSend}, p.ma.sge(0, 3000))
	got := p.a.send.wait(2)
	if got[0].Status != abi.WCRNRRetryExcErr || got[1].Status != abi.WCWRFlushErr {
		t.Fatalf("completions %s", describe(got))
	}
}

// TestWaitingReadsDoNotMakePushesNotReady: READs that wait for the target function's rate, or for a
// slot, do not make the pushes behind them receiver-not-ready. A queue pair without RNR retries
// survives, and no RNR timer is waited for.
func TestWaitingReadsDoNotMakePushesNotReady(t *testing.T) {
	for _, rate := range []uint64{0, 50e6} {
		orders(t, func(t *testing.T, ordered bool) {
			p := newPair(t, ordered, 1<<16, worldConfig{}, qpConfig{log2: 9})
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 0})
			p.hosts[1].fn.sched.rate.SetRate(p.now, rate)
			const n = 150
			for i := range n {
				p.a.post(p.remote(abi.OpRead, i%8), p.ma.sge(0, 2000))
				p.a.post(p.remote(abi.OpWrite, 8192), p.ma.sge(8192, 2000))
			}
			success(t, p.a.send.wait(2*n))
			if s := p.hosts[0].fn.Stats(); s.RNRRx != 0 {
				t.Errorf("rate %d: %d receiver-not-ready answers", rate, s.RNRRx)
			}
			if s := p.hosts[1].fn.Stats(); rate > 0 && s.PullsDeferred == 0 {
				t.Error("no READ had to wait for the rate")
			}
		})
	}
}

// TestRequestsBehindAnotherKeepTheirRetries: requests that wait behind a message that the receiver
// is not ready for do not use up their own retries.
func TestRequestsBehindAnotherKeepTheirRetries(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 2})
	p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 24}) // 41 ms
	const n = 6
	for i := range n {
		p.a.post(abi.SendWQE{WRID: uint64(i), Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
	}
	for i := range 2 * n { // while others follow, too
		before := p.hosts[0].fn.Stats().RNRRx
		p.settle(60e6) // two answers for the oldest
		if p.hosts[0].fn.Stats().RNRRx == before {
			t.Fatalf("message %d: nobody was not ready", i)
		}
		p.b.receive(uint64(i), p.mb.sge(0, 4096))
		success(t, p.a.send.wait(1))
		if i < n {
			p.a.post(abi.SendWQE{WRID: uint64(n + i), Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
		}
	}
}

// TestWorkThatNoCreditAllowsFails: work that costs more than a credit limit allows fails instead of
// waiting for ever, over Falcon and inside the NIC.
func TestWorkThatNoCreditAllowsFails(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqBufTx] = 1
	p := newPair(t, true, 8192, worldConfig{credit: limit}, qpConfig{})
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 3000))
	if got := p.a.send.wait(1)[0]; got.Status != abi.WCGeneralErr || got.VendorErr>>8 != uint32(falcon.CmplUlpCdtErr) {
		t.Errorf("over Falcon: %+v", got)
	}
	h := p.hosts[0]
	a, b := h.createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[0], qpConfig{})
	for i, q := range []*qp{a, b} {
		l, err := h.local().Open(falcon.ConnConfig{
			LocalCID: falcon.CID(8 + i), RemoteCID: falcon.CID(9 - i), MTU: pathMTU + 56, Ordered: true, Credits: h.credits,
		})
		if err != nil {
			t.Fatal(err)
		}
		ok(t, q.q.Connect(p.now, h.rof().Over(l), []uint32{b.number, a.number}[i], pathMTU, [16]byte{}))
	}
	a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.ma.addr, RKey: p.ma.key}, p.ma.sge(4096, 3000))
	if got := a.send.wait(1)[0]; got.Status != abi.WCGeneralErr || got.VendorErr>>8 != uint32(falcon.CmplUlpCdtErr) {
		t.Errorf("inside the NIC: %+v", got)
	}
}

// TestRetriesWaitForThePeersRNRTimer: a request to a peer that is not ready is sent again after the
// time that the peer names, over each wire. (IBA §9.7.5.2.8)
func TestRetriesWaitForThePeersRNRTimer(t *testing.T) {
	overAll(t, func(t *testing.T) {
		p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
		p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 24}) // 41 ms
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
		for i := range uint64(3) {
			p.settle(40e6)
			if n := p.hosts[0].fn.Stats().RNRRx; n < i || n > i+1 {
				t.Fatalf("%d times not ready after %d times 40 ms", n, i+1)
			}
		}
		p.b.receive(1, p.mb.sge(0, 4096))
		success(t, p.a.send.wait(1))
	})
}

// TestSendsOverRoCEWaitForReceives: of 20 SENDs over RoCEv2 to a queue pair with four receives,
// four arrive and one more probes (IBA §9.7.7.2). The others are sent when there are receives, none
// of them in vain. Receives of a shared queue are not counted.
func TestSendsOverRoCEWaitForReceives(t *testing.T) {
	worldsOver(t, byRoCE)
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{})
	receive := func(from, n int) {
		for i := range n {
			p.b.receive(uint64(from+i), p.mb.sge(0, 100))
		}
	}
	receive(0, 4)
	for range 20 {
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
	}
	success(t, p.b.recv.wait(4))
	p.settle(100_000)
	port := p.roce.ports[0]
	if s, naks := port.Stats(), p.hosts[1].fn.Stats().RNRTx; naks == 0 || s.Sent != 4+naks {
		t.Errorf("%d packets left for four receives; not ready %d times", s.Sent, naks)
	}
	receive(4, 16)
	success(t, p.b.recv.wait(16))
	success(t, p.a.send.wait(20))
	if s, naks := port.Stats(), p.hosts[1].fn.Stats().RNRTx; s.Sent != 20+naks {
		t.Errorf("%d packets left for 20 SENDs; not ready %d times", s.Sent, naks)
	}

	shared := p.hosts[1].createSRQ(abi.CreateSRQ{PDN: p.pd[1]})
	a, b := p.hosts[0].createQP(p.pd[0], qpConfig{}), p.hosts[1].createQP(p.pd[1], qpConfig{srq: shared})
	p.connect(a, b, true)
	shared.receive(1, p.mb.sge(0, 100))
	before := port.Stats().Sent
	for range 20 {
		a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 10))
	}
	success(t, b.recv.wait(1))
	p.settle(100_000)
	if n := port.Stats().Sent - before; n < 20 {
		t.Errorf("%d packets left for a shared queue", n)
	}
}
