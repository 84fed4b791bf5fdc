package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestQPPath: a path is set in INIT only, of connected queue pairs, within its ranges, and ends
// with the QP's reset. (DEV-946)
func TestQPPath(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	pd, _ := h.fn.AllocPD()
	q, ud := h.createQP(pd, qpConfig{}), h.createQP(pd, qpConfig{typ: abi.QPTypeUD})
	for name, c := range map[string]struct {
		p    abi.QPPath
		want abi.Status
	}{
		"no QP":            {abi.QPPath{QPN: 0x777}, abi.StatusNotFound},
		"datagrams":        {abi.QPPath{QPN: ud.number}, abi.StatusInvalidArgument},
		"21-bit label":     {abi.QPPath{QPN: q.number, FlowLabel: 1 << 20}, abi.StatusInvalidArgument},
		"5-bit SL":         {abi.QPPath{QPN: q.number, SL: 16}, abi.StatusInvalidArgument},
		"VLAN":             {abi.QPPath{QPN: q.number, VLAN: 1}, abi.StatusUnsupported},
		"all there can be": {abi.QPPath{QPN: q.number, FlowLabel: 1<<20 - 1, SL: 15, VLAN: abi.NoVLAN, TrafficClass: 0xff, HopLimit: 255}, abi.StatusOK},
	} {
		if st := h.fn.SetQPPath(&c.p); st != c.want {
			t.Errorf("%s: %v, want %v", name, st, c.want)
		}
	}
	want := abi.QPPath{QPN: q.number, FlowLabel: 1<<20 - 1, SL: 15, TrafficClass: 0xfc, HopLimit: 255}
	if p, st := h.fn.QueryQPPath(q.number); st != abi.StatusOK || p != want {
		t.Errorf("%v, %+v", st, p)
	}
	if _, st := h.fn.QueryQPPath(0x777); st != abi.StatusNotFound {
		t.Error(st)
	}
	q.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateReset})
	if st := h.fn.SetQPPath(&want); st != abi.StatusBadState {
		t.Errorf("in RESET: %v", st)
	}
	if p, _ := h.fn.QueryQPPath(q.number); p != (abi.QPPath{QPN: q.number}) {
		t.Errorf("after RESET: %+v", p)
	}
}
