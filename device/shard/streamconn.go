package shard

import (
	"slices"

	"github.com/falcon-vnic/vnic/device/tcp"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// streamConn is a connection of a function: TCP's and the wire's on it.
type streamConn struct {
	p       *streamPort
	id      uint32 // for the driver
	tcp     *tcp.Conn
	stream  transport.Stream // nil: TCP's is not connected yet
	state   streamState
	local   uint16
	service uint64 // that a peer called
	qpn     uint32 // 0: none yet
	private []byte // to be sent
	begun   vtime.Time
	expires vtime.Time // of a request that waits for the driver
	tcpOver bool
	told    bool // the driver has had its last event
}

// streamState says how far the making of a connection has come.
//
//	calling ───────────────┐
//	answering ─▶ asked ────┴─▶ open
type streamState uint8

const (
	streamCalling   streamState = iota // this end called
	streamAnswering                    // a peer called, and has not said what it wants
	streamAsked                        // the driver is asked
	streamOpen
)

func (s streamState) String() string {
	return [...]string{"CONNECTING", "ANSWERING", "REQUESTED", "ESTABLISHED"}[s]
}

func (p *streamPort) newConn(local uint16, t *tcp.Conn) *streamConn {
	p.number++
	c := &streamConn{p: p, id: p.number, tcp: t, local: local, state: streamAnswering, begun: *p.s.now}
	t.Owner = c
	p.conns[c.id] = c
	p.use(local)
	return c
}

func (c *streamConn) mtu() int {
	if c.stream == nil {
		return 0
	}
	return c.stream.MTU()
}

// queuePair returns the connection's queue pair; nil: it has none any more.
func (c *streamConn) queuePair() *verbs.QP {
	if c.state != streamOpen {
		return nil
	}
	if q := c.p.verbs().QP(c.qpn); q != nil && q.Owns(c.stream) {
		return q
	}
	return nil
}

func (c *streamConn) settings(q *verbs.QP, private []byte) *transport.StreamSettings {
	return &transport.StreamSettings{CRC: c.p.s.crc, IRD: int(q.IRD()), ORD: int(q.ORD()), Private: private}
}

// happened applies an event of TCP.
func (c *streamConn) happened(now falcon.Time, ev *tcp.Event) {
	switch {
	case ev.Kind == tcp.Connected:
		c.connected(now)
	case ev.Kind == tcp.Lost:
		c.endUse()
		if c.stream != nil {
			c.stream.Lost(now, ev.Why)
		} else if !c.told {
			c.over(&abi.AsyncEvent{Type: abi.EventUnreachable, Status: uint32(statusOf(ev.Why))}, ev.Why)
		}
	case ev.Kind == tcp.Closed:
		c.endUse()
	case c.stream == nil: // it ended before it was connected
	case ev.Kind == tcp.Data:
		c.tcp.Take(c.stream.Receive(now, c.tcp.In()))
	case ev.Kind == tcp.Acknowledged:
		c.stream.Acknowledged(now, c.tcp.Acknowledged())
		c.stream.Room(c.tcp.Room())
	case ev.Kind == tcp.PeerClosed:
		if q := c.queuePair(); q != nil {
			q.PeerLeaves()
		}
		c.stream.PeerClosed(now)
	}
}

// connected begins the wire's connection on TCP's.
func (c *streamConn) connected(now falcon.Time) {
	q := c.p.verbs().QP(c.qpn)
	if c.told || q == nil { // it ends, or its function does
		return
	}
	c.stream = c.p.s.wire.Begin(now, c.tcp.MSS, c.settings(q, c.private), c)
	c.private = nil
	c.stream.Room(c.tcp.Room())
}

// endUse ends the use of the port: TCP's connection is over.
func (c *streamConn) endUse() {
	c.tcpOver = true
	c.p.unuse(c.local)
}

// statusOf returns what a driver is told about a call that TCP could not connect.
func statusOf(why string) abi.Status {
	if why == tcp.Refused {
		return abi.StatusRefused
	}
	return abi.StatusUnreachable
}

// attach gives the connection to its queue pair.
func (c *streamConn) attach(now falcon.Time, q *verbs.QP) abi.Status {
	st := q.Connect(now, c.stream, 0, c.stream.MTU(), c.tcp.Peer.Addr().As16()) // TCP has segments, and no path MTU
	if st != abi.StatusOK {
		c.stream.Close(now)
		return st
	}
	q.LimitReads(uint8(min(c.stream.ORD(), 255)))
	c.answered()
	c.state = streamOpen
	if in := c.tcp.In(); len(in) > 0 {
		c.tcp.Take(c.stream.Receive(now, in))
	}
	return st
}

// established is called when the peer has accepted.
func (c *streamConn) established(now falcon.Time) {
	is := *c.stream.Peer()
	private := string(is.Private)
	q := c.p.verbs().QP(c.qpn)
	if q == nil || c.attach(now, q) != abi.StatusOK {
		c.stream.Close(now)
		return
	}
	c.notify(c.ofPeer(abi.EventEstablished, &is), private)
}

// requested is called when a peer that called asks for a connection.
func (c *streamConn) requested(now falcon.Time) {
	if _, listens := c.p.services[c.local]; !listens || c.p.owner.driver.Behind() {
		c.stream.Reject(now, nil)
		return
	}
	c.state, c.expires = streamAsked, now+patience
	c.p.s.asked = append(c.p.s.asked, c)
	is := c.stream.Peer()
	e := c.ofPeer(abi.EventConnectRequest, is)
	e.Service, e.SrcGID = c.service, c.tcp.Peer.Addr().As16()
	c.notify(e, string(is.Private))
}

// ofPeer returns an event with what the peer says of itself. MPA of revision 1 does not carry IRD
// and ORD.
func (c *streamConn) ofPeer(typ abi.EventType, is *transport.StreamSettings) *abi.AsyncEvent {
	e := &abi.AsyncEvent{Type: typ, PeerPort: c.tcp.Peer.Port(), IRD: 255, ORD: 255}
	if is.Revision > 1 {
		e.IRD, e.ORD = uint8(min(is.IRD, 255)), uint8(min(is.ORD, 255))
	}
	return e
}

// answered ends the time that the driver has to answer a request.
func (c *streamConn) answered() {
	if c.state == streamAsked {
		c.p.s.asked = slices.DeleteFunc(c.p.s.asked, func(x *streamConn) bool { return x == c })
	}
}

// over sends the driver the connection's last event, and forgets it.
func (c *streamConn) over(e *abi.AsyncEvent, private string) {
	c.notify(e, private)
	c.forget()
}

// gone is called when the wire's connection is over.
func (c *streamConn) gone(why string) {
	switch {
	case c.told:
	case c.state == streamCalling:
		c.over(&abi.AsyncEvent{Type: abi.EventUnreachable, Status: uint32(abi.StatusUnreachable)}, why)
	case c.state == streamAnswering:
		c.forget()
	default:
		c.over(&abi.AsyncEvent{Type: abi.EventDisconnected, Status: uint32(abi.StatusAborted)}, "")
	}
}

// forget removes the connection from its function.
func (c *streamConn) forget() {
	c.told = true
	c.answered()
	delete(c.p.conns, c.id)
	if c.p.ofQP[c.qpn] == c {
		delete(c.p.ofQP, c.qpn)
	}
}

func (c *streamConn) notify(e *abi.AsyncEvent, private string) {
	if !c.told {
		e.Number = c.id
		if c.p.ofQP[c.qpn] == c {
			e.QPN = c.qpn
		}
		c.p.owner.driver.Notify(e, private)
	}
}

// end ends the connection from this side.
func (c *streamConn) end(now falcon.Time) {
	if q := c.queuePair(); q != nil {
		q.Disconnected(now)
	}
	if c.stream != nil {
		c.stream.Close(now)
		return
	}
	if !c.tcpOver {
		c.tcp.Reset()
	}
	c.over(&abi.AsyncEvent{Type: abi.EventDisconnected, Status: uint32(abi.StatusAborted)}, "")
}
