package cm

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Manager manages the connections of one NIC. The package comment describes its ownership.
type Manager struct {
	cfg      Config
	out      outbox
	peers    *peers
	dir      *directory
	ports    *portBook
	held     []Address // of functions that are not reachable at them
	keys     *rekeying
	services *services
	conns    *table
	shake    *handshake
	expiring *conn // whose timer Advance handles
}

// New returns a Manager without functions, whose peers are down. rand must be suitable for keys;
// tests use a seeded source.
func New(cfg Config, res Resources, rand io.Reader) (*Manager, error) {
	cfg = cfg.defaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	var r [12]byte
	if err := random(rand, r[:]); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, peers: newPeers(&cfg), services: newServices(&cfg), conns: newTable(&cfg, res, binary.BigEndian.Uint32(r[8:]))}
	m.dir = newDirectory(m.peers, &m.out, binary.BigEndian.Uint64(r[:])|1) // never 0
	m.ports = newPortBook(m.peers, &m.out)
	m.keys = newRekeying(&cfg, m.peers, &m.out)
	m.shake = &handshake{cfg: &m.cfg, res: res, rand: rand, out: &m.out, peers: m.peers, keys: m.keys, conns: m.conns}
	return m, nil
}

// Listen makes a function accept requests for a service. Each request becomes an OutRequest.
func (m *Manager) Listen(fn uint32, service uint64) error { return m.services.listen(fn, service) }

// Unlisten undoes Listen. Requests that were already passed on stay.
func (m *Manager) Unlisten(fn uint32, service uint64) error { return m.services.unlisten(fn, service) }

// Connect requests a connection from the NIC that offers DGID, which may be this one, and returns
// its ID. Outputs report the result. Errors: ErrInvalid, ErrNotLocal, ErrNoRoute, ErrPeerDown,
// ErrLimit, and those of Resources.
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
	from, ok := m.dir.local[Address{r.Tenant, r.SGID}]
	if !ok || from.function != r.Function {
		return 0, fmt.Errorf("cm: source GID %s, tenant %d, function %#06x: %w", gidString(r.SGID), r.Tenant, r.Function, ErrNotLocal)
	}
	to := Address{r.Tenant, r.DGID}
	p, at, ok := m.dir.find(to)
	if !ok {
		return 0, fmt.Errorf("cm: destination %v: %w", to, ErrNoRoute)
	}
	if !p.ready {
		return 0, fmt.Errorf("cm: destination %v on host %d: %w", to, p.Host, ErrPeerDown)
	}
	if err := m.shake.room(now, r.Function); err != nil {
		return 0, err
	}

	c := &conn{peer: p, par: Params{
		Function: r.Function, Tenant: r.Tenant, QPN: r.QPN, Peer: p.Host, PeerFunction: at.function,
		Shard: from.shard, PeerShard: at.shard, LocalGID: r.SGID, PeerGID: r.DGID, MTU: min(r.MTU, p.mtu), Ordered: r.Ordered, IRD: r.IRD, Active: true,
		CompleteInError: r.CompleteInError,
	}}
	offer, err := m.shake.offer(now, c)
	if err != nil {
		return 0, err
	}
	m.conns.add(now, c)
	req := REQ{
		SenderID: c.id, Service: r.Service, Tenant: r.Tenant, Function: r.Function, PeerFunction: at.function,
		SGID: r.SGID, DGID: r.DGID, QPN: r.QPN, Offer: offer, Private: r.Private,
	}
	c.msg = req.Append(nil)
	m.out.send(p, c.msg)
	m.shake.enter(now, c, StateReqSent)
	return c.id, nil
}

// Accept answers an OutRequest with a queue pair of the function. On error the request stays, and
// can be accepted again or rejected.
func (m *Manager) Accept(now Time, fn, id, qpn uint32, ird uint8, private []byte) error {
	c, err := m.conns.owned(fn, id)
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
	offer, err := m.shake.offer(now, c)
	if err != nil {
		return err
	}
	c.par.QPN = qpn
	rep := REP{SenderID: c.id, ReceiverID: c.remoteID, QPN: qpn, Offer: offer, Private: private}
	c.msg = rep.Append(nil)
	return m.shake.fire(now, c, evAccept, args{})
}

// Reject answers an OutRequest with the listener's own reason. No further output follows for the
// connection.
func (m *Manager) Reject(now Time, fn, id, reason uint32, private []byte) error {
	c, err := m.conns.owned(fn, id)
	switch {
	case err != nil:
		return err
	case c.state != StateReqReceived:
		return fmt.Errorf("cm: reject of connection %d in state %v: %w", id, c.state, ErrState)
	case len(private) > MaxPrivate:
		return fmt.Errorf("cm: %d bytes of private data, at most %d: %w", len(private), MaxPrivate, ErrInvalid)
	}
	return m.shake.fire(now, c, evReject, args{tell: ReasonConsumer, consumer: reason, private: private})
}

// Disconnect ends a connection in any state in which its function still owns it. OutDisconnected
// with ReasonLocal follows at once, without waiting for the peer's answer.
func (m *Manager) Disconnect(now Time, fn, id uint32) error {
	c, err := m.conns.owned(fn, id)
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
	return m.shake.end(now, c, evDisconnect, args{reason: ReasonLocal, tell: tell})
}

// FunctionGone ends a function's listeners and connections. For these only OutClose is emitted.
func (m *Manager) FunctionGone(now Time, fn uint32) {
	m.services.forget(fn)
	for _, c := range m.conns.of(fn) {
		_ = m.shake.end(now, c, evFunctionGone, args{tell: ReasonFunctionGone})
	}
}

// Advance runs the timers that are due.
func (m *Manager) Advance(now Time) {
	for c, _, ok := m.conns.timers.Expire(now); ok; c, _, ok = m.conns.timers.Expire(now) {
		m.expiring = c
		ev := m.shake.expired(c)
		if ev == evGiveUp && c.state != StateTimeWait {
			m.out.stats.Timeouts++
		}
		_ = m.shake.fire(now, c, ev, args{reason: ReasonTimeout, tell: ReasonTimeout})
	}
	m.expiring = nil
	if m.keys.at <= now {
		m.keys.askAgain(now)
	}
}

// Expiring returns the peer of the connection that Advance handles, for the caller that survives a
// panic in it; false: it handles none.
func (m *Manager) Expiring() (HostID, bool) {
	if m.expiring == nil {
		return 0, false
	}
	return m.expiring.peer.Host, true
}

// Deadline returns when Advance must next be called; math.MaxInt64 means never.
func (m *Manager) Deadline() Time { return min(m.conns.timers.Deadline(), m.keys.at) }

// Next removes and returns the oldest output. It returns false when there is none.
func (m *Manager) Next(o *Output) bool { return m.out.next(o) }
