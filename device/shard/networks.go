package shard

import (
	"log/slog"
	"math"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// networks holds a shard's wires other than Falcon (rdma.Engine.Networks): the gateway carries their
// packets like the plain IP of the functions' ports.
//
//	guest memory ▶ wire ▶ gateway ▶ seal ▶ underlay ▶ tx queue
//	                         └────▶ port, or function, of this NIC
//
// By rdma.transport a function uses Falcon alone, one of these wires alone, or Falcon to vnic
// functions and the first of these wires to all other addresses.
type networks struct {
	all     []*network
	streams []*streams // the networks whose connections are TCP's
	plain   *plainIP
	own     *pfvf.Table // enabled functions of the shard, by address
	core    Core
	mtu     int          // largest path MTU of drivers
	crc     bool         // streams: this end asks for checksums
	most    credit.Cost  // the most that a connection may hold
	now     *falcon.Time // time of the current Step
	log     *loglimit.Log
	tape    *tape.Tape
}

// add adds the wires of an engine. wake wakes the shard when TCP has got something.
func (ns *networks) add(of *rdma.Engine, wake func()) {
	for _, n := range of.Networks() {
		ns.all = append(ns.all, &network{Network: n})
		if n.Kind.Groups {
			ns.plain.gw.Groups = append(ns.plain.gw.Groups, claim(n.Kind))
		}
	}
	for _, w := range of.Streams() {
		streams := &streams{wire: w, wake: wake, now: ns.now, log: ns.log, tape: ns.tape, crc: ns.crc, ports: map[uint32]*streamPort{}}
		ns.streams = append(ns.streams, streams)
		ns.all = append(ns.all, &network{Network: rdma.Network{Kind: w.Kind, Network: streams}, streams: streams})
	}
}

func claim(k *transport.Kind) gateway.Claim {
	return gateway.Claim{Protocol: k.Takes.Protocol, Port: k.Takes.Port}
}

// networkPort is what the shard keeps of a function's port in a network. It is the port's owner.
type networkPort struct {
	transport.Port
	opener transport.Opener // nil: the wire does not connect queue pairs by their numbers
	in     *network
	at     *gateway.Endpoint // its place in the tenant's network
	alone  bool              // no peer is reached over Falcon
	id     uint32            // of the function
	mtu    int               // rdma.mtu
	verbs  *rdma.Function
	driver conn.Driver
}

// networkPortOf returns a function's port; nil: it uses Falcon alone, or has no place in a network.
func networkPortOf(v *rdma.Function) *networkPort {
	if p := v.Port(); p != nil {
		return p.Owner().(*networkPort)
	}
	return nil
}

// choose returns the network of functions with a value of rdma.transport; nil: Falcon alone.
func (ns *networks) choose(mode string) *network {
	for _, n := range ns.all {
		if mode == config.TransportAuto || mode == n.Kind.Name {
			return n
		}
	}
	return nil
}

// start gives a function that its driver enabled a port at its place in the tenant's network, if it
// has one. mode is the function's rdma.transport.
func (ns *networks) start(o *conn.Owner, v *rdma.Function, driver conn.Driver, mode string) {
	at, n := ns.plain.endpointOf(o.ID), ns.choose(mode)
	if at == nil || n == nil || !o.Addr.IsValid() {
		return
	}
	p := &networkPort{in: n, alone: mode != config.TransportAuto, id: uint32(o.ID), mtu: ns.mtu, verbs: v, driver: driver}
	p.Port = n.NewPort(o.Addr, at.MTU, p)
	p.opener, _ = p.Port.(transport.Opener)
	v.UsePort(p.Port, func(gid [16]byte) bool { return ns.wayTo(p, o.Tenant, gid) == conn.Connected })
	ns.place(p, at)
}

// place connects a function's port to its endpoint.
func (ns *networks) place(p *networkPort, at *gateway.Endpoint) {
	p.at = at
	p.Move(p, at.MTU)
	takes := claim(p.in.Kind)
	if s, ok := p.Port.(*streamPort); ok {
		takes.Ports = s.ports
	}
	at.SetFunction(takes, func(packet []byte, first, most int) (n int, more bool) {
		return p.Share(*ns.now, packet, first, most)
	})
}

// portAdded is called when the endpoint of a function with a driver was added, perhaps in place of
// another.
func (ns *networks) portAdded(o *conn.Owner, v *rdma.Function, driver conn.Driver, mode string) {
	at, p := ns.plain.endpointOf(o.ID), networkPortOf(v)
	switch {
	case p == nil:
		ns.start(o, v, driver, mode)
	case at != nil:
		ns.place(p, at)
	}
}

// stop ends the service of a function whose driver has gone: from now on, the wire's packets go to
// the guest behind the function's port.
func (ns *networks) stop(o *conn.Owner) {
	if at := ns.plain.endpointOf(o.ID); at != nil {
		at.SetFunction(gateway.Claim{}, nil)
	}
}

// knows reports whether an address is known as a vnic function's. The core learns of the shard's
// own functions a moment later.
func (ns *networks) knows(tenant uint32, gid [16]byte) bool {
	return ns.own.ByGID(tenant, gid) != nil || ns.core.Knows(tenant, gid)
}

// wayTo returns how an address is reached: from a port now (Connected), from the port but not yet
// (Later), or over Falcon. A port that is alone reaches every address, as soon as the network has it.
// Otherwise it reaches addresses in the network that are not known as vnic functions.
func (ns *networks) wayTo(p *networkPort, tenant uint32, gid [16]byte) conn.Way {
	reached := ns.plain.gw.PathMTU(p.at, netip.AddrFrom16(gid).Unmap()) > 0
	switch {
	case p.alone && !reached:
		return conn.Later
	case p.alone, reached && !ns.knows(tenant, gid):
		return conn.Connected
	}
	return conn.OverFalcon
}

// connect connects a queue pair whose driver named its peer, if the peer is not reached over Falcon.
func (ns *networks) connect(now falcon.Time, f *conn.Connections, v *rdma.Function, q *verbs.QP) conn.Way {
	at, p := ns.plain.endpointOf(f.ID), networkPortOf(v)
	if at == nil || p == nil || p.opener == nil {
		return conn.OverFalcon
	}
	peer, gid, _ := q.Wired()
	way := ns.wayTo(p, f.Tenant, gid)
	if way != conn.Connected {
		return way
	}
	addr, path := netip.AddrFrom16(gid).Unmap(), q.Path()
	c := p.opener.Open(now, transport.Way{Peer: addr, Class: path.TrafficClass, Hops: path.HopLimit, FlowLabel: path.FlowLabel}, conn.NewCredits(f.Credits, ns.most))
	if st := q.Connect(now, c, peer, q.PathMTU(), gid); st != abi.StatusOK {
		ns.log.Line(now, slog.LevelWarn, "a queue pair cannot be connected in the network of its function's port: it needs the default ordering and error mode, and a path MTU that fits the port's MTU",
			"function", f.Describe(), "wire", p.in.Kind.Name, "qp", q.Number(), "path_mtu", q.PathMTU(), "port_mtu", at.MTU, "peer", addr)
	}
	return conn.Connected
}

// step passes on what TCP has received, before queue pairs have their turns, and reports whether
// there was anything. send passes on what the queue pairs then sent.
func (ns *networks) step(now falcon.Time) (worked bool) {
	for _, s := range ns.streams {
		worked = s.step(now) || worked
	}
	return worked
}

func (ns *networks) send(now falcon.Time) {
	for _, s := range ns.streams {
		s.send(now)
	}
}

// deadline returns when step has something to do.
func (ns *networks) deadline() falcon.Time {
	at := vtime.Never
	for _, s := range ns.streams {
		at = min(at, s.Deadline())
	}
	return at
}

// waiting reports whether TCP has something for step or transmit.
func (ns *networks) waiting() bool {
	return slices.ContainsFunc(ns.streams, func(s *streams) bool { return s.tcp != nil && s.tcp.Waiting() })
}

// close ends TCP. The shard's thread has ended.
func (ns *networks) close() {
	for _, s := range ns.streams {
		s.close()
	}
}

// transmit creates packets and passes them to the gateway, as far as the tx queue and the quantum of
// each network allow. It reports whether more could be sent at once.
//
// Streams send one burst: most of TCP's window would go out at once otherwise, and each end would wait while
// the other works.
func (ns *networks) transmit(now falcon.Time, out *plainOut, burst int) (more bool) {
	for _, n := range ns.all {
		most := math.MaxInt
		if n.streams != nil {
			most = burst
		}
		more = n.transmit(now, out, most) || more
	}
	return more
}

// network is one of the wires, with the packets that it is sending.
type network struct {
	rdma.Network
	streams *streams       // nil: the wire has no streams
	sending transport.Port // the port whose packet is being sealed, once for each peer in cut
	bytes   int            // size of that packet

	held   []*networkPort // ports whose datagrams wait while one to a group is distributed
	frames [][]byte       // buffers for packets, in use until ports of this NIC have taken them
	used   int            // number of frames in use
	cut    gateway.Forward
}

// networkFrames is the most packets of a network that may wait for ports of this NIC.
const networkFrames = 64

func (n *network) transmit(now falcon.Time, out *plainOut, burst int) (more bool) {
	n.held = slices.DeleteFunc(n.held, func(p *networkPort) bool {
		if out.gw.Casting(p.at.Function) {
			return false
		}
		p.Hold(false)
		return true
	})
	if !n.Waiting() && n.sending == nil {
		return false
	}
	if !out.gw.Waiting() && n.sending == nil {
		n.used = 0 // ports have taken their packets
	}
	for made, bytes, last := 0, 0, 0; made < txQuantum && bytes <= burst-last; made++ {
		b := out.uplink.tx.Slot()
		if b == nil {
			return false
		}
		if n.sending == nil {
			frame := n.frame()
			if frame == nil {
				return true
			}
			length, from := n.Transmit(now, frame[gateway.EthernetLen:])
			if length == 0 {
				return false
			}
			n.used++
			p := from.Owner().(*networkPort)
			var left gateway.FunctionWork
			if n.streams != nil {
				left = n.streams.left
			}
			forward := out.gw.FromFunction(p.at, frame[:gateway.EthernetLen+length], left, &n.cut)
			if out.gw.Casting(p.at.Function) {
				p.Hold(true)
				n.held = append(n.held, p)
			}
			if !forward {
				from.NoteSent(false)
				continue
			}
			n.sending, n.bytes = from, length
		} else {
			n.sending.ChargeCopy(n.bytes)
		}
		packet := n.cut.Next()
		out.seal(now, b, &n.cut, packet)
		last = len(packet) + security.MaxHeadroom + security.Trailer
		bytes += last
		out.uplink.tx.MayWait = false
		if !n.cut.Left() && !n.cut.NextCopy() {
			n.used--
			n.sending.NoteSent(true)
			n.sending = nil
		}
	}
	return true
}

// frame returns a buffer for the next packet; nil: the ports have to take some first.
func (n *network) frame() []byte {
	if n.used == networkFrames {
		return nil
	}
	if n.used == len(n.frames) {
		n.frames = append(n.frames, make([]byte, gateway.EthernetLen+n.Kind.MaxPacket))
	}
	return n.frames[n.used]
}
