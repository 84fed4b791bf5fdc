package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// FuzzReceive feeds frames, most of them damaged, to a shard with a working connection. None may
// stop it, and each that reaches PSP must be counted exactly once.
func FuzzReceive(f *testing.F) {
	v := newVirtual(f, 1, wire100us)
	seeds := 0
	v.tap = func(_ int, frame []byte) []byte {
		if seeds < 50 {
			f.Add(append([]byte(nil), frame...), 0)
			f.Add(append([]byte(nil), frame...), 100)
			seeds++
		}
		return frame
	}
	a, b := pair(v)
	for i, op := range []abi.Opcode{abi.OpWrite, abi.OpRead} {
		a.send(op, 0, 300*(i+1), b, 0)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			f.Fatal(cqe.Status)
		}
	}
	v.tap = nil
	s := v.shards[1]
	f.Fuzz(func(t *testing.T, frame []byte, segment int) {
		delivered, done := s.underlay.Stats()[underlay.Deliver], accounted(s)
		v.now++
		s.in.receive(v.now, append([]byte(nil), frame...), segment)
		if d, n := s.underlay.Stats()[underlay.Deliver]-delivered, accounted(s)-done; d != n {
			t.Errorf("%d packets delivered by the underlay, %d accounted for", d, n)
		}
		if b.fn.Lifecycle.State() != abi.StateReady {
			t.Error("a frame stopped a function")
		}
	})
}

// accounted counts the PSP packets that were accepted or dropped.
func accounted(s *Shard) (n uint64) {
	for r := dropPSPMalformed; r <= dropFalcon; r++ {
		n += s.drops[r]
	}
	return n + s.counters.rxPackets
}
