package shard

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/tcp"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// streams is a network whose wire's connections are TCP's (device/tcp), at the functions' own addresses.
//
//	queue pair ─▶ wire ─ bytes ─▶ tcp ─ packets ─▶ gateway
//	driver ─ CMListen, CMConnect, CMAccept … ─▶ streamConn ─▶ tcp
//
// The driver's commands (streamcommands.go) make the connections (streamconn.go): a service is a TCP
// port. TCP begins with the first function that uses the wire.
type streams struct {
	wire  rdma.StreamWire
	tcp   *tcp.Stack // nil: no function uses the wire
	wake  func()     // wakes the shard when TCP has something for it
	now   *falcon.Time
	log   *loglimit.Log
	tape  *tape.Tape
	crc   bool                   // this end asks for checksums
	ports map[uint32]*streamPort // the latest port of each function
	sum   transport.PortStats    // of the ports before those
	asked []*streamConn          // peers' requests that wait for a driver, first to expire first; TCP's limits bound them
	part  []byte
	left  gateway.FunctionWork // of the packet that Transmit returned last
}

var _ transport.Network = (*streams)(nil)

// close ends TCP. The shard's thread has ended.
func (s *streams) close() {
	if s.tcp != nil {
		s.tcp.Close()
	}
}

// NewPort implements transport.Network. owner is a *networkPort.
func (s *streams) NewPort(addr netip.Addr, mtu int, owner any) transport.Port {
	if s.tcp == nil {
		s.tcp = tcp.New(tcp.Config{Wake: s.wake, Tape: s.tape, Head: packetHead, Cut: func() tcp.Cutter { return s.wire.Kind.Cut() }})
		s.part = make([]byte, 64<<10)
	}
	p := &streamPort{
		s: s, owner: owner.(*networkPort), ports: new(gateway.PortSet), uses: map[uint16]int{}, services: map[uint16]uint64{},
		conns: map[uint32]*streamConn{}, ofQP: map[uint32]*streamConn{}, next: firstLocal,
	}
	p.function = p.owner.id
	if old := s.ports[p.function]; old != nil {
		s.sum.Add(&old.stats)
	}
	s.tcp.Add(p.function, addr, mtu)
	s.ports[p.function] = p
	return p
}

// Transmit implements transport.Network.
func (s *streams) Transmit(_ transport.Time, b []byte) (n int, from transport.Port) {
	for n, d := s.tcp.Transmit(b); n > 0; n, d = s.tcp.Transmit(b) {
		if p := s.ports[d.Function]; p != nil {
			p.stats.Sent += uint64(d.Segments)
			s.left = gateway.FunctionWork{Unsummed: d.Unsummed, Segment: d.Segment}
			return n, p
		}
	}
	return 0, nil
}

// Waiting implements transport.Network.
func (s *streams) Waiting() bool {
	return s.tcp != nil && s.tape.Bool(tape.StreamWaits, s.tcp.Waiting())
}

// Stats implements transport.Network.
func (s *streams) Stats() transport.PortStats {
	sum := s.sum
	for _, p := range s.ports {
		sum.Add(&p.stats)
	}
	s.wire.Count(&sum)
	if s.tcp != nil {
		lost := s.tcp.Stats()
		sum.Missing += lost.DepartingFull
		sum.Strange += lost.Wrong
	}
	return sum
}

// Run, Ready, CreditsChanged and Deadline implement transport.Driven. The engine drives the wire itself.
func (s *streams) Run(transport.Time) (more bool) { return false }
func (s *streams) Ready() bool                    { return false }
func (s *streams) CreditsChanged()                {}
func (s *streams) Deadline() transport.Time {
	at := vtime.Never
	if s.tcp != nil {
		at = s.tcp.Deadline()
	}
	if len(s.asked) > 0 {
		at = min(at, s.asked[0].expires)
	}
	return at
}

// patience is how long a driver may leave a request of a peer unanswered.
const patience = 10e9

// step passes on what TCP has for the wire, and what the wire has for drivers. It reports whether TCP had
// something.
func (s *streams) step(now falcon.Time) (worked bool) {
	if s.tcp == nil {
		return false
	}
	s.tcp.Step(now)
	for ev, ok := s.tcp.Next(); ok; ev, ok = s.tcp.Next() {
		s.happened(now, &ev)
		worked = true
	}
	for len(s.asked) > 0 && s.asked[0].expires <= now {
		c := s.asked[0]
		c.stream.Reject(now, nil)
		c.over(&abi.AsyncEvent{Type: abi.EventDisconnected, Status: uint32(abi.StatusTimeout)}, "")
	}
	s.events(now)
	return worked
}

// send gives TCP what the wire sends. Queue pairs have had their turns.
func (s *streams) send(now falcon.Time) {
	if s.tcp == nil {
		return
	}
	s.events(now)
	for n, owner := s.wire.Write(now, s.part); n > 0; n, owner = s.wire.Write(now, s.part) {
		owner.(*streamConn).tcp.Write(s.part[:n])
	}
	s.events(now)
	s.tcp.Flush()
}

// happened applies an event of TCP.
func (s *streams) happened(now falcon.Time, ev *tcp.Event) {
	switch ev.Kind {
	case tcp.Incoming:
		s.called(now, ev)
	case tcp.Fault:
		s.sum.Faults++
		s.log.Line(now, slog.LevelError, "TCP had a fault: all connections over iWARP of this shard are lost; please report it", "fault", ev.Why)
	case tcp.Unlistened:
		if p := s.ports[ev.Function]; p != nil {
			delete(p.services, ev.Port)
			p.unuse(ev.Port)
		}
	default:
		if c, _ := ev.Conn.Owner.(*streamConn); c != nil {
			c.happened(now, ev)
		}
	}
}

