package shard

import (
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
)

// Core is what a shard asks of what there is once for the NIC. Nothing of it waits: what is asked in
// a Step goes over at its end (Flush), and the core answers by Orders.
type Core interface {
	conn.Requests
	security.Requester
	// SPIRefused says that a packet of a connection came with another key than the one issued for it.
	SPIRefused(u security.Use)
	// Check says whether peers could be told of functions and of addresses of ports.
	Check(functions []cm.Endpoint, ports []cm.Port) error
	// Knows reports whether a GID in a tenant is a function's, here or at a peer.
	Knows(tenant uint32, gid [16]byte) bool
	// Announce says which functions and addresses of ports the shard has.
	Announce(functions []cm.Endpoint, ports []cm.Port)
	// Opener opens what peers seal with the keys that the core issues.
	Opener() *security.Opener
	// Credits is the shard's tree at the level of the host; the NIC's is above it.
	Credits() *credit.Node
	// Routes say where plain IP goes. SetPort and RemovePort change them.
	Routes() *gateway.Routes
	SetPort(function uint32, at gateway.Place)
	RemovePort(function uint32)
	// Flush sends what was asked, and reports whether there was something.
	Flush() bool
}

// Orders is what the core has for a shard. Its methods are called on the shard's thread.
type Orders struct{ s *Shard }

// Orders returns what takes them.
func (s *Shard) Orders() Orders { return Orders{s} }

// Answer answers a request of a function.
func (o Orders) Answer(now falcon.Time, a *conn.Answer) { o.s.conns.Answer(now, a) }

// Order carries out what the connection manager decided for a function.
func (o Orders) Order(now falcon.Time, order *conn.Order) { o.s.conns.Order(now, order) }

// TakeKey seals with what a peer gave us, where something is sealed for it.
func (o Orders) TakeKey(now falcon.Time, u security.Use, sa cm.SA) {
	if err := o.s.takeKey(u, sa); err != nil {
		o.s.log.Line(now, slog.LevelError, "new key not usable", "peer", u.Peer, "tenant", u.Tenant, "class", u.Class.String(), "err", err)
	}
}

// ForgetKeys drops what a peer gave us that has lost it with its memory.
func (o Orders) ForgetKeys(host cm.HostID) {
	o.s.txSAs.ForgetPeer(host)
	o.s.plain.gw.ForgetKeys(host)
}

// PeerPorts is told that the routes have other addresses of a peer's ports than before: it is asked
// for keys where packets for it may come.
func (o Orders) PeerPorts(now falcon.Time, host cm.HostID) {
	o.s.plain.gw.PeerChanged(host, o.s.core)
	o.s.underlay.Resolve(now, o.s.peers[host].underlay)
}

// Resolve finds the way to an underlay address in time: packets are likely to follow.
func (o Orders) Resolve(now falcon.Time, addr netip.Addr) { o.s.underlay.Resolve(now, addr) }

// flushCore sends the core what was asked of it.
func (s *Shard) flushCore() {
	if s.core.Flush() {
		s.roused.Store(true)
	}
}
