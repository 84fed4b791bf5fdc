package cm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/falcon-vnic/vnic/internal/timer"
)

// Manager holds the connections of one NIC. See the package comment for its
// ownership.
type Manager struct {
	cfg      Config
	res      Resources
	rand     io.Reader
	instance uint64
	lastID   uint32

	peers     map[HostID]*peer
	self      *peer                 // this NIC, for connections between its own functions
	local     map[endpointKey]seat  // our functions
	endpoints []Endpoint            // the same, in order
	routes    map[endpointKey]route // those of the peers

	ports      []Port                // ours
	portOwners map[endpointKey]*peer // of the peers' ports

	conns     map[uint32]*conn
	passive   map[passiveKey]*conn
	listeners map[listenKey]struct{}
	functions map[uint32]*usage
	timers    timer.Wheel[*conn]
	rekeyAt   Time // askAgain

	out   []Output
	read  int // outputs already read
	stats Stats
}

type passiveKey struct {
	host HostID
	id   uint32 // the peer's
}

type listenKey struct {
	function uint32
	service  uint64
}

// New returns a Manager without peers up and without functions. rand must be a
// source fit for keys; in tests it is a seeded one.
func New(cfg Config, res Resources, rand io.Reader) (*Manager, error) {
	cfg = cfg.defaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	m := &Manager{
		cfg: cfg, res: res, rand: rand,
		peers:      make(map[HostID]*peer),
		local:      make(map[endpointKey]seat),
		routes:     make(map[endpointKey]route),
		portOwners: make(map[endpointKey]*peer),
		conns:      make(map[uint32]*conn),
		passive:    make(map[passiveKey]*conn),
		listeners:  make(map[listenKey]struct{}),
		functions:  make(map[uint32]*usage),
		rekeyAt:    math.MaxInt64,
	}
	for _, p := range cfg.Peers {
		m.peers[p.Host] = newPeer(p, cfg.MaxPerPeer)
	}
	m.self = newPeer(Peer{Host: cfg.Host}, cfg.MaxPerPeer)
	m.self.up, m.self.ready = true, true
	var r [12]byte
	if err := m.random(r[:]); err != nil {
		return nil, err
	}
	m.instance = binary.BigEndian.Uint64(r[:]) | 1 // never 0
	m.lastID = binary.BigEndian.Uint32(r[8:])
	return m, nil
}

func (m *Manager) random(b []byte) error {
	if _, err := io.ReadFull(m.rand, b); err != nil {
		return fmt.Errorf("cm: reading random bytes: %w", err)
	}
	return nil
}

// Listen makes a function accept requests for a service. Each request becomes
// an OutRequest.
func (m *Manager) Listen(fn uint32, service uint64) error {
	k := listenKey{fn, service}
	if _, used := m.listeners[k]; used {
		return fmt.Errorf("cm: function %#06x, service %#x: %w", fn, service, ErrInUse)
	}
	u := m.usage(fn)
	if u.listeners >= m.cfg.MaxListeners {
		return fmt.Errorf("cm: function %#06x listens on %d services: %w", fn, u.listeners, ErrLimit)
	}
	u.listeners++
	m.listeners[k] = struct{}{}
	return nil
}

// Unlisten undoes Listen. Requests already given out stay.
func (m *Manager) Unlisten(fn uint32, service uint64) error {
	k := listenKey{fn, service}
	if _, ok := m.listeners[k]; !ok {
		return fmt.Errorf("cm: function %#06x does not listen on service %#x: %w", fn, service, ErrNotFound)
	}
	delete(m.listeners, k)
	u := m.usage(fn)
	u.listeners--
	m.tidy(fn, u)
	return nil
}

