package cm

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
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
	expiring *conn  // whose timer Advance handles
	forgets  uint64 // times that what was agreed with a peer was forgotten
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
		return 0, fmt.Errorf("cm: destination %v at NIC %s: %w", to, p.Name, ErrPeerDown)
	}
	if err := m.shake.room(now, r.Function); err != nil {
		return 0, err
	}

	c := &conn{peer: p, par: Params{
		Function: r.Function, Tenant: r.Tenant, QPN: r.QPN, Peer: p.ID, PeerName: p.Name, PeerFunction: at.function,
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
	c.msg = Encode(&req)
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
	c.msg = Encode(&rep)
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

// Expiring returns the peer of the connection that Advance handles, for a caller that recovers
// from a panic in it; false: it handles none.
func (m *Manager) Expiring() (PeerID, bool) {
	if m.expiring == nil {
		return 0, false
	}
	return m.expiring.peer.ID, true
}

// Deadline returns when Advance must next be called; math.MaxInt64 means never.
func (m *Manager) Deadline() Time { return min(m.conns.timers.Deadline(), m.keys.at) }

// Next removes and returns the oldest output. It returns false when there is none.
func (m *Manager) Next(o *Output) bool { return m.out.next(o) }

// SetEndpoints sets the functions of this NIC, replacing earlier ones, and informs the peers that
// are up. Errors: ErrInvalid for a function of another host or an address named twice, ErrLimit if
// more than MaxEndpoints would be offered to one peer; then nothing changes.
func (m *Manager) SetEndpoints(local []Endpoint) error {
	err := m.dir.set(local)
	if err == nil {
		m.own()
	}
	return err
}

// Hold sets further addresses that functions of this NIC have without being reachable at them, for
// example because they are not in service. No peer gets these addresses, whatever it announces.
func (m *Manager) Hold(list []Address) {
	m.held = slices.Clone(list)
	m.own()
}

// own computes which addresses are ours. If a peer claims one of them, its ports change as a
// result.
func (m *Manager) own() {
	was, now := m.peers.ours, make(map[Address]bool, len(m.dir.local)+len(m.held))
	for a := range m.dir.local {
		now[a] = true
	}
	for _, a := range m.held {
		now[a] = true
	}
	m.peers.ours = now
	var others []*peer
	other := func(a Address) {
		if c := m.ports.claims.all[a]; len(c) > 0 {
			others = appendNew(others, c[0].peer)
		}
	}
	for a := range now {
		m.dir.note(a)
		if !was[a] {
			other(a)
		}
	}
	for a := range was {
		if !now[a] {
			m.dir.note(a)
			other(a)
		}
	}
	slices.SortFunc(others, (*peer).compare)
	m.ports.changed(others)
}

// Known returns the addresses of functions. It is always the same object, which follows them.
func (m *Manager) Known() *Known { return m.dir.known }

// Offered returns the peer that offers a GID in a tenant, if its link is up.
func (m *Manager) Offered(tenant uint32, gid [16]byte) (by PeerID, ok bool) {
	return m.dir.offered(Address{tenant, gid})
}

// SetPorts sets the ports of this NIC, replacing earlier ones, and informs the peers that are up.
// Errors: ErrInvalid for a function of another host, ErrLimit if more than MaxPorts would be
// announced to one peer; then nothing changes.
func (m *Manager) SetPorts(local []PortAddress) error { return m.ports.set(local) }

// PortsOf lists the ports of a peer that it announced and has.
func (m *Manager) PortsOf(id PeerID) []PortAddress {
	if p := m.peers.byID[id]; p != nil {
		return m.ports.of(p)
	}
	return nil
}

// LimitMTU makes new connections with a peer use at most mtu bytes of ULP headers and data per packet:
// the path to it carries no more. mtu may be larger than Config.MTU, which limits them too.
func (m *Manager) LimitMTU(id PeerID, mtu int) {
	if p := m.peers.byID[id]; p != nil {
		p.mtu = min(max(mtu, MinMTU), m.cfg.MTU)
	}
}

// SharedTenant returns the lowest tenant in which a peer that is ready has an address. ok is false
// if there is none.
func (m *Manager) SharedTenant(id PeerID) (tenant uint32, ok bool) {
	p := m.peers.byID[id]
	if p == nil || !p.ready {
		return 0, false
	}
	m.dir.claims.has(p, func(a Address, _ seat) {
		if !ok || a.Tenant < tenant {
			tenant, ok = a.Tenant, true
		}
	})
	return tenant, ok
}

// Rekey tells a peer to seal with sa from now on. OutRekeyed follows when it has confirmed; a later
// Rekey for the same use replaces this one. Errors: ErrNotFound for an unknown peer, ErrInvalid.
func (m *Manager) Rekey(u Use, sa SA) error { return m.keys.give(u, sa) }

// SPIRefused reports that this many packets of the peer's connections failed the SPI check (Falcon
// §9.2.2.3). The peer is told again to seal with sa, at most once in each Config.RekeyTimeout.
// Errors as for Rekey.
func (m *Manager) SPIRefused(now Time, u Use, sa SA, packets uint64) error {
	return m.keys.refused(now, u, sa, packets)
}

// RequestRekey requests another SA from a peer in place of the one with this SPI; 0: there is none.
// OutRekey follows. Errors: ErrNotFound.
func (m *Manager) RequestRekey(u Use, spi uint32) error { return m.keys.request(u, spi) }

// PeerUp must be called when the link to a peer comes up. A NIC that is no peer is ignored.
func (m *Manager) PeerUp(now Time, id PeerID) {
	p := m.peers.byID[id]
	if p == nil {
		return
	}
	m.PeerDown(now, id)
	p.up, p.speaks = true, 0
	p.told = p.wasTold // it may still have them, whatever was sent on the last link
	m.dir.tell(p)
	m.ports.tell(p)
}

// PeerDown must be called when the link to a peer goes down. What was in flight on it is lost.
func (m *Manager) PeerDown(now Time, id PeerID) {
	p := m.peers.byID[id]
	if p == nil || !p.up {
		return
	}
	p.up, p.ready = false, false
	m.dir.claims.down(p)
	if others := m.ports.claims.down(p); len(others) > 0 {
		m.ports.changed(append(others, p))
	}
	for _, c := range m.conns.sorted(func(c *conn) bool { return c.peer == p }) {
		_ = m.shake.fire(now, c, evPeerDown, args{reason: ReasonPeerDown})
	}
}

// hello handles a peer's Hello. The first Hello of a link also decides what becomes of the
// connections that were established before.
func (m *Manager) hello(now Time, p *peer, h *Hello) error {
	if p.Host != 0 && h.Host != p.Host || p.ready && h.Host != p.host {
		return fmt.Errorf("cm: Hello on the link to NIC %s says that its nic.host is %d, not %d: %w", p.Name, h.Host, p.host, ErrProtocol)
	}
	if h.Instance == 0 || p.ready && h.Instance != p.instance {
		return fmt.Errorf("cm: Hello of NIC %s: instance %#x: %w", p.Name, h.Instance, ErrProtocol)
	}
	p.host = h.Host
	m.dir.learn(p, h.Endpoints)
	if p.ready {
		return nil
	}
	p.ready = true
	restarted := p.instance != 0 && p.instance != h.Instance
	p.instance = h.Instance
	if restarted {
		m.out.stats.PeerRestarts++
		m.forget(now, p)
	} else {
		for _, c := range m.conns.established(p) {
			m.shake.confirm(now, c, nil)
		}
	}
	m.keys.ask(p)
	m.keys.askAgain(now)
	return nil
}

// ForgetPeer must be called when nothing that was agreed with a peer can be trusted any more, or the
// peer has said BYE. The link to the peer counts as down, its keys are forgotten, and its
// connections end. When the link is up again, Hello announces another instance to the peer, so that
// the peer also forgets what it had of this NIC.
func (m *Manager) ForgetPeer(now Time, id PeerID) {
	p := m.peers.byID[id]
	if p == nil {
		return
	}
	m.forgets++
	p.forgotten = m.forgets
	m.PeerDown(now, id)
	m.forget(now, p)
	m.dir.learn(p, nil)
}

// AddPeer adds a NIC that this one may talk to, whose link is down. Errors: ErrInvalid for an ID that
// is taken, ErrLimit if it would have to be told of more than a message holds.
func (m *Manager) AddPeer(c Peer) error {
	if c.ID == Self || c.ID > MaxPeerID || m.peers.byID[c.ID] != nil {
		return fmt.Errorf("cm: peer %d: %w", c.ID, ErrInvalid)
	}
	p := newPeer(c, &m.cfg)
	p.forgotten = m.forgets // if it was a peer before, what it was given then is void
	if err := m.tellable(p); err != nil {
		return err
	}
	m.peers.add(p)
	return nil
}

// tellable reports whether a peer can be told of what this NIC has.
func (m *Manager) tellable(p *peer) error {
	if err := p.tellable(m.dir.endpoints); err != nil {
		return err
	}
	return p.portsTellable(m.ports.ports)
}

// ChangePeer replaces the configuration of the peer with this ID; its name stays. Its link and what
// is still allowed go on: connections to addresses that it may no longer have end. Errors:
// ErrNotFound, ErrLimit; then nothing changes.
func (m *Manager) ChangePeer(now Time, c Peer) error {
	p := m.peers.byID[c.ID]
	if p == nil {
		return fmt.Errorf("cm: peer %d: %w", c.ID, ErrNotFound)
	}
	if err := m.tellable(newPeer(c, &m.cfg)); err != nil {
		return err
	}
	p.configure(c)
	if p.up {
		m.dir.tell(p)
		m.ports.tell(p)
	}
	m.Review(now)
	return nil
}

// MovePeer says where a peer is now. New connections go there; nothing else changes.
func (m *Manager) MovePeer(id PeerID, to netip.AddrPort) {
	if p := m.peers.byID[id]; p != nil {
		p.Underlay = to
	}
}

// Review judges anew what all peers announced and which connections they have. It must be called
// when what Peer.MayHave answers has changed.
func (m *Manager) Review(now Time) {
	for _, c := range m.conns.sorted(func(c *conn) bool { return c.peer != m.peers.self && c.state.owned() }) {
		if why, reason := c.peer.refuses(Address{c.par.Tenant, c.par.PeerGID}); why != "" {
			_ = m.shake.end(now, c, evDisconnect, args{reason: reason, tell: reason})
		}
	}
	for _, p := range m.peers.all {
		m.dir.learn(p, p.said.functions)
		if len(p.said.ports) > 0 || len(m.ports.claims.of[p]) > 0 {
			m.ports.learn(p, p.said.ports)
		}
	}
}

// RemovePeer removes a peer with its connections and keys. If its link is up, the peer is told that
// the connections end, and then BYE. CIDs are free at once: without keys, no packet in flight can be opened.
func (m *Manager) RemovePeer(now Time, id PeerID) {
	p := m.peers.byID[id]
	if p == nil {
		return
	}
	for _, c := range m.conns.sorted(func(c *conn) bool { return c.peer == p }) {
		_ = m.shake.fire(now, c, evPeerRemoved, args{reason: ReasonPeerRemoved})
	}
	if p.ready {
		m.out.send(p, Encode(&BYE{}))
	}
	m.forgets++
	m.shake.res.ForgetSAs(id)
	m.dir.learn(p, nil)
	m.ports.learn(p, nil)
	p.up, p.ready = false, false
	m.peers.remove(p)
}

// PeerOf returns a peer, with the host that it said if none was given, and whether its link is up;
// ok is false if there is no such peer.
func (m *Manager) PeerOf(id PeerID) (c Peer, up, ok bool) {
	p := m.peers.byID[id]
	if p == nil {
		return c, false, false
	}
	c = p.Peer
	c.Host = p.host
	return c, p.up, true
}

// otherVersion records that a peer uses another protocol version. Earlier agreements were made with
// a process that has ended since, so they are dropped.
func (m *Manager) otherVersion(now Time, p *peer, version uint8) {
	p.ready, p.speaks = false, version
	m.forget(now, p)
	m.dir.learn(p, nil)
}

// forget drops a peer's keys, its ports, and the connections that need them.
func (m *Manager) forget(now Time, p *peer) {
	m.shake.res.ForgetSAs(p.ID)
	clear(p.keys)
	clear(p.rekeys)
	clear(p.wants)
	p.said.ports = nil
	if len(m.ports.claims.of[p]) > 0 {
		m.ports.learn(p, nil)
	}
	for _, c := range m.conns.established(p) {
		_ = m.shake.fire(now, c, evPeerRestart, args{reason: ReasonPeerRestarted})
	}
}

// Stats returns the counters.
func (m *Manager) Stats() Stats { return m.out.stats }

// ConnectionInfo describes a connection. It holds no key.
type ConnectionInfo struct {
	Params
	State   State
	Created Time
}

// Connections lists the connections in the order of their IDs.
func (m *Manager) Connections() []ConnectionInfo {
	all := m.conns.sorted(func(*conn) bool { return true })
	s := make([]ConnectionInfo, len(all))
	for i, c := range all {
		s[i] = ConnectionInfo{c.par, c.state, c.created}
		s[i].TxKey = nil
	}
	return s
}

// PeerInfo describes a peer.
type PeerInfo struct {
	Peer              // Host is what its Hello said, if it is not configured
	Up          bool  // the link is up and Hello arrived
	Speaks      uint8 // version of its messages, if it is not Version; else 0
	Offers      int   // addresses of functions it has
	Told        int   // addresses of functions that were announced to it
	Connections int
	Functions   Refused // addresses of functions that it announces but does not get
	Ports       Refused // the same for ports
}

// Peers lists the peers in order of their IDs.
func (m *Manager) Peers() []PeerInfo {
	var s []PeerInfo
	for _, p := range m.peers.all {
		i := PeerInfo{Peer: p.Peer, Up: p.ready, Speaks: p.speaks, Connections: p.conns, Functions: p.refused.functions, Ports: p.refused.ports}
		i.Host = p.host
		for _, e := range m.dir.endpoints {
			if p.tenants[e.Tenant] {
				i.Told++
			}
		}
		m.dir.claims.has(p, func(Address, seat) { i.Offers++ })
		s = append(s, i)
	}
	return s
}

// outbox holds the outputs for the owner of a Manager, oldest first, and the counters.
type outbox struct {
	list  []Output
	read  int // number of outputs already read
	stats Stats
}

func (b *outbox) emit(o Output) { b.list = append(b.list, o) }

// send passes a message to the link. While the link is down the message is dropped: everything
// important is sent again when the link is up.
func (b *outbox) send(p *peer, msg []byte) {
	if !p.up {
		b.stats.SendDropped++
		return
	}
	b.stats.Sent++
	b.emit(Output{Kind: OutSend, Peer: p.ID, Msg: msg})
}

// next removes and returns the oldest output. It returns false when there is none.
func (b *outbox) next(o *Output) bool {
	if b.read == len(b.list) {
		return false
	}
	*o = b.list[b.read]
	b.list[b.read] = Output{}
	b.read++
	if b.read == len(b.list) {
		if cap(b.list) > max(1024, 4*b.read) { // it was longer before, which will hardly be again
			b.list = nil
		}
		b.list, b.read = b.list[:0], 0
	}
	return true
}
