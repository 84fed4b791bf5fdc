package tcp

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/falcon-vnic/vnic/device/handover"
)

// Config is the configuration of a Stack.
type Config struct {
	Wake    func() // is called by any goroutine when there is something for Next or Transmit
	Started func() // is called on the thread of the pump when that begins
	Limits  Limits
}

// Limits bounds what functions may use. Zero fields take the defaults.
type Limits struct {
	Conns     int // connections of a function, without those that a peer has not finished making; default 256
	Listeners int // listeners of a function; default 16
	Backlog   int // half-open connections of a listener, and as many that wait because of Conns; default 32
	Buffer    int // bytes of a connection that are sent and not acknowledged, and as many that are received and not taken; default 256 KiB
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		of    *int
		value int
	}{{&l.Conns, 256}, {&l.Listeners, 16}, {&l.Backlog, 32}, {&l.Buffer, 256 << 10}} {
		if *d.of <= 0 {
			*d.of = d.value
		}
	}
	return l
}

// Stack is a shard's TCP, as the shard sees it.
type Stack struct {
	limits Limits
	rings  *rings
	pump   *pump
	conns  map[uint32]*Conn
	number uint32  // of the last connection that the shard made; odd, those of the pump are even
	outbox []order // that found the ring full, in order
	posted bool    // something since the last Flush
	frame  handover.Frame
	event  Event // the last one, which is in frame; What is 0 if that was released
}

// rings connect the shard's thread and the pump, each with one of them as its producer.
type rings struct {
	orders, arrived   *handover.Ring // to the pump
	events, departing *handover.Ring // to the shard; gVisor's goroutines share departing under a lock
	eventsFull        atomic.Bool    // the pump waits for room in events
	ordersFull        atomic.Bool    // the shard waits for room in orders
	bell              *bell          // wakes the pump
}

// Kinds of frames. Header.Flow is the function, A the connection.
const (
	orderAdd        handover.Kind = iota + 1 // data: address; B: MTU
	orderRemove                              // of the function
	orderListen                              // B: port
	orderUnlisten                            // B: port
	orderConnect                             // Aux: address; B: own port, port
	orderWrite                               // data: bytes of the stream
	orderTaken                               // B: bytes that the shard has taken
	orderCloseWrite                          //
	orderClose                               //
	orderReset                               //
	packet                                   // data: an IP packet
	eventIncoming                            // B: port that was called; data: addresses
	eventConnected                           // data: addresses
	eventData                                // data: bytes of the stream
	eventAcked                               // B: bytes
	eventPeerClosed                          //
	eventLost                                // data: why
	eventClosed                              //
	eventUnlistened                          // B: port; data: why
	eventFault                               // data: why
)

// order is an order to the pump.
type order struct {
	handover.Header
	data []byte
}

// New starts a TCP without functions.
func New(cfg Config) *Stack {
	r := &rings{
		orders: handover.NewRing(0), arrived: handover.NewRing(0), events: handover.NewRing(1), departing: handover.NewRing(1), bell: newBell(),
	}
	cfg.Limits = cfg.Limits.withDefaults()
	s := &Stack{limits: cfg.Limits, rings: r, conns: map[uint32]*Conn{}}
	s.pump = startPump(r, &cfg)
	return s
}

// Close resets all connections and ends all goroutines.
func (s *Stack) Close() { s.pump.close() }

// post gives the pump an order. If the ring is full, the order waits in the outbox: its size is
// limited by what connections may write.
func (s *Stack) post(h *handover.Header, data []byte) {
	s.posted = true
	if len(s.outbox) > 0 || !give(s.rings.orders, h, data) {
		s.outbox = append(s.outbox, order{*h, slices.Clone(data)})
	}
}

func give(r *handover.Ring, h *handover.Header, data []byte) bool {
	b := r.Put(h, len(data))
	if b == nil {
		return false
	}
	copy(b, data)
	r.Commit()
	return true
}

// Flush hands over what was posted. The shard calls it at the end of its turn, and calls Wake behind it if
// there was something.
func (s *Stack) Flush() (some bool) {
	if len(s.outbox) > 0 {
		s.rings.ordersFull.Store(true) // before the last attempt: the pump makes room and then looks
		n := 0
		for ; n < len(s.outbox) && give(s.rings.orders, &s.outbox[n].Header, s.outbox[n].data); n++ {
			s.posted = true
		}
		s.outbox = slices.Delete(s.outbox, 0, n)
	}
	some, s.posted = s.posted, false
	return some
}

// Wake wakes the goroutine that takes what was handed over. Any goroutine may call it.
func (s *Stack) Wake() { s.rings.bell.ring() }

