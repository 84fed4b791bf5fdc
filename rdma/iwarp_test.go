package rdma

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/iwarp"
	"github.com/falcon-vnic/vnic/rdma/iwarp/iwarptest"
)

// iwarpNet is the network of a world where iWARP is spoken: streams that are cut at random places.
type iwarpNet struct {
	*iwarptest.Net
	w    *world
	next falcon.Time
}

var _ network = (*iwarpNet)(nil)

// speakIWARP adds such a network.
func (w *world) speakIWARP(seed uint64) *iwarpNet {
	n := &iwarpNet{Net: iwarptest.New(w.t, seed), w: w, next: iwarptest.Never}
	w.nets = append(w.nets, n)
	return n
}

// step implements network. It leaves nothing that can be done now.
func (n *iwarpNet) step(now falcon.Time) (busy bool) {
	n.next = n.Step(now)
	return false
}

func (n *iwarpNet) deadline() falcon.Time { return n.next }

func (n *iwarpNet) connect(a, b *qp, numberOfB, numberOfA uint32) {
	n.w.t.Helper()
	var settings [2]iwarp.Settings
	for i, p := range []*qp{a, b} {
		settings[i] = iwarp.Settings{CRC: true, IRD: int(p.q.IRD()), ORD: int(p.q.IRD())}
	}
	l := n.Dial(n.w.now, iwarptest.Shape{Delay: 30e3, Cut: 700}, settings)
	n.w.run(1e9, func() bool { return len(l.Events[0]) > 0 })
	for i, p := range []*qp{a, b} {
		ok(n.w.t, p.q.Connect(n.w.now, l.Conns[i], []uint32{numberOfB, numberOfA}[i], l.Conns[i].MTU(), [16]byte{15: byte(2 - i)}))
		p.q.LimitReads(uint8(l.Conns[i].ORD()))
	}
}

// TestWhatIWARPLacksFailsAtOnce: a SEND with immediate data completes in error at the queue pair that
// posted it, which fails, and the peer is told.
func TestWhatIWARPLacksFailsAtOnce(t *testing.T) {
	worldsOver(t, byIWARP)
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{})
	p.b.receive(1, p.mb.sge(0, 8))
	p.a.post(abi.SendWQE{Opcode: abi.OpSendImm, Flags: abi.SendSignaled}, p.ma.sge(0, 8))
	if got := p.a.send.wait(1); got[0].Status != abi.WCLocQPOpErr {
		t.Errorf("completed with %s", describe(got))
	}
	if got := p.b.recv.wait(1); got[0].Status != abi.WCWRFlushErr {
		t.Errorf("the peer's receive completed with %s", describe(got))
	}
}

// TestErrorsOverIWARPFailBothQueuePairs: a request that the peer refuses completes with the status that
// verbs have for it, or where TCP had it acknowledged before, fails the queue pair with that status;
// the peer's queue pair fails too, and what it has posted is flushed.
func TestErrorsOverIWARPFailBothQueuePairs(t *testing.T) {
	worldsOver(t, byIWARP)
	for _, c := range []struct {
		name   string
		change func(p *pair, x *abi.SendWQE)
		op     abi.Opcode
		want   abi.WCStatus
	}{
		{"WRITE with a key that there is not", func(_ *pair, x *abi.SendWQE) { x.RKey ^= 0x100 }, abi.OpWrite, abi.WCRemAccessErr},
		{"READ with a key that there is not", func(_ *pair, x *abi.SendWQE) { x.RKey ^= 0x100 }, abi.OpRead, abi.WCRemAccessErr},
		{"READ of another domain's memory", func(p *pair, x *abi.SendWQE) {
			pd, _ := p.hosts[1].fn.AllocPD()
			m := p.hosts[1].register(pd, 4096, allAccess)
			x.RKey, x.RemoteAddr = m.key, m.addr
		}, abi.OpRead, abi.WCRemAccessErr},
		{"READ past the end", func(p *pair, x *abi.SendWQE) { x.RemoteAddr += uint64(p.mb.n) - 7 }, abi.OpRead, abi.WCRemAccessErr},
		{"READ without the right", func(p *pair, x *abi.SendWQE) {
			m := p.hosts[1].register(p.pd[1], 4096, abi.AccessLocalWrite|abi.AccessRemoteWrite)
			x.RKey, x.RemoteAddr = m.key, m.addr
		}, abi.OpRead, abi.WCRemAccessErr},
		{"atomic that is not aligned", func(_ *pair, x *abi.SendWQE) { x.RemoteAddr += 4 }, abi.OpFetchAdd, abi.WCRemInvReqErr},
		{"SEND without a receive", func(*pair, *abi.SendWQE) {}, abi.OpSend, abi.WCRNRRetryExcErr},
		{"SEND that makes a key invalid that there is not", func(p *pair, x *abi.SendWQE) {
			p.b.receive(1, p.mb.sge(0, 8))
			x.Imm = 0x777
		}, abi.OpSendInv, abi.WCRemAccessErr},
	} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		x := p.remote(c.op, 0)
		c.change(p, &x)
		p.a.post(x, p.ma.sge(0, 8))
		p.settle(1e9)
		got, any := p.a.send.poll()
		failed := abi.WCStatus(0)
		for _, e := range p.hosts[0].async {
			failed = abi.WCStatus(e.status)
		}
		acknowledged := any && got.Status == abi.WCSuccess && c.op != abi.OpRead && c.op != abi.OpFetchAdd
		if !any || got.Status != c.want && !acknowledged || failed != c.want || p.a.q.State() != abi.QPStateErr || p.b.q.State() != abi.QPStateErr {
			t.Errorf("%s: completed %t with %v, failed with %v, states %v and %v", c.name, any, got.Status, failed, p.a.q.State(), p.b.q.State())
		}
	}
}

