package tcp

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/falcon-vnic/vnic/internal/ring"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Config is the configuration of a Stack.
type Config struct {
	Wake   func() // is called when there is something for Next or Transmit, by any goroutine
	Limits Limits

	Tape *tape.Tape              // nil: none
	Head func(packet []byte) int // length of a packet's headers, for Tape
	Cut  func() Cutter           // returns what finds the payload in what peers send, for Tape
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

// Times of connections.
const (
	lingerTime = 5 * time.Second  // in TIME_WAIT, and in FIN_WAIT_2 after Close
	giveUp     = 30 * time.Second // without an answer to what was sent

	// leastRTO is longer than the 40 ms for which Linux's TCP delays an acknowledgement. gVisor's own 200 ms
	// would often pass in full: it takes a packet that stands for several segments for lost only when all
	// segments of a later one were acknowledged.
	leastRTO = 50 * time.Millisecond
)

// Stack is a shard's TCP.
type Stack struct {
	limits Limits
	wake   func()
	counts counts

	net       *stack.Stack
	clock     *clock // of net
	faults    int    // netstacks that were given up
	functions map[uint32]*function
	streams   map[*stream]struct{}
	leaveAt   vtime.Time // when streams that are over may be gone

	arrived arrivals
	held    held
	writers []*stream // for which bytes were written since the last Flush
	spare   [][]byte  // buffers for them
	event   Event     // the last one; Kind is 0 if it was released
	serving []served  // taken of dirty, which Next has not served yet

	mu    sync.Mutex // a goroutine of gVisor's may mark, too
	dirty []served   // to be served

	departing departing

	tape   *tape.Tape
	plays  bool // tape does: there is no netstack
	head   func([]byte) int
	cut    func() Cutter
	number uint32           // of the connection that the tape knew last
	conns  map[uint32]*Conn // by these numbers, if the tape plays
}

// served is a source of events for Next: a stream, a listener or a fault.
type served interface {
	// serve returns the next event, and whether there is one. It is called until there is none.
	serve() (Event, bool)
	mark() *bool // whether it is in dirty; guarded by Stack.mu
}

// counts are Stats for any goroutine.
type counts struct{ conns, departingFull, wrong atomic.Uint64 }

// New starts a TCP without functions.
func New(cfg Config) *Stack {
	silence()
	s := &Stack{
		limits: cfg.Limits.withDefaults(), wake: cfg.Wake, functions: map[uint32]*function{}, streams: map[*stream]struct{}{},
		leaveAt: vtime.Never, tape: cfg.Tape, plays: cfg.Tape.Plays(), head: cfg.Head, cut: cfg.Cut,
	}
	s.departing.functions = map[uint32]int{}
	if s.plays {
		s.clock, s.conns = &clock{}, map[uint32]*Conn{}
	} else {
		s.begin(0)
	}
	return s
}

// begin makes a netstack without functions.
func (s *Stack) begin(now vtime.Time) {
	s.clock = &clock{now: now}
	s.net = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol}, // Reno: see doc.go
		Clock:              s.clock,
	})
	buffer := s.limits.Buffer
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: buffer, Max: buffer}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 2 * buffer, Max: 2 * buffer} // gVisor offers half of it as window
	again := tcpip.TCPMinRTOOption(leastRTO)
	grow, linger, wait := tcpip.TCPModerateReceiveBufferOption(false), tcpip.TCPLingerTimeoutOption(lingerTime), tcpip.TCPTimeWaitTimeoutOption(lingerTime)
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &receive, &grow, &linger, &wait, &again} {
		if err := s.net.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			panic(fmt.Sprintf("tcp: netstack refuses %T: %s", o, err))
		}
	}
}

// silence switches gVisor's log off, in which peers could write.
var silence = sync.OnceFunc(func() { log.SetTarget(silent{}) })

type silent struct{}

// Emit implements log.Emitter.
func (silent) Emit(int, log.Level, time.Time, string, ...any) {}

// Close resets all connections and ends all goroutines.
func (s *Stack) Close() {
	for _, f := range s.functions {
		f.remove()
	}
	if !s.plays {
		s.net.Destroy()
	}
	s.departing.drop()
}

// Add gives a function its address. mtu is the longest IP packet that its network carries.
func (s *Stack) Add(function uint32, addr netip.Addr, mtu int) {
	s.guarded(func() {
		if f := s.functions[function]; f != nil {
			f.remove()
		}
		s.add(function, addr, mtu)
	})
}

// Remove takes a function out: its connections are reset and its listeners end, without further
// events.
func (s *Stack) Remove(function uint32) {
	s.guarded(func() {
		if f := s.functions[function]; f != nil {
			f.remove()
		}
	})
}

// Listen lets peers call a function at a port. Unlistened follows if that is not possible.
func (s *Stack) Listen(function uint32, port uint16) {
	s.told(tellListen, int(function), int(port))
	s.guarded(func() { s.listen(s.functions[function], function, port) })
}

