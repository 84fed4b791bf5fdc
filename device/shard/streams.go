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
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// streams is a network whose wire's connections are TCP's (device/tcp), at the functions' own addresses.
//
//	queue pair ─▶ wire ─ bytes ─▶ tcp ─ packets ─▶ gateway
//	driver ─ CMListen, CMConnect, CMAccept … ─▶ call ─▶ tcp
//
// The driver's commands make the connections: a service is a TCP port. TCP begins with the first
// function that uses the wire.
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
	asked []*call                // peers' requests that wait for a driver, first to expire first; TCP's limits bound them
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
		calls: map[uint32]*call{}, ofQP: map[uint32]*call{}, next: firstLocal,
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

// Run, Ready and Deadline implement transport.Driven. The engine drives the wire itself.
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
		owner.(*call).tcp.Write(s.part[:n])
	}
	s.events(now)
	s.tcp.Flush()
}

// happened applies an event of TCP.
func (s *streams) happened(now falcon.Time, ev *tcp.Event) {
	if ev.Kind == tcp.Incoming {
		s.called(now, ev)
		return
	}
	if ev.Kind == tcp.Fault {
		s.sum.Faults++
		s.log.Line(now, slog.LevelError, "TCP had a fault: all connections over iWARP of this shard are lost; please report it", "fault", ev.Why)
		return
	}
	if ev.Kind == tcp.Unlistened {
		if p := s.ports[ev.Function]; p != nil {
			delete(p.services, ev.Port)
			p.unuse(ev.Port)
		}
		return
	}
	c, _ := ev.Conn.Owner.(*call)
	if c == nil {
		return
	}
	if c.stream == nil && ev.Kind != tcp.Connected && ev.Kind != tcp.Lost && ev.Kind != tcp.Closed {
		return // it ended before it was connected
	}
	switch ev.Kind {
	case tcp.Connected:
		q := c.p.verbs().QP(c.qpn)
		if c.told || q == nil { // it ends, or its function does
			return
		}
		c.stream = s.wire.Begin(now, ev.Conn.MSS, c.settings(q, c.private), c)
		c.private = nil
		c.stream.Room(ev.Conn.Room())
	case tcp.Data:
		ev.Conn.Take(c.stream.Receive(now, ev.Conn.In()))
	case tcp.Acknowledged:
		c.stream.Acknowledged(now, ev.Conn.Acknowledged())
		c.stream.Room(ev.Conn.Room())
	case tcp.PeerClosed:
		if q := c.queuePair(); q != nil {
			q.PeerLeaves()
		}
		c.stream.PeerClosed(now)
	case tcp.Lost:
		c.tcpOver = true
		c.p.unuse(c.local)
		if c.stream != nil {
			c.stream.Lost(now, ev.Why)
		} else if !c.told {
			c.over(&abi.AsyncEvent{Type: abi.EventUnreachable, Status: uint32(statusOf(ev.Why))}, ev.Why)
		}
	case tcp.Closed:
		c.tcpOver = true
		c.p.unuse(c.local)
	}
}

// statusOf returns what a driver is told about a call that TCP could not connect.
func statusOf(why string) abi.Status {
	if why == tcp.Refused {
		return abi.StatusRefused
	}
	return abi.StatusUnreachable
}

// called begins the answer to a peer's call.
func (s *streams) called(now falcon.Time, ev *tcp.Event) {
	p := s.ports[ev.Function]
	if p == nil || p.closed {
		ev.Conn.Reset()
		return
	}
	c := p.newCall(ev.Port, ev.Conn)
	c.service = p.services[ev.Port]
	c.stream = s.wire.BeginAnswer(now, ev.Conn.MSS, c)
	c.stream.Room(ev.Conn.Room())
}

