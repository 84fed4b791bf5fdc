package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestRateIsNotTheReceivers: READs that wait for the target function's rate, or for a slot, do not make the pushes behind them
// receiver-not-ready: a queue pair without RNR retries lives, and nobody waits for an RNR timer (F4).
func TestRateIsNotTheReceivers(t *testing.T) {
	for _, rate := range []uint64{0, 50e6} {
		orders(t, func(t *testing.T, ordered bool) {
			p := newPair(t, ordered, 1<<16, worldConfig{}, qpConfig{log2: 9})
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 0})
			p.hosts[1].fn.rate.SetRate(p.now, rate)
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

// TestRNRRetriesOfOneMessage: what waits behind a message that the receiver is not ready for does not use up its own retries
// (F4).
func TestRNRRetriesOfOneMessage(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 2})
	p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 24}) // 41 ms
	const n = 6
	for i := range n {
		p.a.post(abi.SendWQE{WRID: uint64(i), Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
	}
	for i := range n {
		before := p.hosts[0].fn.Stats().RNRRx
		p.settle(60e6) // two answers for the oldest
		if p.hosts[0].fn.Stats().RNRRx == before {
			t.Fatalf("message %d: nobody was not ready", i)
		}
		p.b.receive(uint64(i), p.mb.sge(0, 4096))
		success(t, p.a.send.wait(1))
	}
}