// TestAtomicsOverAllWiresMeetAtOneWord (RFC 7306 §5.3): queue pairs over Falcon, RoCEv2 and iWARP add
// to one word and swap another at the same time. No addition is lost, no two see the same sum, and one
// of all swaps finds the word as it was.
func TestAtomicsOverAllWiresMeetAtOneWord(t *testing.T) {
	for seed := range uint64(3) {
		w := newWorld(t, worldConfig{seed: seed, net: sim.Impairment{Delay: 20e3, Jitter: 40e3}})
		var pds [2]uint32
		for i, h := range w.hosts {
			pds[i], _ = h.fn.AllocPD()
		}
		word := w.hosts[1].register(pds[1], 4096, allAccess)
		const each = 60
		var senders []*qp
		var results []*region
		var iwarp *iwarpNet
		for _, connect := range []func(a, b *qp){
			func(a, b *qp) { w.connect(a, b, true) },
			func(a, b *qp) {
				w.speakRoCE(seed, sim.Impairment{Delay: 20e3, Jitter: 40e3}).connect(a, b, b.number, a.number)
			},
			func(a, b *qp) {
				iwarp = w.speakIWARP(seed)
				iwarp.connect(a, b, b.number, a.number)
			},
		} {
			a, b := w.hosts[0].createQP(pds[0], qpConfig{}), w.hosts[1].createQP(pds[1], qpConfig{})
			connect(a, b)
			senders, results = append(senders, a), append(results, w.hosts[0].register(pds[0], 16*each, allAccess))
		}
		got := make([]int, len(senders))
		for i := range each {
			for j, p := range senders {
				x := abi.SendWQE{Opcode: abi.OpFetchAdd, Flags: abi.SendSignaled, RemoteAddr: word.addr, RKey: word.key, CompareAdd: 1}
				p.post(x, results[j].sge(16*i, 8))
				x.Opcode, x.RemoteAddr, x.CompareAdd, x.Swap = abi.OpCmpSwap, word.addr+8, 0, uint64(j+1)
				p.post(x, results[j].sge(16*i+8, 8))
			}
			if i%8 != 7 && i < each-1 {
				continue
			}
			for j, p := range senders {
				n := 2*(i+1) - got[j]
				got[j] += n
				success(t, p.send.wait(n))
			}
		}
		seen, swapped := map[uint64]bool{}, 0
		for _, r := range results {
			for i := range each {
				sum := binary.LittleEndian.Uint64(r.bytes()[16*i:])
				if seen[sum] {
					t.Fatalf("seed %d: the sum %d was seen twice", seed, sum)
				}
				seen[sum] = true
				if binary.LittleEndian.Uint64(r.bytes()[16*i+8:]) == 0 {
					swapped++
				}
			}
		}
		if sum := binary.LittleEndian.Uint64(word.bytes()); sum != 3*each || swapped != 1 {
			t.Errorf("seed %d: the sum is %d, %d swaps", seed, sum, swapped)
		}
		if s := iwarp.Engines[0].Stats(); s.Sent < 2*each {
			t.Errorf("iWARP sent %d FPDUs", s.Sent)
		}
	}
}
