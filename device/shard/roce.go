package shard

import (
	"log/slog"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// roceWire is a shard's RoCEv2: packets of its functions, which the gateway carries as the plain IP
// of their ports, and which it chooses for peers that are no functions of vnic's.
//
//	guest memory ▶ rdma/roce ▶ gateway ▶ seal ▶ underlay ▶ tx queue
//	                              └────▶ port, or function, of this NIC
type roceWire struct {
	s      *Shard
	engine *roce.Engine
	frames [][]byte // for packets that go to ports, until those have taken them
	used   int
	cut    gateway.Forward
}

// roceFrames is how many packets may wait for ports of this NIC.
const roceFrames = 64

var _ conn.OtherWires = (*roceWire)(nil)

func (s *Shard) newRoCE() {
	s.roce = roceWire{s: s, engine: rdma.Wire[*roce.Engine](s.rdma)}
	if a, ok := cc.Lookup(s.cfg.RDMA.Congestion); ok { // the configuration was checked
		s.roce.engine.UseCongestion(a)
	}
}

// start gives a function that its driver enabled its place in the network of its port, if it has
// one.
func (r *roceWire) start(o *conn.Owner, v *rdma.Function) {
	at := r.s.endpointOf(uint32(o.ID))
	if at == nil || r.s.cfg.RDMA.Transport == config.TransportFalcon || !o.Addr.IsValid() {
		return
	}
	p := r.engine.NewPort(o.Addr, at.MTU)
	p.Owner = at
	v.UseRoCE(p, func(gid [16]byte) bool { return r.chosen(at, o.Tenant, gid) == conn.Connected })
	at.SetRoCE(func(packet []byte) { p.Receive(r.s.now, packet) })
}

// stop ends that: the driver has gone, and what comes is the port's guest's.
func (r *roceWire) stop(o *conn.Owner) {
	if at := r.s.endpointOf(uint32(o.ID)); at != nil {
		at.SetRoCE(nil)
	}
}

// endpointOf is the place of a function in its network; nil: it has no port.
func (s *Shard) endpointOf(function uint32) *gateway.Endpoint {
	for _, p := range s.plain.ports {
		if p.Function == function {
			return p.Endpoint
		}
	}
	return nil
}

// chosen tells whether an address is reached by RoCEv2 (Connected), not now, or by another wire. Who
// is known as a function of vnic's is reached over Falcon, unless that is not wanted; who has no
// address in the network is not reached by RoCEv2 yet.
func (r *roceWire) chosen(from *gateway.Endpoint, tenant uint32, gid [16]byte) conn.Way {
	s := r.s
	reached := s.plain.gw.PathMTU(from, roce.Address(gid)) > 0
	switch {
	case s.cfg.RDMA.Transport == config.TransportRoCE && !reached:
		return conn.Later
	case s.cfg.RDMA.Transport == config.TransportRoCE, reached && !s.knows(tenant, gid):
		return conn.Connected
	}
	return conn.OverFalcon
}

// Wire implements conn.OtherWires.
func (r *roceWire) Wire(now falcon.Time, f *conn.Function, v *rdma.Function, q *verbs.QP) conn.Way {
	at, port := r.s.endpointOf(uint32(f.ID)), v.RoCE()
	if at == nil || port == nil {
		return conn.OverFalcon
	}
	peer, gid, _ := q.Wired()
	way := r.chosen(at, f.Tenant, gid)
	if way != conn.Connected {
		return way
	}
	path := q.Path()
	c := port.Open(roce.Way{Peer: roce.Address(gid), Class: path.TrafficClass, Hops: path.HopLimit, FlowLabel: path.FlowLabel}, f.Credits)
	if st := q.Connect(now, c, peer, q.PathMTU(), gid); st != abi.StatusOK {
		r.s.log.Line(now, slog.LevelWarn, "a queue pair cannot be connected by RoCEv2: it needs the default ordering and error mode, and a path MTU that fits the MTU of its function's port",
			"function", f.Describe(), "qp", q.Number(), "path_mtu", q.PathMTU(), "port_mtu", at.MTU, "peer", roce.Address(gid))
	}
	return conn.Connected
}

// transmitRoCE makes packets and hands them to the gateway, as far as the tx queue and the quantum
// allow. It reports whether more could be sent at once.
func (s *Shard) transmitRoCE(now falcon.Time) (more bool) {
	r := &s.roce
	if !r.engine.Waiting() {
		return false
	}
	if !s.plain.gw.Waiting() {
		r.used = 0 // ports have taken what was for them
	}
	for range txQuantum {
		b, frame := s.tx.Slot(), r.frame()
		if b == nil || frame == nil {
			return b != nil
		}
		n, from := r.engine.Transmit(now, frame[gateway.EthernetLen:])
		if n == 0 {
			return false
		}
		r.used++
		if s.plain.gw.FromFunction(from.Owner.(*gateway.Endpoint), frame[:gateway.EthernetLen+n], &r.cut) {
			s.sealPlain(now, b, &r.cut, r.cut.Next())
			s.tx.Patient = false
			r.used--
		}
	}
	return true
}

// frame is memory for the next packet; nil: the ports have to take some first.
func (r *roceWire) frame() []byte {
	if r.used == roceFrames {
		return nil
	}
	if r.used == len(r.frames) {
		r.frames = append(r.frames, make([]byte, gateway.EthernetLen+roceFrame))
	}
	return r.frames[r.used]
}

// roceFrame has room for the longest packet, of the largest path MTU.
const roceFrame = 4096 + roce.MaxOverhead

// knows reports whether a GID is a function's. The core hears of the shard's own a moment later.
func (s *Shard) knows(tenant uint32, gid [16]byte) bool {
	return s.funcs.table.ByGID(tenant, gid) != nil || s.core.Knows(tenant, gid)
}
