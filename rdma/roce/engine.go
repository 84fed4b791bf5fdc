package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Name is the wire's name for operators.
const Name = "roce"

// traced is the wire's number in traces. Packets have a PSN, and no RSN or identifier of a
// connection.
var traced = trace.AddWire(&trace.Wire{Name: Name, Opcode: func(op uint8) string { return wire.Opcodes.Name(ib.Opcode(op)) }})

// Engine is the RoCEv2 transport of one shard.
type Engine struct {
	host       transport.Host
	failing    list.List[Conn]
	gone       list.List[requester] // of unreliable connections that have sent packets
	creditless []*requester         // requesters that wait for credit, next first
	timers     timer.Wheel[*Conn]
	congestion cc.Algorithm
	ports      map[*Port]struct{}
	closed     transport.PortStats // of ports that were closed
	round      fair.Round[Port]    // ports with something to send
	offered    []*requester        // offered credit, until the next Run
	freed      bool                // credit was returned since unblock last ran
	datagrams  pool.Pool[datagram]

	// Scratch memory of one call.
	out    wire.Headers
	packet transport.Packet
	atomic transport.Atomic
	word   [8]byte
	in     wire.Headers // of the packet that arrived
}

var _ transport.Driven = (*Engine)(nil)

// New makes an engine without ports.
func New(host transport.Host) *Engine {
	e := &Engine{host: host, ports: map[*Port]struct{}{}, round: fair.Round[Port]{Quantum: quantum}}
	e.congestion, _ = cc.Lookup(cc.Default)
	return e
}

// UseCongestion sets the congestion control of all connections. It must be called before there are
// any.
func (e *Engine) UseCongestion(a cc.Algorithm) { e.congestion = a }

// NewPort makes a port for a function with the given address, in a network that carries IP packets
// of mtu bytes.
func (e *Engine) NewPort(addr netip.Addr, mtu int) *Port {
	p := &Port{Addr: addr, MTU: mtu, e: e, conns: map[uint32]*Conn{}}
	p.datagrams.port = p
	e.ports[p] = struct{}{}
	return p
}

// Stats sums the counters of all ports, closed ones included.
func (e *Engine) Stats() transport.PortStats {
	sum := e.closed
	for p := range e.ports {
		sum.Add(&p.stats)
	}
	return sum
}

// Transmit writes the next packet into b, which has room for the longest one, and returns its
// length and its port; 0 if there is none now. Ports share the bandwidth by their functions'
// weights (package fair).
func (e *Engine) Transmit(now transport.Time, b []byte) (n int, from *Port) {
	for p := e.round.Next(); p != nil; p = e.round.Next() {
		if n = p.transmit(now, b); n > 0 {
			p.flow.Charge(n)
			p.stats.Sent++
		}
		more := p.waits()
		e.round.Settle(&p.flow, more, more && p.covered())
		if n > 0 {
			return n, p
		}
	}
	return 0, nil
}

// Waiting reports whether Transmit may have something.
func (e *Engine) Waiting() bool { return !e.round.Empty() }

// Run implements transport.Driven.
func (e *Engine) Run(now transport.Time) (more bool) {
	e.withdraw()
	if !e.timers.Idle() {
		for c, kind, ok := e.timers.Expire(now); ok; c, kind, ok = e.timers.Expire(now) {
			c.due(now, kind)
			c.end.settle(now)
		}
	}
	for s := e.gone.First(); s != nil; s = e.gone.First() {
		s.gone.Remove()
		s.retireSent(now)
	}
	for c := e.failing.First(); c != nil; c = e.failing.First() {
		c.end.failing.Remove()
		c.unreadable(now)
	}
	if e.freed {
		e.freed = false
		e.unblock(now)
	}
	return e.Ready()
}

// unblock wakes requesters that wait for credit and could take it now. The longest waiting come
// first, and no more are woken than can take their credit together. A requester whose credit others
// took first waits in front. Otherwise those that come first might take all of it every time.
func (e *Engine) unblock(now transport.Time) {
	left := e.creditless[:0]
	for _, s := range e.creditless {
		switch {
		case !s.credits.Possible(&s.want): // the request fails when it is tried again
			s.want = credit.Cost{}
			e.offered = append(e.offered, s)
		case s.parked == 0 && s.credits.Retry(&s.want):
			e.offered = append(e.offered, s)
		default:
			left = append(left, s)
		}
	}
	clear(e.creditless[len(left):])
	e.creditless = left
	for _, s := range e.offered {
		s.blocked, s.first, s.kept = false, true, true
	}
	for _, s := range e.offered {
		if s.end.user != nil {
			s.end.user.Unblocked(now)
			s.end.settle(now)
		}
	}
}

// withdraw takes back credit that was offered and not taken: the queue pairs have had their turns
// since.
func (e *Engine) withdraw() {
	for i, s := range e.offered {
		e.offered[i] = nil
		e.freed = e.freed || s.kept
		s.release()
	}
	e.offered = e.offered[:0]
}

// Ready implements transport.Driven. Packets to be sent do not count, they are left to Transmit.
func (e *Engine) Ready() bool {
	return !e.failing.Empty() || !e.gone.Empty() || len(e.offered) > 0 || e.freed && len(e.creditless) > 0
}

// Deadline implements transport.Driven.
func (e *Engine) Deadline() transport.Time { return e.timers.Deadline() }

// CreditsChanged implements transport.Wire. Run checks the credits.
func (e *Engine) CreditsChanged() { e.freed = true }
