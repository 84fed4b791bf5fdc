package rdma

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestReadsInFlight, at the initiator: request packets of READs and atomics without their
// answers are never more than the peer takes, however long the READs are. (RDMA over Falcon §8.3.2,
// DEV-953)
func TestReadsInFlight(t *testing.T) {
	for _, m := range modes {
		p := newPair(t, m.ordered, 1<<16, worldConfig{}, qpConfig{ordering: m.ordering, cie: true})
		p.a.q.LimitReads(3)
		fill(p.mb.bytes(), 4)
		for i := range 4 {
			p.a.post(p.remote(abi.OpRead, i*16384), p.ma.sge(i*16384, 16384))
		}
		most, cqes := 0, 0
		p.run(1e9, func() bool {
			most = max(most, p.a.info().Pulls)
			for p.a.send.drop() {
				cqes++
			}
			return cqes == 4
		})
		if most != 3 || string(p.ma.bytes()) != string(p.mb.bytes()) {
			t.Errorf("%s: %d packets in flight, the peer takes 3", m.name, most)
		}
	}
}

// TestReadsBeyondLimit, at the target: a request packet more than it takes is refused as
// invalid.
func TestReadsBeyondLimit(t *testing.T) {
	for _, m := range modes[:2] {
		for n := range 4 {
			qc := qpConfig{ordering: m.ordering}
			p := newPair(t, m.ordered, 4096, worldConfig{}, qc)
			p.a, p.b = p.hosts[0].createQP(p.pd[0], qc), p.hosts[1].createQP(p.pd[1], qc)
			p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMaxDestRdAtomic, MaxDestRdAtomic: 2}) // and nobody told the peer
			p.connect(p.a, p.b, m.ordered)
			for range n {
				p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 100))
			}
			want := abi.WCSuccess
			if n > 2 {
				want = abi.WCRemInvReqErr
			}
			for i, c := range p.a.send.wait(n) {
				if i == n-1 && c.Status != want {
					t.Errorf("%s: READ %d of %d: %s", m.name, i+1, n, c.Status)
				}
			}
			if failed := p.b.q.State() == abi.QPStateErr; failed != (n > 2) {
				t.Errorf("%s: %d READs at a time: target in %v", m.name, n, p.b.q.State())
			}
		}
	}
}

// TestWeakReads: a READ of weak mode may run before WRITEs posted ahead of it (RDMA over
// Falcon §6.7), and never before those that have completed. In strong mode it sees both. (DEV-951)
func TestWeakReads(t *testing.T) {
	for _, m := range modes[:2] {
		early := false
		for seed := range uint64(20) {
			imp := sim.Impairment{Delay: 20e3, Jitter: 100e3, Loss: 0.1, Reorder: 0.2, ReorderDelay: 200e3}
			p := newPair(t, m.ordered, 4096, worldConfig{seed: seed, net: imp}, qpConfig{ordering: m.ordering})
			for value := uint64(1); value <= 20; value++ {
				binary.LittleEndian.PutUint64(p.ma.bytes(), value)
				p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 8))
				wait := value%2 == 0
				if wait {
					success(t, p.a.send.wait(1))
				}
				p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(8, 8))
				n := 2
				if wait {
					n = 1
				}
				success(t, p.a.send.wait(n))
				got := binary.LittleEndian.Uint64(p.ma.bytes()[8:])
				switch {
				case got == value:
				case wait || m.ordered || got != value-1:
					t.Fatalf("%s, seed %d: a READ saw %d, want %d", m.name, seed, got, value)
				default:
					early = true
				}
			}
		}
		if early == m.ordered {
			t.Errorf("%s: READs ran before WRITEs ahead of them: %t", m.name, early)
		}
	}
}
