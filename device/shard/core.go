package shard

import (
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Core is what a shard asks of what there is once for the NIC. Nothing of it waits: what is asked in
// a Step goes over at its end (Flush), and the core answers by Orders.
type Core interface {
	conn.Requests
	security.Requester
	// SPIRefused says that a packet of a connection came with another key than the one issued for it.
	SPIRefused(u security.Use)
	// Knows reports whether a GID in a tenant is a function's, here or at a peer.
	Knows(tenant uint32, gid [16]byte) bool
	VFs
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

// VFs is what a shard asks of functions as they are set, of which it has a part.
type VFs interface {
	// Functions calls f for each function of the NIC that is set to something. It is called before
	// the first Step.
	Functions(f func(id pfvf.ID, here bool, is *config.Function))
	// Find says why there can be no function of that number.
	Find(id pfvf.ID) error
	// Change sets a VF anew; then is called when it is set, or with the reason why not.
	Change(vf pfvf.ID, edit functions.Edit, then func(error))
	// Visit has f look at a VF where it is; then is called when it has.
	Visit(vf pfvf.ID, f func(abi.VFHandler), then func())
	// ResetVFs resets the VFs of a PF that other shards have.
	ResetVFs(pf pfvf.ID)
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

// Set makes a function what it is set to.
func (o Orders) Set(now falcon.Time, id pfvf.ID, is *config.Function) error {
	return o.s.funcs.set(now, id, *is)
}

// VF looks at a VF for its PF.
func (o Orders) VF(now falcon.Time, id pfvf.ID) abi.VFHandler {
	return &seenVF{fs: o.s.funcs, id: id, now: now}
}

// Reset resets a function, and with a PF its VFs, for the operator. It reports false for one that is
// disabled.
func (o Orders) Reset(now falcon.Time, id pfvf.ID) bool {
	f := o.s.funcs.byID[id]
	if f == nil || f.Lifecycle.State() == abi.StateDisabled {
		return false
	}
	f.TakeVFsDown(now)
	f.TakeDown(now, "the operator reset it")
	return true
}

// ResetVFs resets the VFs of a PF, which was reset.
func (o Orders) ResetVFs(now falcon.Time, pf pfvf.ID) { o.s.funcs.takeVFsDown(now, pf) }

// VFsEnabled says how many VFs of a PF are enabled, of all shards.
func (o Orders) VFsEnabled(pf pfvf.ID, n int) { o.s.funcs.enabled[pf.PF()] = n }

// PFLink says what the link of a PF is set to.
func (o Orders) PFLink(now falcon.Time, pf pfvf.ID, is pfvf.Link) {
	fs := o.s.funcs
	if fs.links[pf.PF()] != is { // else it is the shard's own, which knows
		fs.links[pf.PF()] = is
		fs.linkChanged(now, pf)
		o.s.syncPortOf(pf)
	}
}

// flushCore sends the core what was asked of it.
func (s *Shard) flushCore() {
	if s.core.Flush() {
		s.roused.Store(true)
	}
}