// called begins the answer to a peer's call.
func (s *streams) called(now falcon.Time, ev *tcp.Event) {
	p := s.ports[ev.Function]
	if p == nil || p.closed {
		ev.Conn.Reset()
		return
	}
	c := p.newConn(ev.Port, ev.Conn)
	c.service = p.services[ev.Port]
	c.stream = s.wire.BeginAnswer(now, ev.Conn.MSS, c)
	c.stream.Room(ev.Conn.Room())
}

// events applies the events of the wire.
func (s *streams) events(now falcon.Time) {
	for owner, what, ok := s.wire.NextEvent(); ok; owner, what, ok = s.wire.NextEvent() {
		c := owner.(*streamConn)
		switch what {
		case transport.StreamRequested:
			c.requested(now)
		case transport.StreamEstablished:
			c.established(now)
		case transport.StreamRejected:
			c.over(&abi.AsyncEvent{Type: abi.EventRejected}, string(c.stream.Peer().Private))
		case transport.StreamFinish:
			c.tcp.CloseWrite()
		case transport.StreamGone:
			why, reset := c.stream.Ending()
			switch {
			case c.tcpOver:
			case reset:
				c.tcp.Reset()
			default:
				c.tcp.Close()
			}
			c.gone(why)
		}
	}
}

// streamPort is a function in the network, with its driver's connections.
type streamPort struct {
	s        *streams
	owner    *networkPort
	function uint32
	stats    transport.PortStats
	closed   bool

	ports    *gateway.PortSet  // of its ends
	uses     map[uint16]int    // listeners and connections of each
	services map[uint16]uint64 // that the driver listens to, by port
	next     uint16            // port for the next call

	conns  map[uint32]*streamConn // by their numbers for the driver
	ofQP   map[uint32]*streamConn // that a queue pair has, or is to have
	number uint32                 // of the last call
}

// firstLocal begins the ports from which functions call (RFC 6335 §6).
const firstLocal = 49152

func (p *streamPort) verbs() *rdma.Function { return p.owner.verbs }

// use counts a use of a port, whose packets the function takes from now on; unuse ends it.
func (p *streamPort) use(port uint16) {
	p.uses[port]++
	p.ports.Add(port)
}

func (p *streamPort) unuse(port uint16) {
	if p.uses[port]--; p.uses[port] <= 0 {
		delete(p.uses, port)
		p.ports.Remove(port)
	}
}

// local returns a port that the function does not use; 0: there is none.
func (p *streamPort) local() uint16 {
	for range 1<<16 - firstLocal {
		port := p.next
		if p.next++; p.next < firstLocal {
			p.next = firstLocal
		}
		if p.uses[port] == 0 {
			return port
		}
	}
	return 0
}

// taken reports whether the driver has a listener or a connection at a port. TCP may still have something to do
// for a connection of whose end the driver was told.
func (p *streamPort) taken(port uint16) bool {
	if _, listens := p.services[port]; listens {
		return true
	}
	for _, c := range p.conns {
		if c.local == port {
			return true
		}
	}
	return false
}

// Owner implements transport.Port.
func (p *streamPort) Owner() any { return p.owner }

// Move implements transport.Port. Connections keep the MTU that they began with.
func (p *streamPort) Move(owner any, _ int) { p.owner = owner.(*networkPort) }

// Share implements transport.Port.
func (p *streamPort) Share(_ transport.Time, packet []byte, _, _ int) (n int, more bool) {
	p.stats.Received++
	p.s.tcp.Take(p.function, packet)
	return 1, false
}

// The rest of transport.Port is for datagrams and for the shares of functions, which TCP does
// not have.
func (p *streamPort) NoteSent(bool)              {}
func (p *streamPort) ChargeCopy(int)             {}
func (p *streamPort) Hold(bool)                  {}
func (p *streamPort) SetWeight(int)              {}
func (p *streamPort) Stats() transport.PortStats { return p.stats }

// Conns implements transport.Port.
func (p *streamPort) Conns() (list []transport.PortConn) {
	for _, id := range slices.Sorted(maps.Keys(p.conns)) {
		c := p.conns[id]
		list = append(list, transport.PortConn{QPN: c.qpn, At: c.tcp.Peer.Addr(), State: c.state.String(), MTU: c.mtu(), Opened: c.begun})
	}
	return list
}

// Close implements transport.Port. The driver has gone. The port stays among the others until the
// function gets a new one: the resets of its connections are still to be sent.
func (p *streamPort) Close() {
	p.closed = true
	for _, id := range slices.Sorted(maps.Keys(p.conns)) { // in the same order when it is replayed
		c := p.conns[id]
		c.tcpOver, c.told = true, true
		c.answered()
		if c.stream != nil {
			c.stream.Lost(*p.s.now, "the function has gone")
		}
	}
	clear(p.conns)
	clear(p.ofQP)
	p.s.tcp.Remove(p.function)
}

// endQP ends the connection of a queue pair that was reset, is in error or was destroyed.
func (p *streamPort) endQP(now falcon.Time, qpn uint32) {
	if c := p.ofQP[qpn]; c != nil {
		c.end(now)
		delete(p.ofQP, qpn) // which may be connected anew
	}
}