// Unlisten ends that. Connections that were not announced as Incoming are reset.
func (s *Stack) Unlisten(function uint32, port uint16) {
	s.told(tellUnlisten, int(function), int(port))
	s.guarded(func() {
		if f := s.functions[function]; f != nil && f.listeners[port] != nil {
			f.listeners[port].end()
		}
	})
}

// Connect calls a peer from a local port; 0: any. Connected or Lost follows.
func (s *Stack) Connect(function uint32, from uint16, to netip.AddrPort) *Conn {
	st := s.newStream(function)
	st.conn.Peer = to
	s.enroll(st.conn)
	s.told(tellConnect, int(function), int(to.Port()))
	s.guarded(func() { st.connect(s.functions[function], from, to) })
	return st.conn
}

// Step runs TCP: the packets that arrived, and its timers. The shard calls it before Next.
//
// A shard that had to wait for its processor finds acknowledgements as well as timers that are due. The timers come
// last: gVisor would send again what is acknowledged already, and take that for a loss.
func (s *Stack) Step(now vtime.Time) {
	s.clock.set(now)
	s.takeArrived()
	for f := s.clock.next(); f != nil; f = s.clock.next() {
		s.guarded(f)
	}
	if now >= s.leaveAt {
		s.guarded(s.expire)
	}
}

// Flush sends what was written since the last call.
func (s *Stack) Flush() {
	for _, st := range s.writers {
		s.guarded(st.flush)
	}
	clear(s.writers)
	s.writers = s.writers[:0]
}

// Waiting reports whether Next or Transmit may have something, or packets that arrived wait for Step.
func (s *Stack) Waiting() bool {
	return len(s.serving) > 0 || len(s.arrived.list) > 0 || s.departing.waiting() || s.marked()
}

// Deadline returns when Step has something to do.
func (s *Stack) Deadline() vtime.Time { return min(s.clock.deadline(), s.leaveAt) }

// Stats counts what a Stack has and has lost.
type Stats struct {
	Conns         uint64 // connections, those in TIME_WAIT too
	DepartingFull uint64 // packets to be sent that found no room
	Wrong         uint64 // packets that arrived and are no whole TCP segment for the function, or have a wrong checksum
}

// Stats returns the counters. Any goroutine may call it.
func (s *Stack) Stats() Stats {
	c := &s.counts
	return Stats{Conns: c.conns.Load(), DepartingFull: c.departingFull.Load(), Wrong: c.wrong.Load()}
}

// EventKind says what happened.
type EventKind uint8

// Kinds of events.
const (
	Connected    EventKind = iota + 1 // a peer has answered
	Incoming                          // a peer has called
	Data                              // Conn.In has got more
	Acknowledged                      // Conn.Acknowledged and Conn.Room have grown
	PeerClosed                        // the peer sends no more
	Lost                              // the connection is over; Why says why
	Closed                            // the connection is over, as the shard asked
	Unlistened                        // Listen failed; Why says why
	Fault                             // TCP had a fault, which Why describes; all connections will be Lost
)

// Refused is Event.Why if nobody listens at the port that was called.
var Refused = (&tcpip.ErrConnectionRefused{}).String()

// Event is something that happened.
type Event struct {
	Kind     EventKind
	Function uint32
	Conn     *Conn  // nil for Unlistened and Fault; not to be used after Lost and Closed
	Port     uint16 // of Incoming and Unlistened
	Why      string
}

// Next returns the next event; false if there is none.
func (s *Stack) Next() (ev Event, ok bool) {
	s.release()
	if !s.plays {
		ev = s.next()
	}
	if s.tape.Active() {
		s.passEvent(&ev)
	}
	s.event = ev
	return ev, ev.Kind != 0
}

// next returns the next event of gVisor's; Kind is 0 if there is none.
func (s *Stack) next() (ev Event) {
	for ok := false; ; {
		if len(s.serving) == 0 && !s.takeDirty() {
			return Event{}
		}
		d := s.serving[0]
		s.guarded(func() { ev, ok = d.serve() })
		if ok {
			return ev
		}
		if len(s.serving) > 0 && s.serving[0] == d { // else a fault came
			s.serving = s.serving[1:]
		}
	}
}

// release ends the use of what Next lent. What the shard left of it is kept.
func (s *Stack) release() {
	if c := s.event.Conn; s.event.Kind == Data && !c.kept && len(c.in) > 0 {
		c.in, c.kept = slices.Clone(c.in), true
	}
	s.event = Event{}
}

// takeDirty begins to serve what is to be served, and reports whether that is anything.
func (s *Stack) takeDirty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = append(s.serving[:0], s.dirty...)
	clear(s.dirty)
	s.dirty = s.dirty[:0]
	for _, d := range s.serving {
		*d.mark() = false
	}
	return len(s.serving) > 0
}

func (s *Stack) marked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dirty) > 0
}

// again has something served. gVisor calls it too, under its locks.
func (s *Stack) again(d served) {
	if s.plays {
		return
	}
	s.mu.Lock()
	marked := d.mark()
	first := len(s.dirty) == 0 && !*marked
	if !*marked {
		*marked = true
		s.dirty = append(s.dirty, d)
	}
	s.mu.Unlock()
	if first {
		s.wake()
	}
}

