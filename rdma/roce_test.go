package rdma

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce"
)

// overRoCE makes worlds whose queue pairs are connected over RoCEv2.
var overRoCE bool

// roceWorlds makes them so until the test ends.
func roceWorlds(t *testing.T) {
	overRoCE = true
	t.Cleanup(func() { overRoCE = false })
}

// roceNet is the network of a world where RoCEv2 is spoken.
type roceNet struct {
	w      *world
	ports  [2]*roce.Port
	links  [2]*sim.Link // from each host
	packet [9000]byte
}

func newRoCENet(w *world, seed uint64, imp sim.Impairment) *roceNet {
	n := &roceNet{w: w}
	for i, h := range w.hosts {
		n.ports[i] = Wire[*roce.Engine](h.e).NewPort(roce.Address(h.gid()), 1500)
		h.fn.UseRoCE(n.ports[i], func([16]byte) bool { return true })
		n.links[i] = sim.NewLink(seed*2+uint64(i), imp)
	}
	return n
}

// step carries the packets that can be carried now, and reports whether there were any.
func (n *roceNet) step(now falcon.Time) (busy bool) {
	for i, h := range n.w.hosts {
		for f, ok := n.links[1-i].Receive(now); ok; f, ok = n.links[1-i].Receive(now) {
			n.ports[i].Receive(now, f.Data)
			busy = true
		}
		e := Wire[*roce.Engine](h.e)
		for k, from := e.Transmit(now, n.packet[:]); k > 0; k, from = e.Transmit(now, n.packet[:]) {
			from.NoteSent(true)
			n.links[i].Send(now, n.packet[:k])
			busy = true
		}
	}
	return busy
}

func (n *roceNet) deadline() falcon.Time { return min(n.links[0].Deadline(), n.links[1].Deadline()) }

// connect joins two queue pairs.
func (n *roceNet) connect(a, b *qp, numberOfB, numberOfA uint32) {
	n.w.t.Helper()
	for i, p := range []*qp{a, b} {
		peer := n.ports[1-i].Addr
		c := n.ports[i].Open(n.w.now, roce.Way{Peer: peer}, nil)
		ok(n.w.t, p.q.Connect(n.w.now, c, []uint32{numberOfB, numberOfA}[i], n.w.mtu, peer.As16()))
	}
}

// TestModelOverRoCE is TestModel for connections over RoCEv2: those with shared receive queues, in
// XRC domains, with memory windows, and as ever.
func TestModelOverRoCE(t *testing.T) {
	roceWorlds(t)
	seeds := uint64(60)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runModel(t, seed) })
	}
}

// TestOrderingTableOverRoCE is the table of RFC 7306 §7 over RoCEv2.
func TestOrderingTableOverRoCE(t *testing.T) {
	roceWorlds(t)
	TestOrderingTable(t)
}

// TestAtomicWriteOverRoCE is TestAtomicWrite over RoCEv2, where it is a WRITE, too.
func TestAtomicWriteOverRoCE(t *testing.T) {
	roceWorlds(t)
	TestAtomicWrite(t)
}

// TestRoCECarries checks that these worlds really use RoCEv2.
func TestRoCECarries(t *testing.T) {
	roceWorlds(t)
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{})
	x := p.remote(abi.OpWrite, 0)
	p.a.post(x, p.ma.sge(0, 50_000))
	success(t, p.a.send.wait(1))
	if s := Wire[*roce.Engine](p.hosts[0].e).Stats(); s.Sent < 49 || s.Received == 0 || s.Wrong != 0 {
		t.Errorf("%+v", s)
	}
	if n := p.hosts[0].fe.Stats().PacketsSent; n != 0 {
		t.Errorf("Falcon sent %d packets", n)
	}
}

// TestOverlongWrite: the first packet of a WRITE names its whole length, so one that is too long is
// refused before anything of it is written, as Linux's rdma_rxe does it.
func TestOverlongWrite(t *testing.T) {
	roceWorlds(t)
	for _, n := range []int{4097, 9000, 40_000} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		from := p.hosts[0].register(p.pd[0], 1<<16, allAccess)
		fill(from.bytes(), 1)
		fill(p.mb.bytes(), 2)
		before := bytes.Clone(p.mb.bytes())
		p.a.post(p.remote(abi.OpWrite, 0), from.sge(0, n))
		if st := p.a.send.wait(1)[0].Status; st != abi.WCRemAccessErr {
			t.Errorf("a WRITE of %d bytes to 4096: %v", n, st)
		}
		if !bytes.Equal(p.mb.bytes(), before) {
			t.Errorf("a WRITE of %d bytes was refused, and wrote some", n)
		}
	}
}

// TestSendsWaitForReceives: of 20 SENDs over RoCEv2 to a queue pair with four receives, four arrive
// and one more probes (IBA §9.7.7.2). The others are sent when there are receives, none of them in
// vain. Receives of a shared queue are not counted.
func TestSendsWaitForReceives(t *testing.T) {
	roceWorlds(t)
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

// goodput is the share of a line of 1 Gbit/s that WRITEs of 64 KiB get by one connection with
// packets of 1 KiB, over a path of 50 µs each way that loses some, in virtual time.
func goodput(t testing.TB, byRoCE bool, loss float64) float64 {
	t.Helper()
	const size, count, deep, line = 64 << 10, 100, 16, 1e9
	overRoCE = byRoCE
	defer func() { overRoCE = false }()
	p := newPair(t, true, 1<<20, worldConfig{seed: 1, arena: 32 << 20, net: sim.Impairment{Delay: 50e3, Rate: line, Loss: loss}}, qpConfig{})
	begun := p.now
	for posted, done := 0, 0; done < count; done++ {
		for ; posted < count && posted-done < deep; posted++ {
			p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, size))
		}
		success(t, p.a.send.wait(1))
	}
	return size * count * 8 * 1e9 / float64(p.now-begun) / line
}

// BenchmarkRoCEGoodput compares both wires under losses.
func BenchmarkRoCEGoodput(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(goodput(b, true, 0.01), "roce/goodput_loss1pct")
		b.ReportMetric(goodput(b, false, 0.01), "roce/goodput_loss1pct@falcon")
	}
}

// TestGoodput has RoCEv2 use a line that loses nothing, and go on where packets are lost.
func TestGoodput(t *testing.T) {
	for _, loss := range []float64{0, 0.001, 0.01, 0.05} {
		roce, falcon := goodput(t, true, loss), goodput(t, false, loss)
		t.Logf("loss %.1f %%: RoCEv2 %.0f %%, Falcon %.0f %% of the line", loss*100, roce*100, falcon*100)
		if least := map[float64]float64{0: 0.8, 0.001: 0.4, 0.01: 0.1, 0.05: 0.01}[loss]; roce < least {
			t.Errorf("loss %.1f %%: RoCEv2 has %.2f %% of the line", loss*100, roce*100)
		}
	}
}
