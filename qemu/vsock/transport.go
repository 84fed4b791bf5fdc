package vsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/falcon-vnic/vnic/internal/list"
)

// Link sends packets to the peer: it is the peer's receive ring. Its methods are called with the
// Transport's lock held. They must not block or call the Transport.
type Link interface {
	// Room returns the largest size of the next packet, or 0 if there is no buffer.
	Room() int
	// Put sends one packet of at most Room bytes.
	Put(pkt []byte)
	// Flush notifies the peer of all packets since the last Flush.
	Flush()
}

// Stats counts packets and errors of a Transport.
type Stats struct {
	PacketsIn, PacketsOut uint64
	BytesIn, BytesOut     uint64 // payload
	Malformed             uint64 // too short, or a length that does not match
	ForeignCID            uint64 // a source or destination that is not this pair: spoofed or misrouted
	BadType               uint64 // not a stream
	UnknownFlow           uint64 // answered with RST
	Refused               uint64 // connection requests without listener or beyond a limit
	CreditViolations      uint64 // flows reset because the peer sent more than allowed
	RepliesDropped        uint64 // resets dropped because too many waited
}

// Transport is one end of all flows between two context IDs.
type Transport struct {
	local, peer uint32

	mu        sync.Mutex
	link      Link
	flows     map[flowKey]*Conn
	listeners map[uint32]*Listener
	ready     list.List[Conn] // flows with something to send
	replies   []Header        // resets for unknown flows
	ledger    *Ledger         // nil: none
	nextPort  uint32
	closed    bool
	stats     Stats
	scratch   []byte
}

// NewTransport returns the end at context ID local of the flows to context ID peer, without a link.
func NewTransport(local, peer uint32) *Transport {
	return &Transport{
		local: local, peer: peer,
		flows:     make(map[flowKey]*Conn),
		listeners: make(map[uint32]*Listener),
		nextPort:  firstPort,
		scratch:   make([]byte, 0, HeaderSize+maxPayload),
	}
}

// UseLedger makes the transport record its flows in l. Whenever a link is set, the transport resets
// the flows in l that are not its own: those of an earlier transport, and those that its Reset or
// Close ended. UseLedger must be called before any other method.
func (t *Transport) UseLedger(l *Ledger) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ledger = l
}

// Stats returns the counters.
func (t *Transport) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// SetLink sets the link to the peer and sends waiting packets. With a nil link packets keep
// waiting. After SetLink returns, the old link is not used any more.
func (t *Transport) SetLink(l Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.link = l
	if l != nil {
		t.resetLeft()
	}
	t.pump()
}

// resetLeft queues a reset for each flow in the ledger that is not the transport's own. The flow stays
// in the ledger until the reset is sent.
func (t *Transport) resetLeft() {
	if t.ledger == nil {
		return
	}
	t.ledger.load()
	for k := range t.ledger.slot {
		if t.flows[k] == nil {
			t.queueReset(k, TypeStream)
		}
	}
}

// Locked calls f with the transport's lock held: meanwhile no packet is sent to the peer.
func (t *Transport) Locked(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// Pump sends waiting packets. It must be called when the link has room again.
func (t *Transport) Pump() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pump()
}

// Reset ends every flow with ECONNRESET. It does not tell the peer, which has lost its state (for
// example by a reboot). If only the link to it is lost, the ledger still has the flows.
func (t *Transport) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.resetAll()
}

func (t *Transport) resetAll() {
	t.replies = nil
	t.ledger.forget()
	for _, l := range t.listeners {
		l.backlog = nil // flows from before the reset must not be accepted
	}
	for _, c := range t.flows {
		c.fail(syscall.ECONNRESET)
	}
}

// Close ends every flow and listener.
func (t *Transport) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	for _, l := range t.listeners {
		l.close()
	}
	t.resetAll()
	t.link = nil
}

// Dial opens a flow to a port of the peer. It gives up after timeout.
func (t *Transport) Dial(port uint32, timeout time.Duration) (*Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fail := func(err error) (*Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "vsock", Addr: Addr{t.peer, port}, Err: err}
	}
	if t.closed {
		return fail(net.ErrClosed)
	}
	if len(t.flows) >= maxFlows {
		return fail(fmt.Errorf("more than %d flows", maxFlows))
	}
	key := flowKey{remote: port}
	for {
		key.local = t.nextPort
		if t.nextPort++; t.nextPort == endPort {
			t.nextPort = firstPort
		}
		if t.flows[key] == nil && !t.ledger.has(key) {
			break
		}
	}
	c := t.newConn(key)
	c.connecting = true
	c.send(pendRequest)
	t.pump()
	c.wdl.set(&c.wcond, time.Now().Add(timeout))
	for c.connecting && c.err == nil && !c.wdl.passed() {
		c.wcond.Wait()
	}
	c.wdl.set(&c.wcond, time.Time{})
	switch {
	case c.err != nil:
		if errors.Is(c.err, syscall.ECONNRESET) {
			return fail(syscall.ECONNREFUSED)
		}
		return fail(c.err)
	case c.connecting:
		c.abort(syscall.ETIMEDOUT)
		return fail(os.ErrDeadlineExceeded)
	}
	return c, nil
}

// Input handles one packet from the peer. It never blocks.
func (t *Transport) Input(pkt []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.input(pkt)
	t.pump()
}

