package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestQPPath: the address vector of a connected queue pair is set within its ranges, and ends with
// the QP's reset. (DEV-946, DEV-949)
func TestQPPath(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h := w.hosts[0]
	h.fn.SetGID(abi.GIDEntries-1, [16]byte{15: 7})
	pd, _ := h.fn.AllocPD()
	q, ud := h.createQP(pd, qpConfig{}), h.createQP(pd, qpConfig{typ: abi.QPTypeUD})
	for name, c := range map[string]struct {
		p    abi.ModifyQP
		want abi.Status
	}{
		"datagrams":    {abi.ModifyQP{QPN: ud.number}, abi.StatusInvalidArgument},
		"21-bit label": {abi.ModifyQP{FlowLabel: 1 << 20}, abi.StatusInvalidArgument},
		"5-bit SL":     {abi.ModifyQP{SL: 16}, abi.StatusInvalidArgument},
		"VLAN":         {abi.ModifyQP{VLAN: 1}, abi.StatusUnsupported},
		"no such GID":  {abi.ModifyQP{SGIDIndex: 1}, abi.StatusInvalidArgument},
		"no entry":     {abi.ModifyQP{SGIDIndex: 255}, abi.StatusInvalidArgument},
		"all there can be": {abi.ModifyQP{
			FlowLabel: 1<<20 - 1, SL: 15, VLAN: abi.NoVLAN, TrafficClass: 0xff, HopLimit: 255, DMAC: [6]byte{2, 1}, SGIDIndex: abi.GIDEntries - 1,
		}, abi.StatusOK},
	} {
		if c.p.Mask = abi.QPAttrAV; c.p.QPN == 0 {
			c.p.QPN = q.number
		}
		if st := h.fn.ModifyQP(w.now, &c.p); st != c.want {
			t.Errorf("%s: %v, want %v", name, st, c.want)
		}
	}
	is := func() [8]any {
		p, _ := h.fn.QueryQP(q.number)
		return [8]any{p.FlowLabel, p.SL, p.VLAN, p.TrafficClass, p.HopLimit, p.DMAC, p.SGIDIndex, p.PeerGID}
	}
	if got, want := is(), [8]any{uint32(1<<20 - 1), uint8(15), uint16(abi.NoVLAN), uint8(0xfc), uint8(255), [6]byte{2, 1}, uint8(abi.GIDEntries - 1), [16]byte{}}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	q.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateReset})
	if got, want := is(), [8]any{uint32(0), uint8(0), uint16(0), uint8(0), uint8(0), [6]byte{}, uint8(0), [16]byte{}}; got != want {
		t.Errorf("after RESET: %v", got)
	}
}
