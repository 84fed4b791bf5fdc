package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestCountersOfAnExchange: both functions count a known exchange exactly (F65): a WRITE of three packets, a READ, an atomic, a
// SEND that finds no receive at first, a WRITE that is refused, and two requests that are flushed behind it.
func TestCountersOfAnExchange(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
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
	for i, want := range []Stats{
		{Posted: 7, Completed: 7, Flushed: 2, Errors: 1, PushesTx: 7, PullsTx: 3, BytesTx: 3034, BytesRx: 1508, RNRRx: 1, QPErrors: 1, Doorbells: 7},
		{Completed: 1, PushesRx: 4, PullsRx: 3, BytesRx: 3010, RNRTx: 1, Refused: 3, QPErrors: 1, Doorbells: 1},
	} {
		if got := p.hosts[i].fn.Stats(); got != want {
			t.Errorf("host %d: %+v\nwant %+v", i, got, want)
		}
	}
}