func (t *Transport) input(pkt []byte) {
	h, err := ParseHeader(pkt)
	if err != nil || uint64(h.Len) > uint64(len(pkt)-HeaderSize) {
		t.stats.Malformed++
		return
	}
	payload := pkt[HeaderSize : HeaderSize+int(h.Len)]
	t.stats.PacketsIn++
	t.stats.BytesIn += uint64(len(payload))
	switch {
	case h.SrcCID != uint64(t.peer) || h.DstCID != uint64(t.local):
		t.stats.ForeignCID++
		return
	case h.Type != TypeStream:
		t.stats.BadType++
		t.reply(&h)
		return
	}
	c := t.flows[flowKey{local: h.DstPort, remote: h.SrcPort}]
	switch {
	case c != nil:
		c.input(&h, payload)
	case h.Op == OpRequest:
		t.request(&h)
	case h.Op != OpReset:
		t.stats.UnknownFlow++
		t.reply(&h)
	}
}

// request opens a flow for a listener, or refuses it.
func (t *Transport) request(h *Header) {
	l := t.listeners[h.DstPort]
	if l == nil || len(l.backlog) >= maxBacklog || len(t.flows) >= maxFlows {
		t.stats.Refused++
		t.reply(h)
		return
	}
	c := t.newConn(flowKey{local: h.DstPort, remote: h.SrcPort})
	c.credit(h)
	c.send(pendResponse)
	l.backlog = append(l.backlog, c)
	l.cond.Signal()
}

// reply queues a reset for a packet that belongs to no flow, Virtio §5.10.6.4. The queue is
// bounded; a peer that gets no reset runs into its own timeout.
func (t *Transport) reply(h *Header) {
	if h.Op != OpReset {
		t.queueReset(flowKey{local: h.DstPort, remote: h.SrcPort}, h.Type)
	}
}

func (t *Transport) queueReset(k flowKey, typ Type) {
	if len(t.replies) >= maxReplies {
		t.stats.RepliesDropped++
		return
	}
	t.replies = append(t.replies, Header{
		SrcCID: uint64(t.local), DstCID: uint64(t.peer), SrcPort: k.local, DstPort: k.remote, Type: typ, Op: OpReset,
	})
}

// pump sends packets while the link has room: resets first, then one packet of each flow in turn.
func (t *Transport) pump() {
	if t.link == nil {
		return
	}
	sent := false
	for len(t.replies) > 0 || !t.ready.Empty() {
		room := t.link.Room()
		if room <= HeaderSize {
			break
		}
		pkt, key := t.scratch[:0], flowKey{}
		if len(t.replies) > 0 {
			h := t.replies[0]
			pkt, key = h.Append(pkt), flowKey{local: h.SrcPort, remote: h.DstPort}
			t.replies = t.replies[1:]
		} else {
			c := t.ready.First()
			key = c.key
			c.ready.Remove()
			pkt = c.next(pkt, min(room-HeaderSize, maxPayload))
			if c.pending() {
				t.ready.PushBack(&c.ready, c)
			}
			if len(pkt) == 0 {
				continue
			}
		}
		t.stats.PacketsOut++
		t.stats.BytesOut += uint64(len(pkt) - HeaderSize)
		t.link.Put(pkt)
		if t.flows[key] == nil { // this was the flow's reset; if the process is killed before, the next one sends it
			t.ledger.remove(key)
		}
		sent = true
	}
	if sent {
		t.link.Flush()
	}
}

// Limits of one Transport. They are constants of this implementation, not settings: a peer sees
// bufAlloc as the credit of a flow.
const (
	bufAlloc     = 256 << 10       // receive buffer per flow, as in Linux
	sendBuf      = 64 << 10        // send buffer per flow
	maxPayload   = 64 << 10        // largest payload of a packet that is sent
	maxFlows     = 256             // per peer, including closing ones
	maxBacklog   = 64              // connections waiting for Accept per listener
	maxReplies   = 256             // resets waiting for room in the link
	closeTimeout = 8 * time.Second // how long a closed flow waits for its peer, as in Linux
)

// Local ports for flows that this end opens. They are used in ascending order, and are far from the
// ports that services listen on.
const (
	firstPort = 1 << 30
	endPort   = 1 << 31 // the first port behind the range
)

// Listener accepts the flows that the peer opens to one port. It implements net.Listener.
type Listener struct {
	t       *Transport
	addr    Addr
	cond    sync.Cond
	backlog []*Conn
	closed  bool
}

// Listen accepts flows to a local port.
func (t *Transport) Listen(port uint32) (*Listener, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	if t.listeners[port] != nil {
		return nil, fmt.Errorf("vsock port %d: %w", port, syscall.EADDRINUSE)
	}
	l := &Listener{t: t, addr: Addr{t.local, port}}
	l.cond.L = &t.mu
	t.listeners[port] = l
	return l, nil
}

// Accept returns the next flow as a net.Conn.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptConn returns the next flow. After Close it returns net.ErrClosed. It also returns a flow
// that the peer has reset since; reading that flow fails.
func (l *Listener) AcceptConn() (*Conn, error) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	for len(l.backlog) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	c := l.backlog[0]
	l.backlog[0] = nil
	l.backlog = l.backlog[1:]
	return c, nil
}

// Addr returns the local address.
func (l *Listener) Addr() net.Addr { return l.addr }

// Close stops accepting and resets the flows that were not accepted.
func (l *Listener) Close() error {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.close()
	l.t.pump()
	return nil
}

func (l *Listener) close() {
	if l.closed {
		return
	}
	l.closed = true
	delete(l.t.listeners, l.addr.Port)
	for _, c := range l.backlog {
		c.abort(net.ErrClosed)
	}
	l.backlog = nil
	l.cond.Broadcast()
}