// Connect asks the NIC that offers DGID, which may be this one, for a connection
// and returns its ID. The outcome follows as outputs. Errors: ErrInvalid,
// ErrNotLocal, ErrNoRoute, ErrPeerDown, ErrLimit, and those of Resources.
func (m *Manager) Connect(now Time, r ConnectRequest) (uint32, error) {
	if r.MTU == 0 {
		r.MTU = m.cfg.MTU
	}
	switch {
	case len(r.Private) > MaxPrivate:
		return 0, fmt.Errorf("cm: %d bytes of private data, at most %d: %w", len(r.Private), MaxPrivate, ErrInvalid)
	case r.QPN > max24:
		return 0, fmt.Errorf("cm: QPN %#x does not fit 24 bits: %w", r.QPN, ErrInvalid)
	case r.MTU < MinMTU:
		return 0, fmt.Errorf("cm: MTU %d, at least %d: %w", r.MTU, MinMTU, ErrInvalid)
	}
	from, ok := m.local[endpointKey{r.Tenant, r.SGID}]
	if !ok || from.function != r.Function {
		return 0, fmt.Errorf("cm: source GID %s, tenant %d, function %#06x: %w", gidString(r.SGID), r.Tenant, r.Function, ErrNotLocal)
	}
	to := endpointKey{r.Tenant, r.DGID}
	rt, ok := m.routes[to]
	if at, local := m.local[to]; local {
		rt, ok = route{m.self, at}, true
	}
	if !ok {
		return 0, fmt.Errorf("cm: destination %v: %w", to, ErrNoRoute)
	}
	p := rt.peer
	if !p.ready {
		return 0, fmt.Errorf("cm: destination %v on host %d: %w", to, p.Host, ErrPeerDown)
	}
	if err := m.room(now, r.Function); err != nil {
		return 0, err
	}

	c := &conn{peer: p, par: Params{
		Function: r.Function, Tenant: r.Tenant, QPN: r.QPN, Peer: p.Host, PeerFunction: rt.function,
		Shard: from.shard, PeerShard: rt.shard, LocalGID: r.SGID, PeerGID: r.DGID, MTU: min(r.MTU, m.cfg.MTU), Ordered: r.Ordered, IRD: r.IRD, Active: true,
		CompleteInError: r.CompleteInError,
	}}
	offer, err := m.offer(now, c)
	if err != nil {
		return 0, err
	}
	m.add(now, c)
	req := REQ{
		SenderID: c.id, Service: r.Service, Tenant: r.Tenant, Function: r.Function, PeerFunction: rt.function,
		SGID: r.SGID, DGID: r.DGID, QPN: r.QPN, Offer: offer, Private: r.Private,
	}
	c.msg = req.Append(nil)
	m.send(p, c.msg)
	m.enter(now, c, StateReqSent)
	return c.id, nil
}

// owned finds a connection its function may still act on.
func (m *Manager) owned(fn, id uint32) (*conn, error) {
	c := m.conns[id]
	if c == nil || c.par.Function != fn || !c.state.owned() {
		return nil, fmt.Errorf("cm: function %#06x, connection %d: %w", fn, id, ErrNotFound)
	}
	return c, nil
}

// Accept answers an OutRequest with a queue pair of the function. On error the
// request stays and can be accepted again or rejected.
func (m *Manager) Accept(now Time, fn, id, qpn uint32, ird uint8, private []byte) error {
	c, err := m.owned(fn, id)
	switch {
	case err != nil:
		return err
	case c.state != StateReqReceived:
		return fmt.Errorf("cm: accept of connection %d in state %v: %w", id, c.state, ErrState)
	case qpn > max24:
		return fmt.Errorf("cm: QPN %#x does not fit 24 bits: %w", qpn, ErrInvalid)
	case len(private) > MaxPrivate:
		return fmt.Errorf("cm: %d bytes of private data, at most %d: %w", len(private), MaxPrivate, ErrInvalid)
	}
	c.par.IRD = ird
	offer, err := m.offer(now, c)
	if err != nil {
		return err
	}
	c.par.QPN = qpn
	rep := REP{SenderID: c.id, ReceiverID: c.remoteID, QPN: qpn, Offer: offer, Private: private}
	c.msg = rep.Append(nil)
	return m.fire(now, c, evAccept, args{})
}

