package shard

import (
	"log/slog"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// roceWire is a shard's RoCEv2: the gateway carries its packets like the plain IP of the functions'
// ports. By rdma.transport it is used for all peers, or only for those that are not vnic functions.
//
//	guest memory ▶ rdma/roce ▶ gateway ▶ seal ▶ underlay ▶ tx queue
//	                              └────▶ port, or function, of this NIC
type roceWire struct {
	engine *roce.Engine
	plain  *plainIP
	own    *pfvf.Table // enabled functions of the shard, by address
	core   Core
	mode   string       // rdma.transport
	most   credit.Cost  // the most that a connection may hold
	now    *falcon.Time // time of the current Step
	log    *loglimit.Log

	sending *roce.Port // the port whose packet is being sealed, once for each peer in cut
	bytes   int        // size of that packet

	held   []*roce.Port // ports whose datagrams wait while one to a group is distributed
	frames [][]byte     // buffers for packets, in use until ports of this NIC have taken them
	used   int          // number of frames in use
	cut    gateway.Forward
}

// roceFrames is the most packets that may wait for ports of this NIC.
const roceFrames = 64

var _ conn.OtherWires = (*roceWire)(nil)

func newRoCE(s *Shard, own *pfvf.Table) *roceWire {
	r := &roceWire{
		engine: rdma.Wire[*roce.Engine](s.rdma), plain: s.plain, own: own, core: s.core, mode: s.cfg.RDMA.Transport, most: connectionCredits(s.cfg),
		now: &s.now, log: s.log,
	}
	s.plain.gw.GroupPort = roce.UDPPort
	if a, ok := cc.Lookup(s.cfg.RDMA.Congestion); ok { // the configuration was checked
		r.engine.UseCongestion(a)
	}
	return r
}

// start connects a function that its driver enabled: it sends and receives at its port's place in
// the network, if it has a port.
func (r *roceWire) start(o *conn.Owner, v *rdma.Function) {
	at := r.plain.endpointOf(o.ID)
	if at == nil || r.mode == config.TransportFalcon || !o.Addr.IsValid() {
		return
	}
	p := r.engine.NewPort(o.Addr, at.MTU)
	v.UseRoCE(p, func(gid [16]byte) bool { return r.chosen(p.Owner.(*gateway.Endpoint), o.Tenant, gid) == conn.Connected })
	r.place(p, at)
}

// place connects a function to its port's endpoint.
func (r *roceWire) place(p *roce.Port, at *gateway.Endpoint) {
	p.Owner, p.MTU = at, at.MTU
	at.SetFunction(roce.UDPPort, func(packet []byte, first, most int) (n int, more bool) { return p.Share(*r.now, packet, first, most) })
}

// ported is called when the port of a function with a driver was added, perhaps in place of
// another.
func (r *roceWire) ported(o *conn.Owner, v *rdma.Function) {
	at, p := r.plain.endpointOf(o.ID), v.RoCE()
	switch {
	case p == nil:
		r.start(o, v)
	case at != nil:
		r.place(p, at)
	}
}

// stop ends the service of a function whose driver has gone: from now on, RoCE packets go to the
// port's guest.
func (r *roceWire) stop(o *conn.Owner) {
	if at := r.plain.endpointOf(o.ID); at != nil {
		at.SetFunction(roce.UDPPort, nil)
	}
}

// knows reports whether an address is known as a vnic function's. The core learns of the shard's
// own functions a moment later.
func (r *roceWire) knows(tenant uint32, gid [16]byte) bool {
	return r.own.ByGID(tenant, gid) != nil || r.core.Knows(tenant, gid)
}

// chosen reports whether an address is reached by RoCEv2 (Connected), not yet (Later), or over
// Falcon. With rdma.transport roce, every address is reached by RoCEv2, as soon as the network has
// it. With auto, RoCEv2 is for addresses in the network that are not known as vnic functions.
func (r *roceWire) chosen(from *gateway.Endpoint, tenant uint32, gid [16]byte) conn.Way {
	reached := r.plain.gw.PathMTU(from, roce.Address(gid)) > 0
	switch {
	case r.mode == config.TransportRoCE && !reached:
		return conn.Later
	case r.mode == config.TransportRoCE, reached && !r.knows(tenant, gid):
		return conn.Connected
	}
	return conn.OverFalcon
}

// Wire implements conn.OtherWires.
func (r *roceWire) Wire(now falcon.Time, f *conn.Connections, v *rdma.Function, q *verbs.QP) conn.Way {
	at, port := r.plain.endpointOf(f.ID), v.RoCE()
	if at == nil || port == nil {
		return conn.OverFalcon
	}
	peer, gid, _ := q.Wired()
	way := r.chosen(at, f.Tenant, gid)
	if way != conn.Connected {
		return way
	}
	path := q.Path()
	c := port.Open(now, roce.Way{Peer: roce.Address(gid), Class: path.TrafficClass, Hops: path.HopLimit, FlowLabel: path.FlowLabel}, conn.NewCredits(f.Credits, r.most))
	if st := q.Connect(now, c, peer, q.PathMTU(), gid); st != abi.StatusOK {
		r.log.Line(now, slog.LevelWarn, "a queue pair cannot be connected by RoCEv2: it needs the default ordering and error mode, and a path MTU that fits the MTU of its function's port",
			"function", f.Describe(), "qp", q.Number(), "path_mtu", q.PathMTU(), "port_mtu", at.MTU, "peer", roce.Address(gid))
	}
	return conn.Connected
}

// transmit creates packets and passes them to the gateway, as far as the tx queue and the quantum
// allow. It reports whether more could be sent at once.
func (r *roceWire) transmit(now falcon.Time, out *plainOut) (more bool) {
	r.held = slices.DeleteFunc(r.held, func(p *roce.Port) bool {
		if out.gw.Casting(p.Owner.(*gateway.Endpoint).Function) {
			return false
		}
		p.Hold(false)
		return true
	})
	if !r.engine.Waiting() && r.sending == nil {
		return false
	}
	if !out.gw.Waiting() && r.sending == nil {
		r.used = 0 // ports have taken their packets
	}
	for range txQuantum {
		b := out.uplink.tx.Slot()
		if b == nil {
			return false
		}
		if r.sending == nil {
			frame := r.frame()
			if frame == nil {
				return true
			}
			n, from := r.engine.Transmit(now, frame[gateway.EthernetLen:])
			if n == 0 {
				return false
			}
			r.used++
			at := from.Owner.(*gateway.Endpoint)
			forward := out.gw.FromFunction(at, frame[:gateway.EthernetLen+n], &r.cut)
			if out.gw.Casting(at.Function) {
				from.Hold(true)
				r.held = append(r.held, from)
			}
			if !forward {
				from.NoteSent(false)
				continue
			}
			r.sending, r.bytes = from, n
		} else {
			r.sending.ChargeCopy(r.bytes)
		}
		out.seal(now, b, &r.cut, r.cut.Next())
		out.uplink.tx.Patient = false
		if !r.cut.NextCopy() {
			r.used--
			r.sending.NoteSent(true)
			r.sending = nil
		}
	}
	return true
}

// frame returns a buffer for the next packet; nil: the ports have to take some first.
func (r *roceWire) frame() []byte {
	if r.used == roceFrames {
		return nil
	}
	if r.used == len(r.frames) {
		r.frames = append(r.frames, make([]byte, gateway.EthernetLen+roceFrame))
	}
	return r.frames[r.used]
}

// roceFrame is the size of the longest packet, with the largest path MTU.
const roceFrame = 4096 + roce.MaxOverhead