// events applies the events of the wire.
func (s *streams) events(now falcon.Time) {
	for owner, what, ok := s.wire.NextEvent(); ok; owner, what, ok = s.wire.NextEvent() {
		c := owner.(*call)
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

	calls  map[uint32]*call // by their numbers for the driver
	ofQP   map[uint32]*call // that a queue pair has, or is to have
	number uint32           // of the last call
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
	for _, c := range p.calls {
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
	for _, id := range slices.Sorted(maps.Keys(p.calls)) {
		c := p.calls[id]
		list = append(list, transport.PortConn{QPN: c.qpn, At: c.tcp.Peer.Addr(), State: c.state.String(), MTU: c.mtu(), Opened: c.begun})
	}
	return list
}

// Close implements transport.Port. The driver has gone. The port stays among the others until the
// function gets a new one: the resets of its connections are still to be sent.
func (p *streamPort) Close() {
	p.closed = true
	for _, id := range slices.Sorted(maps.Keys(p.calls)) { // in the same order when it is replayed
		c := p.calls[id]
		c.tcpOver, c.told = true, true
		c.answered()
		if c.stream != nil {
			c.stream.Lost(*p.s.now, "the function has gone")
		}
	}
	clear(p.calls)
	clear(p.ofQP)
	p.s.tcp.Remove(p.function)
}

// call is a connection of a function: TCP's and the wire's on it.
type call struct {
	p       *streamPort
	id      uint32 // for the driver
	tcp     *tcp.Conn
	stream  transport.Stream // nil: TCP's is not connected yet
	state   callState
	local   uint16
	service uint64 // that a peer called
	qpn     uint32 // 0: none yet
	private []byte // to be sent
	begun   vtime.Time
	expires vtime.Time // of a request that waits for the driver
	tcpOver bool
	told    bool // the driver has had its last event
}

// callState says how far the making of a connection has come.
//
//	calling ───────────────┐
//	answering ─▶ asked ────┴─▶ open
type callState uint8

const (
	callCalling   callState = iota // this end called
	callAnswering                  // a peer called, and has not said what it wants
	callAsked                      // the driver is asked
	callOpen
)

func (s callState) String() string {
	return [...]string{"CONNECTING", "ANSWERING", "REQUESTED", "ESTABLISHED"}[s]
}

func (p *streamPort) newCall(local uint16, t *tcp.Conn) *call {
	p.number++
	c := &call{p: p, id: p.number, tcp: t, local: local, state: callAnswering, begun: *p.s.now}
	t.Owner = c
	p.calls[c.id] = c
	p.use(local)
	return c
}

func (c *call) mtu() int {
	if c.stream == nil {
		return 0
	}
	return c.stream.MTU()
}

// queuePair returns the connection's queue pair; nil: it has none any more.
func (c *call) queuePair() *verbs.QP {
	if c.state != callOpen {
		return nil
	}
	if q := c.p.verbs().QP(c.qpn); q != nil && q.Owns(c.stream) {
		return q
	}
	return nil
}

func (c *call) settings(q *verbs.QP, private []byte) *transport.StreamSettings {
	return &transport.StreamSettings{CRC: c.p.s.crc, IRD: int(q.IRD()), ORD: int(q.ORD()), Private: private}
}

// attach gives the connection to its queue pair.
func (c *call) attach(now falcon.Time, q *verbs.QP) abi.Status {
	st := q.Connect(now, c.stream, 0, c.stream.MTU(), c.tcp.Peer.Addr().As16()) // TCP has segments, and no path MTU
	if st != abi.StatusOK {
		c.stream.Close(now)
		return st
	}
	q.LimitReads(uint8(min(c.stream.ORD(), 255)))
	c.answered()
	c.state = callOpen
	if in := c.tcp.In(); len(in) > 0 {
		c.tcp.Take(c.stream.Receive(now, in))
	}
	return st
}

// established is called when the peer has accepted.
func (c *call) established(now falcon.Time) {
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
func (c *call) requested(now falcon.Time) {
	if _, listens := c.p.services[c.local]; !listens || c.p.owner.driver.Behind() {
		c.stream.Reject(now, nil)
		return
	}
	c.state, c.expires = callAsked, now+patience
	c.p.s.asked = append(c.p.s.asked, c)
	is := c.stream.Peer()
	e := c.ofPeer(abi.EventConnectRequest, is)
	e.Service, e.SrcGID = c.service, c.tcp.Peer.Addr().As16()
	c.notify(e, string(is.Private))
}

// ofPeer returns an event with what the peer says of itself. MPA of revision 1 does not carry IRD
// and ORD.
func (c *call) ofPeer(typ abi.EventType, is *transport.StreamSettings) *abi.AsyncEvent {
	e := &abi.AsyncEvent{Type: typ, PeerPort: c.tcp.Peer.Port(), IRD: 255, ORD: 255}
	if is.Revision > 1 {
		e.IRD, e.ORD = uint8(min(is.IRD, 255)), uint8(min(is.ORD, 255))
	}
	return e
}

// answered ends the time that the driver has to answer a request.
func (c *call) answered() {
	if c.state == callAsked {
		c.p.s.asked = slices.DeleteFunc(c.p.s.asked, func(x *call) bool { return x == c })
	}
}

// over tells the driver that there will be no connection.
func (c *call) over(e *abi.AsyncEvent, private string) {
	c.notify(e, private)
	c.forget()
}

// gone is called when the wire's connection is over.
func (c *call) gone(why string) {
	switch {
	case c.told:
	case c.state == callCalling:
		c.over(&abi.AsyncEvent{Type: abi.EventUnreachable, Status: uint32(abi.StatusUnreachable)}, why)
	case c.state == callAnswering:
		c.forget()
	default:
		c.over(&abi.AsyncEvent{Type: abi.EventDisconnected, Status: uint32(abi.StatusAborted)}, "")
	}
}

// forget removes the connection from its function.
func (c *call) forget() {
	c.told = true
	c.answered()
	delete(c.p.calls, c.id)
	if c.p.ofQP[c.qpn] == c {
		delete(c.p.ofQP, c.qpn)
	}
}

func (c *call) notify(e *abi.AsyncEvent, private string) {
	if !c.told {
		e.Number = c.id
		if c.p.ofQP[c.qpn] == c {
			e.QPN = c.qpn
		}
		c.p.owner.driver.Notify(e, private)
	}
}

// streamCommands carries out a driver's commands of connection management.
type streamCommands struct {
	p   *streamPort
	now falcon.Time
	mem *queues.Memory
}

var _ abi.ConnectionHandler = streamCommands{}

// portOfService returns the TCP port of a service: its low 16 bits, alone or in RDMA_PS_TCP, as RDMA CM
// numbers services.
func portOfService(service uint64) (port uint16, ok bool) {
	const rdmaPSTCP = 0x0106
	port = uint16(service)
	return port, port != 0 && (service>>16 == 0 || service>>16 == rdmaPSTCP)
}

// maxStreamListeners is how many services a function may listen to: as many as TCP allows.
const maxStreamListeners = 16

// CMListen implements abi.ConnectionHandler.
func (c streamCommands) CMListen(service uint64) abi.Status {
	port, ok := portOfService(service)
	_, listens := c.p.services[port]
	switch {
	case !ok:
		return abi.StatusInvalidArgument
	case listens:
		return abi.StatusAddressInUse
	case len(c.p.services) == maxStreamListeners:
		return abi.StatusNoResources
	}
	c.p.services[port] = service
	c.p.use(port)
	c.p.s.tcp.Listen(c.p.function, port)
	return abi.StatusOK
}

// CMUnlisten implements abi.ConnectionHandler.
func (c streamCommands) CMUnlisten(service uint64) abi.Status {
	port, _ := portOfService(service)
	if own, ok := c.p.services[port]; !ok || own != service {
		return abi.StatusNotFound
	}
	delete(c.p.services, port)
	c.p.unuse(port)
	c.p.s.tcp.Unlisten(c.p.function, port)
	return abi.StatusOK
}

// CMConnect implements abi.ConnectionHandler.
func (c streamCommands) CMConnect(p *abi.CMConnect) (uint32, abi.Status) {
	q, st := c.free(p.QPN)
	if st != abi.StatusOK {
		return 0, st
	}
	port, ok := portOfService(p.Service)
	local := p.SrcPort
	if local == 0 {
		local = c.p.local()
	}
	switch {
	case !ok:
		return 0, abi.StatusInvalidArgument
	case p.SrcPort != 0 && c.p.taken(p.SrcPort):
		return 0, abi.StatusAddressInUse
	case c.p.owner.driver.Behind():
		return 0, abi.StatusBusy
	case local == 0:
		return 0, abi.StatusNoResources
	}
	private, st := readPrivate(c.mem, p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return 0, st
	}
	x := c.p.newCall(local, c.p.s.tcp.Connect(c.p.function, local, netip.AddrPortFrom(netip.AddrFrom16(p.DGID).Unmap(), port)))
	x.state, x.private = callCalling, private
	c.bind(x, q)
	return x.id, abi.StatusOK
}

// free returns a queue pair that may be connected.
func (c streamCommands) free(qpn uint32) (*verbs.QP, abi.Status) {
	q := c.p.verbs().QP(qpn)
	switch {
	case q == nil:
		return nil, abi.StatusNotFound
	case q.State() != abi.QPStateInit || c.p.ofQP[qpn] != nil:
		return nil, abi.StatusBadState
	}
	return q, abi.StatusOK
}

func (c streamCommands) bind(x *call, q *verbs.QP) {
	x.qpn = q.Number()
	c.p.ofQP[x.qpn] = x
}

// CMAccept implements abi.ConnectionHandler.
func (c streamCommands) CMAccept(p *abi.CMAccept) abi.Status {
	q, st := c.free(p.QPN)
	if st != abi.StatusOK {
		return st
	}
	private, st := readPrivate(c.mem, p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	x := c.p.calls[p.CMID]
	switch {
	case x == nil:
		return abi.StatusNotFound
	case x.state != callAsked:
		return abi.StatusBadState
	}
	c.bind(x, q)
	x.stream.Accept(c.now, x.settings(q, private))
	if st = x.attach(c.now, q); st != abi.StatusOK {
		x.forget()
		return st
	}
	x.notify(x.ofPeer(abi.EventEstablished, x.stream.Peer()), "")
	return abi.StatusOK
}

// CMReject implements abi.ConnectionHandler. The wire has no room for a reason but the private data.
func (c streamCommands) CMReject(p *abi.CMReject) abi.Status {
	private, st := readPrivate(c.mem, p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st
	}
	x := c.p.calls[p.CMID]
	switch {
	case x == nil:
		return abi.StatusNotFound
	case x.state != callAsked:
		return abi.StatusBadState
	}
	x.stream.Reject(c.now, private)
	x.forget()
	return abi.StatusOK
}

// CMDisconnect implements abi.ConnectionHandler.
func (c streamCommands) CMDisconnect(id uint32) abi.Status {
	x := c.p.calls[id]
	if x == nil {
		return abi.StatusNotFound
	}
	x.end(c.now)
	return abi.StatusOK
}

// end ends the connection from this side.
func (c *call) end(now falcon.Time) {
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

// endQP ends the connection of a queue pair that was reset, is in error or was destroyed.
func (p *streamPort) endQP(now falcon.Time, qpn uint32) {
	if c := p.ofQP[qpn]; c != nil {
		c.end(now)
		delete(p.ofQP, qpn) // which may be connected anew
	}
}

// readPrivate copies a command's private data from guest memory.
func readPrivate(mem *queues.Memory, addr uint64, n uint16) ([]byte, abi.Status) {
	if n > abi.PrivateMax {
		return nil, abi.StatusTooLarge
	}
	b := make([]byte, n)
	if err := mem.Read(addr, b); err != nil {
		return nil, abi.StatusMemoryFault
	}
	return b, abi.StatusOK
}