// Conn is a connection.
type Conn struct {
	Owner       any // the shard's
	Function    uint32
	Local, Peer netip.AddrPort // Local is not valid before Connected
	MSS         int            // bytes of a segment, from Connected or Incoming on

	st             *stream
	in             []byte // received and not taken
	kept           bool   // in is no longer what Next lent
	written, acked uint64

	number uint32 // on the tape
	cut    Cutter // of what the peer sends
}

// In returns the bytes that were received and not taken. They are valid until the next call of Next
// or Take.
func (c *Conn) In() []byte { return c.in }

// Take takes the first n bytes of In.
func (c *Conn) Take(n int) {
	if c.in = c.in[n:]; c.kept && len(c.in) == 0 {
		c.in, c.kept = nil, false
		c.st.s.again(c.st)
	}
}

// Room returns how many bytes may be written.
func (c *Conn) Room() int { return c.st.s.limits.Buffer - int(c.written-c.acked) }

// Acknowledged returns how many of the bytes written the peer's TCP has acknowledged.
func (c *Conn) Acknowledged() uint64 { return c.acked }

// Write sends bytes at the next Flush, as many as there is room for, and returns their number.
func (c *Conn) Write(b []byte) (n int) {
	b = b[:min(len(b), c.Room())]
	c.written += uint64(len(b))
	if !c.st.s.plays {
		c.st.write(b)
	}
	c.told(tellWrite, len(b))
	return len(b)
}

func (c *Conn) told(what, n int) { c.st.s.told(what, int(c.number), n) }

// CloseWrite tells the peer that no more bytes follow those written.
func (c *Conn) CloseWrite() {
	c.told(tellCloseWrite, 0)
	if st := c.st; st.last == 0 {
		st.shut = true
		st.s.again(st)
	}
}

// Close ends the connection in order: the peer gets all that was written. What it sends from now on
// is refused. Closed follows, or Lost.
func (c *Conn) Close() {
	c.told(tellClose, 0)
	if st := c.st; st.last == 0 {
		st.s.guarded(st.close)
	}
}

// Reset ends the connection at once. Closed follows.
func (c *Conn) Reset() {
	c.told(tellReset, 0)
	if st := c.st; st.last == 0 {
		st.s.guarded(st.reset)
	}
}

// departing holds the packets that functions send until the shard takes them. A function may use no more
// room than it leaves free; what finds no room is lost, as on a network.
type departing struct {
	mu        sync.Mutex // a goroutine of gVisor's may send, too
	list      ring.Queue[departure]
	bytes     int
	functions map[uint32]int // bytes of each
}

// departure is a packet that a function sends, and holds a reference to it.
type departure struct {
	pkt *stack.PacketBuffer
	Departure
}

// Departure describes a packet that a function sends.
type Departure struct {
	Function uint32
	Unsummed bool // TCP's checksum is that of the pseudo header alone, and is to be completed
	Segments int  // that the packet stands for
	Segment  int  // bytes of data of each of them but the last, if there are several
}

// maxDeparting bounds the bytes of packets that wait.
const maxDeparting = 1 << 20

// leastCost is the cost of the shortest packet, in bytes.
const leastCost = 1 << 10

func costOf(pkt *stack.PacketBuffer) int { return max(pkt.Size(), leastCost) }

func (d *departing) put(x departure) (first, ok bool) {
	n := costOf(x.pkt)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.functions[x.Function]+n > maxDeparting-d.bytes-n {
		return false, false
	}
	d.bytes += n
	d.functions[x.Function] += n
	x.pkt.IncRef()
	*d.list.Push() = x
	return d.list.Len() == 1, true
}

func (d *departing) take() (x departure, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.list.Len() == 0 {
		return x, false
	}
	first := d.list.Pop()
	x, *first = *first, departure{}
	n := costOf(x.pkt)
	d.bytes -= n
	if d.functions[x.Function] -= n; d.functions[x.Function] == 0 {
		delete(d.functions, x.Function)
	}
	return x, true
}

func (d *departing) waiting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.list.Len() > 0
}

func (d *departing) drop() {
	for x, ok := d.take(); ok; x, ok = d.take() {
		x.pkt.DecRef()
	}
}

// Transmit copies the next IP packet that a function sends to b; n is 0 if there is none.
func (s *Stack) Transmit(b []byte) (n int, d Departure) {
	if !s.plays {
		n, d = s.transmit(b)
	}
	if s.tape.Active() {
		n, d = s.passPacket(b, n, d)
	}
	return n, d
}

// transmit does what Transmit does, with a packet of gVisor's.
func (s *Stack) transmit(b []byte) (n int, d Departure) {
	x, ok := s.departing.take()
	if !ok {
		return 0, Departure{}
	}
	views, skip := x.pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		part := v.AsSlice()
		part = part[min(skip, len(part)):]
		skip -= min(skip, v.Size())
		n += copy(b[n:], part)
	}
	x.pkt.DecRef()
	return n, x.Departure
}