// Add gives a function its address. mtu is the longest IP packet that its network carries.
func (s *Stack) Add(function uint32, addr netip.Addr, mtu int) {
	s.post(&handover.Header{Kind: orderAdd, Flow: function, B: uint32(mtu)}, addr.AsSlice())
}

// Remove takes a function out: its connections are reset and its listeners end, without further
// events.
func (s *Stack) Remove(function uint32) {
	maps.DeleteFunc(s.conns, func(_ uint32, c *Conn) bool { return c.Function == function })
	s.post(&handover.Header{Kind: orderRemove, Flow: function}, nil)
}

// Listen lets peers call a function at a port. Unlistened follows if that is not possible.
func (s *Stack) Listen(function uint32, port uint16) {
	s.post(&handover.Header{Kind: orderListen, Flow: function, B: uint32(port)}, nil)
}

// Unlisten ends that. Connections that were not announced as Incoming are reset.
func (s *Stack) Unlisten(function uint32, port uint16) {
	s.post(&handover.Header{Kind: orderUnlisten, Flow: function, B: uint32(port)}, nil)
}

// Connect calls a peer from a local port; 0: any. Connected or Lost follows.
func (s *Stack) Connect(function uint32, from uint16, to netip.AddrPort) *Conn {
	s.number += 2
	c := &Conn{Function: function, Peer: to, s: s, id: s.number - 1}
	s.conns[c.id] = c
	s.post(&handover.Header{Kind: orderConnect, Flow: function, A: c.id, B: uint32(from)<<16 | uint32(to.Port()), Aux: to.Addr().As16()}, nil)
	return c
}

// Take hands over an IP packet that arrived for a function. It is lost if there is no room.
func (s *Stack) Take(function uint32, b []byte) {
	if s.posted = true; !give(s.rings.arrived, &handover.Header{Kind: packet, Flow: function}, b) {
		s.pump.counts.arrivedFull.Add(1)
	}
}

// Transmit copies the next IP packet that a function sends to b; n is 0 if there is none.
func (s *Stack) Transmit(b []byte) (n int, function uint32) {
	var f handover.Frame
	if !s.rings.departing.Take(&f) {
		return 0, 0
	}
	n = copy(b, f.Data)
	s.rings.departing.Done()
	return n, f.Flow
}

// Waiting reports whether Next or Transmit may have something.
func (s *Stack) Waiting() bool { return !s.rings.events.Empty() || !s.rings.departing.Empty() }

// Stats counts what a Stack has and has lost.
type Stats struct {
	Conns         uint64 // connections, those in TIME_WAIT too
	ArrivedFull   uint64 // packets that arrived and found no room
	DepartingFull uint64 // packets to be sent that found no room
	Wrong         uint64 // packets that arrived and are no whole TCP segment for the function, or have a wrong checksum
}

// Stats returns the counters. Any goroutine may call it.
func (s *Stack) Stats() Stats {
	c := &s.pump.counts
	return Stats{Conns: c.conns.Load(), ArrivedFull: c.arrivedFull.Load(), DepartingFull: c.departingFull.Load(), Wrong: c.wrong.Load()}
}

// What tells what happened.
type What uint8

// Kinds of events.
const (
	Connected    What = iota + 1 // a peer has answered
	Incoming                     // a peer has called
	Data                         // Conn.In has got more
	Acknowledged                 // Conn.Acknowledged and Conn.Room have grown
	PeerClosed                   // the peer sends no more
	Lost                         // the connection is over; Why says why
	Closed                       // the connection is over, as the shard asked
	Unlistened                   // Listen failed; Why says why
	Fault                        // TCP had a fault, which Why describes; all connections will be Lost
)

// Refused is Event.Why if nobody listens at the port that was called.
var Refused = (&tcpip.ErrConnectionRefused{}).String()

// Event is something that happened.
type Event struct {
	What     What
	Function uint32
	Conn     *Conn  // nil for Unlistened and Fault; not to be used after Lost and Closed
	Port     uint16 // of Incoming and Unlistened
	Why      string
}

// Next returns the next event; false if there is none.
func (s *Stack) Next() (Event, bool) {
	for {
		s.release()
		if !s.rings.events.Take(&s.frame) {
			return Event{}, false
		}
		if s.translate(); s.event.What != 0 {
			return s.event, true
		}
		s.done() // it was of a connection that the shard has forgotten
	}
}

// done gives the frame's room back to the pump, which may wait for it.
func (s *Stack) done() {
	s.rings.events.Done()
	if s.rings.eventsFull.Swap(false) {
		s.posted = true
	}
}

// release ends the use of the last event's frame. What the shard left of its data is kept.
func (s *Stack) release() {
	if s.event.What == 0 {
		return
	}
	if c := s.event.Conn; s.event.What == Data && !c.kept {
		c.in, c.kept = slices.Clone(c.in), true
	}
	s.event = Event{}
	s.done()
}

