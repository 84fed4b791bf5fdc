package rof

import (
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Link carries the datagrams between a function and one other, for all their UD queue pairs of one
// ordering together: queue pairs and connections are many to many (RDMA over Falcon §6.6.3), and an
// address handle names the links. The first send, or the handle's creation, asks the device for its
// connection; meanwhile datagrams wait in the link, a short while.
//
//	        want                Open
//	idle ─────────▶ wanted ───────────▶ open
//	 ▲                 │ Refused,         │ the peer closed it, or it was lost,
//	 │ later           ▼ or too long      │ or no handle names it for a while
//	 └───────────── refused ◀─────────────┘ idle
//
// While it is refused datagrams are lost, as those to an address where nobody is. A function that
// others open links to has them too: passive ones, bounded in number, which its own handles use if
// they fit.
type Link struct {
	in      *Links
	to      LinkKey
	own     [16]byte // our address, as its connection has it
	state   linkState
	passive bool   // the peer opened it
	from    uint32 // then: the function that did
	conn    transport.DatagramConn
	segment int    // most data bytes of one datagram
	handles int    // that name it
	flow    uint32 // flow label of the first of them
	timer   timer.Handle
	pause   vtime.Time // before the next attempt
	serial  uint32     // of the function's links
	outgoing
}

// LinkKey is what makes links of a function different: headers that datagrams travel under.
type LinkKey struct {
	GID          [16]byte // of the other function
	SGID         [16]byte // of ours
	TrafficClass uint8
	HopLimit     uint8
	Ordered      bool // datagrams of strongly ordered queue pairs arrive in the order sent (RDMA over Falcon §6.4)
}

type linkState uint8

const (
	linkIdle linkState = iota
	linkWanted
	linkOpen
	linkRefused
)

const (
	LinkPatience       vtime.Time = 2e9  // that datagrams wait for a connection
	linkPauseMin       vtime.Time = 1e9  // between two attempts, doubled each time
	linkPauseMax       vtime.Time = 30e9 // at most
	linkIdleTime       vtime.Time = 30e9 // that a connection is kept without a handle
	passivePerFunction            = 8    // links that one function may open to another
)

var _ transport.DatagramEndpoint = (*Link)(nil)

// Leave implements verbs.Carrier. The link is kept for a while, as another handle may soon name it.
// A function that makes and destroys handles faster than links go away by themselves keeps no more
// than a few.
func (l *Link) Leave(now vtime.Time) {
	const spare = 64
	in := l.in
	l.handles--
	if l.handles == 0 && !l.passive && len(in.byKey) > 2*in.of.Counts()[abi.ObjectAH]+in.of.Limits().Links+spare {
		l.close(now)
		return
	}
	l.rest(now)
}

// Key says where the link goes.
func (l *Link) Key() LinkKey { return l.to }

// FlowLabel is what the link's first handle asked for: all datagrams on it take one path.
func (l *Link) FlowLabel() uint32 { return l.flow }

// Handles is how many address handles name the link.
func (l *Link) Handles() int { return l.handles }

// Function is the number of the link's function.
func (l *Link) Function() uint32 { return l.in.id }

// Passive reports whether the peer opened the link.
func (l *Link) Passive() bool { return l.passive }

// Connected reports whether the link has a connection.
func (l *Link) Connected() bool { return l.conn != nil }

// Want implements verbs.Carrier: it asks the device for the connection.
func (l *Link) Want(now vtime.Time) {
	if l.state != linkIdle {
		return
	}
	l.state, l.stalled = linkWanted, false
	l.in.timers.Set(&l.timer, l, now+LinkPatience)
	l.in.e.linksWanted = append(l.in.e.linksWanted, l)
}

// Open gives the link its connection, which nobody else has. own is the address of its function
// that it has.
func (l *Link) Open(now vtime.Time, conn transport.DatagramConn, own [16]byte) {
	l.state, l.conn, l.own, l.pause = linkOpen, conn, own, linkPauseMin
	l.segment = conn.AttachDatagrams(l, &l.in.of.Account)
	l.in.timers.Stop(&l.timer)
	l.rest(now)
	l.advance(now)
	l.send(now)
	l.wake()
}

// loses reports whether the link has no use for a datagram of n bytes.
func (l *Link) loses(n int) bool {
	return l.stalled || l.state == linkRefused || l.state == linkOpen && n > l.segment
}

// Refused says that there is no connection now. Sends are lost until the next attempt.
func (l *Link) Refused(now vtime.Time) {
	if l.state == linkOpen {
		return // too late
	}
	l.lose()
	if l.passive && l.handles == 0 {
		l.drop()
		return
	}
	l.state = linkRefused
	l.in.timers.Set(&l.timer, l, now+l.pause)
	l.pause = min(2*l.pause, linkPauseMax)
	l.wake()
}

// Disconnected says that the connection ends, by the peer or with it.
func (l *Link) Disconnected(now vtime.Time) {
	if l.conn == nil {
		return
	}
	l.close(now)
	l.in.of.Settle(now)
}

// Owns reports whether conn is the link's connection.
func (l *Link) Owns(conn transport.DatagramConn) bool { return l.conn != nil && l.conn == conn }

// close ends the connection. What is under way on it completes as lost.
func (l *Link) close(now vtime.Time) {
	c := l.conn
	l.conn, l.state, l.passive = nil, linkIdle, false
	delete(l.in.passive, l)
	l.in.timers.Stop(&l.timer)
	l.in.timers.Stop(&l.patience)
	l.lose()
	if c != nil {
		c.Close(now)
	}
	if l.handles == 0 {
		l.drop()
	}
	l.wake()
}

// end closes the link for good.
func (l *Link) end(now vtime.Time) {
	l.handles = 0
	l.close(now)
}

// drop forgets a link that nobody uses.
func (l *Link) drop() {
	l.in.timers.Stop(&l.timer)
	delete(l.in.passive, l)
	if l.in.byKey[l.to] == l {
		delete(l.in.byKey, l.to)
	}
}

// rest closes a link in a while that no handle names. One that the peer opened is the peer's to
// close.
func (l *Link) rest(now vtime.Time) {
	if l.handles == 0 && !l.passive && l.state != linkWanted {
		l.in.timers.Set(&l.timer, l, now+linkIdleTime)
	}
}

// Due is what the timer means in each state.
func (l *Link) Due(now vtime.Time) {
	switch {
	case l.state == linkWanted:
		l.Refused(now)
	case l.handles == 0 && !l.passive:
		l.close(now)
	case l.state == linkRefused:
		l.state = linkIdle
	}
}

// Unblocked implements transport.DatagramEndpoint.
func (l *Link) Unblocked(now vtime.Time) {
	l.advance(now)
	l.send(now)
	l.wake()
}

// Ended implements transport.DatagramEndpoint.
func (l *Link) Ended(now vtime.Time) {
	l.conn = nil
	l.close(now)
}

// Settle implements transport.DatagramEndpoint.
func (l *Link) Settle(now vtime.Time) { l.in.of.Settle(now) }

// Deliver implements transport.DatagramEndpoint.
func (l *Link) Deliver(now vtime.Time, d *transport.Datagram, data []byte, id uint32) {
	e := l.in.e
	n := len(data)
	if d.HasImm {
		n += immediate
	}
	l.putGRH(&e.grh, n)
	e.came = verbs.Arrival{Datagram: d, Data: data, GRH: &e.grh, SL: l.packetType(), Conn: l.conn, ID: id}
	l.in.of.Deliver(now, &e.came)
}

// packetType is what completions of receives carry as service level: the RoCE packet type, as
// hardware has it (low bits 1 IPv6, 2 IPv4; bit 3 UDP).
func (l *Link) packetType() uint8 {
	if verbs.IsIPv4(l.to.GID) {
		return abi.SLRoCEIPv4
	}
	return abi.SLRoCEIPv6
}
