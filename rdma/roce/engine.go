package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/fair"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Name is the wire's name for operators.
const Name = "roce"

// Kind is RoCEv2.
var Kind = transport.Kind{
	Name:      Name,
	New:       open,
	Takes:     transport.Claim{Protocol: wire.Protocol, Port: wire.Port},
	Groups:    true,
	MaxPacket: maxPacket,
	Head: func(b []byte) int {
		var h wire.Headers
		if n, err := h.Parse(b); err == nil {
			return n
		}
		return len(b)
	},
	Counters: []transport.Counter{
		{Name: "again", Help: "Requests sent again.", Of: func(s *transport.PortStats) uint64 { return s.Again }},
		{Name: "cnps", Help: "Congestion notifications received.", Of: func(s *transport.PortStats) uint64 { return s.CNPs }},
		{Name: "cnps_sent", Help: "Congestion notifications sent.", Of: func(s *transport.PortStats) uint64 { return s.CNPsSent }},
		{Name: "marked", Help: "Packets received with a mark of congestion.", Of: func(s *transport.PortStats) uint64 { return s.Marked }},
		{Name: "missing", Help: "Times that a packet of a request or an answer was found missing.", Of: func(s *transport.PortStats) uint64 { return s.Missing }},
		{Name: "received", Help: "Packets received that were for somebody.", Of: func(s *transport.PortStats) uint64 { return s.Received }},
		{Name: "refused", Help: "Requests of peers answered with an error.", Of: func(s *transport.PortStats) uint64 { return s.Refused }},
		{Name: "sent", Help: "Packets sent.", Of: func(s *transport.PortStats) uint64 { return s.Sent }},
		{Name: "strange", Help: "Packets received for nobody: no such queue pair, or other addresses, partition or service than its own.", Of: func(s *transport.PortStats) uint64 { return s.Strange }},
		{Name: "timeouts", Help: "Times that nothing was answered in time.", Of: func(s *transport.PortStats) uint64 { return s.Timeouts }},
		{Name: "wrong", Help: "Packets received that are not RoCEv2, or have a wrong ICRC.", Of: func(s *transport.PortStats) uint64 { return s.Wrong }},
	},
}

func open(h transport.Host, o transport.Options) transport.Wire {
	e := New(h)
	e.tape = o.Tape
	if a, ok := cc.Lookup(o.Congestion); ok {
		e.UseCongestion(a)
	}
	return e
}

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
	tape       *tape.Tape
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

var _ transport.Network = (*Engine)(nil)

// New makes an engine without ports.
func New(host transport.Host) *Engine {
	e := &Engine{host: host, ports: map[*Port]struct{}{}, round: fair.Round[Port]{Quantum: quantum}}
	e.congestion, _ = cc.Lookup(cc.Default)
	return e
}

// UseCongestion sets the congestion control of all connections. It must be called before there are
// any.
func (e *Engine) UseCongestion(a cc.Algorithm) { e.congestion = a }

// NewPort implements transport.Network. It returns a *Port.
func (e *Engine) NewPort(addr netip.Addr, mtu int, owner any) transport.Port {
	p := &Port{Addr: addr, MTU: mtu, owner: owner, e: e, conns: map[uint32]*Conn{}}
	p.datagrams.port = p
	e.ports[p] = struct{}{}
	return p
}

// Stats implements transport.Network.
func (e *Engine) Stats() transport.PortStats {
	sum := e.closed
	for p := range e.ports {
		sum.Add(&p.stats)
	}
	return sum
}

// Transmit implements transport.Network. Package fair shares the bandwidth.
func (e *Engine) Transmit(now transport.Time, b []byte) (n int, from transport.Port) {
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

// Waiting implements transport.Network.
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