// translate makes an event of the frame, and applies it to its connection.
func (s *Stack) translate() {
	f := &s.frame
	if f.Kind == eventIncoming {
		s.conns[f.A] = &Conn{Function: f.Flow, s: s, id: f.A}
	}
	c := s.conns[f.A]
	e := Event{Function: f.Flow, Conn: c}
	switch {
	case f.Kind == eventUnlistened:
		e.What, e.Port, e.Why = Unlistened, uint16(f.B), string(f.Data)
	case f.Kind == eventFault:
		e.What, e.Why = Fault, string(f.Data)
	case c == nil:
	case f.Kind == eventIncoming:
		e.What, e.Port = Incoming, uint16(f.B)
		c.Local, c.Peer, c.MSS = parseEnds(f.Data)
	case f.Kind == eventConnected:
		e.What = Connected
		c.Local, c.Peer, c.MSS = parseEnds(f.Data)
	case f.Kind == eventData:
		e.What = Data
		if len(c.in) > 0 {
			c.in = append(c.in, f.Data...)
		} else {
			c.in, c.kept = f.Data, false
		}
	case f.Kind == eventAcked:
		e.What = Acknowledged
		c.acked += uint64(f.B)
	case f.Kind == eventPeerClosed:
		e.What = PeerClosed
	case f.Kind == eventLost:
		e.What, e.Why = Lost, string(f.Data)
		delete(s.conns, c.id)
	case f.Kind == eventClosed:
		e.What = Closed
		delete(s.conns, c.id)
	}
	s.event = e
}

// putEnds writes the addresses of a connection and its MSS: local 18, peer 18, MSS 2.
func putEnds(b []byte, local, peer netip.AddrPort, mss int) []byte {
	for _, a := range []netip.AddrPort{local, peer} {
		addr := a.Addr().As16()
		b = binary.BigEndian.AppendUint16(append(b, addr[:]...), a.Port())
	}
	return binary.BigEndian.AppendUint16(b, uint16(mss))
}

func parseEnds(b []byte) (local, peer netip.AddrPort, mss int) {
	one := func(b []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:]))
	}
	return one(b), one(b[18:]), int(binary.BigEndian.Uint16(b[36:]))
}

// Conn is a connection.
type Conn struct {
	Owner       any // the shard's
	Function    uint32
	Local, Peer netip.AddrPort // Local is not valid before Connected
	MSS         int            // bytes of a segment, from Connected or Incoming on

	s              *Stack
	id             uint32
	in             []byte // received and not taken
	kept           bool   // in is no longer in the ring
	taken          uint32 // bytes taken that the pump does not know of
	written, acked uint64
}

// In returns the bytes that were received and not taken. They are valid until the next call of Next
// or Take.
func (c *Conn) In() []byte { return c.in }

// Take takes the first n bytes of In.
func (c *Conn) Take(n int) {
	c.in = c.in[n:]
	if c.taken += uint32(n); int(c.taken) >= c.s.limits.Buffer/4 {
		c.s.post(&handover.Header{Kind: orderTaken, Flow: c.Function, A: c.id, B: c.taken}, nil)
		c.taken = 0
	}
}

// Room returns how many bytes may be written.
func (c *Conn) Room() int { return c.s.limits.Buffer - int(c.written-c.acked) }

// Acknowledged returns how many of the bytes written the peer's TCP has acknowledged.
func (c *Conn) Acknowledged() uint64 { return c.acked }

// Write sends bytes, as many as there is room for, and returns their number.
func (c *Conn) Write(b []byte) (n int) {
	for b = b[:min(len(b), c.Room())]; len(b) > 0; {
		part := b[:min(len(b), maxPart)]
		c.s.post(&handover.Header{Kind: orderWrite, Flow: c.Function, A: c.id}, part)
		n, b = n+len(part), b[len(part):]
	}
	c.written += uint64(n)
	return n
}

// maxPart is the most bytes of a stream in one frame of a ring.
const maxPart = 32 << 10

// CloseWrite tells the peer that no more bytes follow those written.
func (c *Conn) CloseWrite() { c.tell(orderCloseWrite) }

// Close ends the connection in order: the peer gets all that was written. What it sends from now on
// is refused. Closed follows, or Lost.
func (c *Conn) Close() { c.tell(orderClose) }

// Reset ends the connection at once. Closed follows.
func (c *Conn) Reset() { c.tell(orderReset) }

func (c *Conn) tell(k handover.Kind) {
	c.s.post(&handover.Header{Kind: k, Flow: c.Function, A: c.id}, nil)
}
