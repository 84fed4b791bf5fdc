package rdma

import "github.com/falcon-vnic/vnic/queues/abi"

// Path is what a driver asks of the way to its peer, as ibv_ah_attr has it.
type Path struct {
	FlowLabel    uint32 // 20 bits; 0: the device picks a path
	TrafficClass uint8  // without the bits of ECN
	HopLimit     uint8  // 0: the device's own
	SL           uint8  // not carried
}

// pathOf checks what a driver asks of a path.
func pathOf(flowLabel uint32, class, hopLimit, sl uint8, vlan uint16) (Path, abi.Status) {
	switch {
	case flowLabel >= 1<<20 || sl > 15:
		return Path{}, abi.StatusInvalidArgument
	case vlan != 0 && vlan != abi.NoVLAN:
		return Path{}, abi.StatusUnsupported
	}
	return Path{FlowLabel: flowLabel, TrafficClass: class &^ ecnMask, HopLimit: hopLimit, SL: sl}, abi.StatusOK
}

// SetQPPath sets the path of a queue pair before it has a connection.
func (f *Function) SetQPPath(p *abi.QPPath) abi.Status {
	if !f.Working() {
		return abi.StatusBadState
	}
	q := f.QP(p.QPN)
	if q == nil {
		return abi.StatusNotFound
	}
	path, st := pathOf(p.FlowLabel, p.TrafficClass, p.HopLimit, p.SL, p.VLAN)
	switch {
	case q.datagrams():
		return abi.StatusInvalidArgument // each has the path of its address handle
	case st != abi.StatusOK:
		return st
	case q.state != abi.QPStateInit:
		return abi.StatusBadState
	}
	q.attr.path = path
	return abi.StatusOK
}

// QueryQPPath returns what SetQPPath set.
func (f *Function) QueryQPPath(qpn uint32) (abi.QPPath, abi.Status) {
	q := f.QP(qpn)
	if q == nil {
		return abi.QPPath{}, abi.StatusNotFound
	}
	p := &q.attr.path
	return abi.QPPath{QPN: q.number, FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL}, abi.StatusOK
}

// Path is the path the driver asked for.
func (q *QP) Path() Path { return q.attr.path }
