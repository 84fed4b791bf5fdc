package rof

import (
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Link carries the datagrams between a function and one other function, for all their UD queue
// pairs of one ordering. One queue pair may use many links, and the reverse (RDMA over Falcon
// §6.6.3); an address handle selects the links. When a handle is created, or at the first send, the
// link asks the device for its connection. Until it opens, datagrams wait in the link for a short
// while.
//
//	        want                Open
//	idle ─────────▶ wanted ───────────▶ open
//	 ▲                 │ Refused,         │ the peer closed it, or it was lost,
//	 │ later           ▼ or too long      │ or no handle names it for a while
//	 └───────────── refused ◀─────────────┘ idle
//
// While a link is refused, its datagrams are lost, like those to an address where nobody is. When
// another function opens a link, this function gets a passive link. The number of passive links is
// limited, and the function's own handles use them if they fit.
type Link struct {
	in      *Links
	to      LinkKey
	own     [16]byte // our address on its connection
	state   linkState
	passive bool   // the peer opened it
	from    uint32 // passive: the function that opened it
	conn    transport.DatagramConn
	segment int    // maximum of data bytes in one datagram
	handles int    // number of handles that use it
	flow    uint32 // flow label of the first handle
	timer   timer.Handle
	pause   vtime.Time // before the next attempt
	serial  uint32     // of the function's links
	outgoing
}

// LinkKey identifies a link of a function, by the headers that its datagrams have.
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

// Leave implements verbs.Destination. The link is kept for a while, because another handle may soon use
// it. The number of unused links is limited, in case a function makes and destroys handles faster
// than links expire.
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

// Key returns the key of the link.
func (l *Link) Key() LinkKey { return l.to }

// FlowLabel returns the flow label that the link's first handle asked for. All datagrams of the
// link take one path.
func (l *Link) FlowLabel() uint32 { return l.flow }

// Handles returns the number of address handles that use the link.
func (l *Link) Handles() int { return l.handles }

// Function returns the number of the function that the link belongs to.
func (l *Link) Function() uint32 { return l.in.id }

// Passive reports whether the peer opened the link.
func (l *Link) Passive() bool { return l.passive }

// Connected reports whether the link has a connection.
func (l *Link) Connected() bool { return l.conn != nil }

// Want implements verbs.Destination: it asks the device for the connection.
func (l *Link) Want(now vtime.Time) {
	if l.state != linkIdle {
		return
	}
	l.state, l.stalled = linkWanted, false
	l.in.timers.Set(&l.timer, l, now+LinkPatience)
	l.in.e.linksWanted = append(l.in.e.linksWanted, l)
}

// Open gives the link its connection, of which it is the only user. own is the function's address
// on that connection.
func (l *Link) Open(now vtime.Time, conn transport.DatagramConn, own [16]byte) {
	l.state, l.conn, l.own, l.pause = linkOpen, conn, own, linkPauseMin
	l.segment = conn.AttachDatagrams(l, &l.in.of.Account)
	l.in.timers.Stop(&l.timer)
	l.rest(now)
	l.advance(now)
	l.send(now)
	l.wake()
}

// loses reports whether the link drops a datagram of n bytes.
func (l *Link) loses(n int) bool {
	return l.stalled || l.state == linkRefused || l.state == linkOpen && n > l.segment
}

// Refused reports that no connection can be had now. Sends are lost until the next attempt.
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

// Disconnected closes a connection that the peer has ended or that has been lost.
func (l *Link) Disconnected(now vtime.Time) {
	if l.conn == nil {
		return
	}
	l.close(now)
	l.in.of.Settle(now)
}

// Owns reports whether conn is the link's connection.
func (l *Link) Owns(conn transport.DatagramConn) bool { return l.conn != nil && l.conn == conn }

// close ends the connection. Datagrams in flight complete as lost.
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

// drop removes a link that nobody uses.
func (l *Link) drop() {
	l.in.timers.Stop(&l.timer)
	delete(l.in.passive, l)
	if l.in.byKey[l.to] == l {
		delete(l.in.byKey, l.to)
	}
}

// rest starts the timer that closes a link without handles. A passive link is closed by the peer.
func (l *Link) rest(now vtime.Time) {
	if l.handles == 0 && !l.passive && l.state != linkWanted {
		l.in.timers.Set(&l.timer, l, now+linkIdleTime)
	}
}

// Due handles the timer of the link, whose meaning depends on the state.
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

// packetType returns the service level for receive completions: the RoCE packet type, as hardware
// reports it (low bits 1 IPv6, 2 IPv4; bit 3 UDP).
func (l *Link) packetType() uint8 {
	if verbs.IsIPv4(l.to.GID) {
		return abi.SLRoCEIPv4
	}
	return abi.SLRoCEIPv6
}