// Reject answers an OutRequest with the listener's own reason. Nothing more is
// heard of the connection.
func (m *Manager) Reject(now Time, fn, id, reason uint32, private []byte) error {
	c, err := m.owned(fn, id)
	switch {
	case err != nil:
		return err
	case c.state != StateReqReceived:
		return fmt.Errorf("cm: reject of connection %d in state %v: %w", id, c.state, ErrState)
	case len(private) > MaxPrivate:
		return fmt.Errorf("cm: %d bytes of private data, at most %d: %w", len(private), MaxPrivate, ErrInvalid)
	}
	return m.fire(now, c, evReject, args{tell: ReasonConsumer, consumer: reason, private: private})
}

// Disconnect ends a connection in any state its function knows. OutDisconnected
// with ReasonLocal follows at once; the peer's answer is not waited for.
func (m *Manager) Disconnect(now Time, fn, id uint32) error {
	c, err := m.owned(fn, id)
	if err != nil {
		return err
	}
	tell := ReasonDisconnect
	switch c.state {
	case StateReqSent:
		tell = ReasonCanceled
	case StateReqReceived:
		tell = ReasonConsumer
	}
	return m.end(now, c, evDisconnect, args{reason: ReasonLocal, tell: tell})
}

// FunctionGone ends all a function has: its listeners and its connections. Of
// these only OutClose is emitted.
func (m *Manager) FunctionGone(now Time, fn uint32) {
	for k := range m.listeners {
		if k.function == fn {
			delete(m.listeners, k)
		}
	}
	u := m.usage(fn)
	u.listeners = 0
	for _, c := range m.sorted(func(c *conn) bool { return c.par.Function == fn }) {
		_ = m.end(now, c, evFunctionGone, args{tell: ReasonFunctionGone})
	}
	m.tidy(fn, u)
}

// end fires an event that may have to be told to a peer. If its link is down it
// learns of it when the link is back.
func (m *Manager) end(now Time, c *conn, ev event, a args) error {
	err := m.fire(now, c, ev, a)
	if !c.peer.up && c.state != StateClosed {
		_ = m.fire(now, c, evPeerDown, args{reason: ReasonPeerDown})
	}
	return err
}

// sorted returns the connections that match, in the order of their IDs, so that
// a run can be replayed.
func (m *Manager) sorted(match func(*conn) bool) []*conn {
	var s []*conn
	for _, c := range m.conns {
		if match(c) {
			s = append(s, c)
		}
	}
	slices.SortFunc(s, func(a, b *conn) int { return int(int64(a.id) - int64(b.id)) })
	return s
}

// Advance runs the timers that are due.
func (m *Manager) Advance(now Time) {
	for c, _, ok := m.timers.Expire(now); ok; c, _, ok = m.timers.Expire(now) {
		ev := m.expired(c)
		if ev == evGiveUp && c.state != StateTimeWait {
			m.stats.Timeouts++
		}
		_ = m.fire(now, c, ev, args{reason: ReasonTimeout, tell: ReasonTimeout})
	}
	if m.rekeyAt <= now {
		m.askAgain(now)
	}
}

// Deadline is when Advance is due next, math.MaxInt64 if it is not.
func (m *Manager) Deadline() Time { return min(m.timers.Deadline(), m.rekeyAt) }

// Next takes the oldest output. It returns false when there is none.
func (m *Manager) Next(o *Output) bool {
	if m.read == len(m.out) {
		return false
	}
	*o = m.out[m.read]
	m.out[m.read] = Output{}
	m.read++
	if m.read == len(m.out) {
		if cap(m.out) > 1024 {
			m.out = nil
		}
		m.out, m.read = m.out[:0], 0
	}
	return true
}

// gidString prints a GID as pairs of bytes; it stands in error texts only.
func gidString(g [16]byte) string {
	var b bytes.Buffer
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}
