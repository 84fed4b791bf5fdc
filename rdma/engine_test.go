package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestConfigOfAnEngine: what is said holds, also the least of it; what is not, or makes no sense,
// takes its default.
func TestConfigOfAnEngine(t *testing.T) {
	usual := Config{TurnOps: 8, TurnBytes: 64 << 10, Turns: 64, Quantum: 16 << 10, Linger: 500e6, PollTime: 200e3}
	one := Config{TurnOps: 1, TurnBytes: 1, Turns: 1, Quantum: 1, Linger: 1, PollTime: 1}
	for name, c := range map[string]struct{ say, want Config }{
		"nothing":        {Config{}, usual},
		"less":           {Config{TurnOps: -1, TurnBytes: -1, Turns: -1, Quantum: -1, Linger: -1, PollTime: -1}, usual},
		"least there is": {one, one},
	} {
		e := NewEngine(c.say)
		bounds := verbs.Bounds{TurnOps: c.want.TurnOps, TurnBytes: c.want.TurnBytes, Linger: c.want.Linger, PollTime: c.want.PollTime}
		if e.cfg != c.want || e.shared.Bounds != bounds || e.sched.active.Quantum != c.want.Quantum {
			t.Errorf("%s: %+v, %+v", name, e.cfg, e.shared.Bounds)
		}
	}
}

// TestCountersOfClosedFunctions: what a function counted is in the engine's sum once, while it is
// there and after it has ended, whichever of them ends.
func TestCountersOfClosedFunctions(t *testing.T) {
	for _, first := range []int{0, 1} {
		e := NewEngine(Config{})
		h := newWorld(t, worldConfig{}).hosts[0]
		fns := [2]*Function{e.NewFunction(1, h.mem, verbs.Limits{}, h), e.NewFunction(2, h.mem, verbs.Limits{}, h)}
		for i, f := range fns {
			for range 3 + 4*i {
				f.Doorbell(0, &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 0x777})
			}
		}
		for _, f := range []*Function{nil, fns[first], fns[first], fns[1-first]} {
			if f != nil {
				f.Close(0)
			}
			if n := e.Stats().BadDoorbells; n != 10 {
				t.Errorf("%d doorbells are counted of 10", n)
			}
		}
		if len(e.fns.list) != 0 {
			t.Errorf("%d functions are left", len(e.fns.list))
		}
	}
}
