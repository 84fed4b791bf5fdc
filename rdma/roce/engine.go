package roce

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Engine is the RoCEv2 of one shard.
type Engine struct {
	host       transport.Host
	ports      map[*Port]struct{}
	closed     Stats           // of ports that are
	line       list.List[Conn] // with something to send, next first
	talking    list.List[Port] // with datagrams to send
	turn       bool            // theirs
	failing    list.List[Conn]
	creditless []*Conn
	freed      bool // credit, since creditless was looked at
	timers     timer.Wheel[*Conn]
	congestion cc.Algorithm

	datagrams pool.Pool[datagram]

	// Scratch memory of one call.
	in, out wire.Headers
	packet  transport.Packet
	atomic  transport.Atomic
	word    [8]byte
}

var _ transport.Driven = (*Engine)(nil)

// New makes an engine without ports.
func New(host transport.Host) *Engine {
	e := &Engine{host: host, ports: map[*Port]struct{}{}}
	e.congestion, _ = cc.Lookup(cc.Default)
	return e
}

// UseCongestion names the algorithm of all connections, of which there are none yet.
func (e *Engine) UseCongestion(a cc.Algorithm) { e.congestion = a }

// NewPort makes a port for a function with an address, in a network that carries IP packets of mtu
// bytes.
func (e *Engine) NewPort(addr netip.Addr, mtu int) *Port {
	p := &Port{Addr: addr, MTU: mtu, e: e, conns: map[uint32]*Conn{}}
	e.ports[p] = struct{}{}
	return p
}

// Stats sums the counters of all ports, closed ones included.
func (e *Engine) Stats() Stats {
	sum := e.closed
	for p := range e.ports {
		sum.Add(&p.stats)
	}
	return sum
}

// Transmit makes the next packet in b, which has room for the longest, and returns its length and
// whose it is; 0: there is none now. Connections take turns, and with those the ports' datagrams.
func (e *Engine) Transmit(now transport.Time, b []byte) (n int, from *Port) {
	if p := e.talking.First(); p != nil {
		if e.turn = !e.turn; e.turn || e.line.Empty() {
			p.talks.MoveBack()
			p.stats.Sent++
			return p.sendDatagram(b), p
		}
	}
	for c := e.line.First(); c != nil; c = e.line.First() {
		if n = c.transmit(now, b); n > 0 {
			c.place.MoveBack()
			c.port.stats.Sent++
			return n, c.port
		}
		c.place.Remove()
	}
	return 0, nil
}

// Waiting reports whether Transmit may have something.
func (e *Engine) Waiting() bool { return !e.line.Empty() || !e.talking.Empty() }

// Run implements transport.Driven.
func (e *Engine) Run(now transport.Time) (more bool) {
	if !e.timers.Idle() {
		for c, kind, ok := e.timers.Expire(now); ok; c, kind, ok = e.timers.Expire(now) {
			c.due(now, kind)
			if c.user != nil {
				c.user.Settle(now)
			}
		}
	}
	for c := e.failing.First(); c != nil; c = e.failing.First() {
		c.failing.Remove()
		c.unreadable(now)
	}
	if e.freed && len(e.creditless) > 0 {
		e.freed = false
		e.unblock(now)
	}
	return e.Ready()
}

// unblock tells those that wait for credit and could take it now. Who is told may have to wait again
// at once, behind the others.
func (e *Engine) unblock(now transport.Time) {
	n, left := len(e.creditless), 0
	for i := range n {
		c := e.creditless[i]
		switch {
		case !c.blocked || c.user == nil:
			c.blocked = false
		case c.couldTake():
			c.blocked = false
			c.user.Unblocked(now)
			c.user.Settle(now)
		default:
			e.creditless[left] = c
			left++
		}
	}
	again := copy(e.creditless[left:], e.creditless[n:])
	clear(e.creditless[left+again:])
	e.creditless = e.creditless[:left+again]
}

func (c *Conn) couldTake() bool {
	if !c.credits.Possible(&c.want) {
		return true // to hear that it is hopeless
	}
	ok := c.credits.Take(&c.want)
	if ok {
		_ = c.credits.Return(&c.want)
	}
	return ok
}

// Ready implements transport.Driven. What is to be sent is Transmit's.
func (e *Engine) Ready() bool {
	return !e.failing.Empty() || e.freed && len(e.creditless) > 0
}

// Deadline implements transport.Driven.
func (e *Engine) Deadline() transport.Time { return e.timers.Deadline() }

// CreditsChanged implements transport.Wire: Run looks.
func (e *Engine) CreditsChanged() { e.freed = true }
