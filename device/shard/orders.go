package shard

import (
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Orders carries out the core's orders for a shard. Its methods are called on the shard's thread.
type Orders struct{ s *Shard }

// Orders returns the shard's side of the core's orders.
func (s *Shard) Orders() Orders { return Orders{s} }

// Answer passes the answer to a function's request on.
func (o Orders) Answer(now falcon.Time, a *conn.Answer) { o.s.conns.Answer(now, a) }

// Decide carries out a decision of the connection manager for a function.
func (o Orders) Decide(now falcon.Time, d *conn.Decision) { o.s.conns.Decide(now, d) }

// TakeKey starts sealing with a peer's new key, if this shard seals for that use.
func (o Orders) TakeKey(now falcon.Time, u security.Use, sa cm.SA) {
	if err := o.takeKey(u, sa); err != nil {
		o.s.log.Line(now, slog.LevelError, "new key not usable", "peer", u.Peer, "tenant", u.Tenant, "class", u.Class.String(), "err", err)
	}
}

// ForgetKeys drops the keys of a peer that lost them with its memory.
func (o Orders) ForgetKeys(host cm.HostID) {
	o.s.txSAs.ForgetPeer(host)
	o.s.plain.gw.Tunnels.ForgetKeys(host)
}

// PeerPorts is called when the routes to a peer's ports have changed: it asks the peer for the keys
// of tenants that packets may be sent to.
func (o Orders) PeerPorts(now falcon.Time, host cm.HostID) {
	o.s.plain.gw.PeerChanged(host, o.s.core)
	o.s.underlay.Resolve(now, o.s.peers[host].underlay)
}

// Resolve asks for the link address of an underlay address early: packets will probably follow.
func (o Orders) Resolve(now falcon.Time, addr netip.Addr) { o.s.underlay.Resolve(now, addr) }

// Set applies settings to a function.
func (o Orders) Set(now falcon.Time, id pfvf.ID, is *config.Function) error {
	return o.s.funcs.set(now, id, *is)
}

// VF returns a handler with which a PF reads or resets a VF.
func (o Orders) VF(now falcon.Time, id pfvf.ID) abi.VFHandler {
	return &seenVF{fs: o.s.funcs, id: id, now: now}
}

// Reset resets a function, and with a PF its VFs, for the operator. It returns false if the
// function is disabled.
func (o Orders) Reset(now falcon.Time, id pfvf.ID) bool {
	f := o.s.funcs.byID[id]
	if f == nil || f.Lifecycle.State() == abi.StateDisabled {
		return false
	}
	f.TakeVFsDown(now)
	f.TakeDown(now, "the operator reset it")
	return true
}

// ResetVFs resets the VFs of a PF that was reset.
func (o Orders) ResetVFs(now falcon.Time, pf pfvf.ID) { o.s.funcs.takeVFsDown(now, pf) }

// VFsEnabled records how many VFs of a PF are enabled, over all shards.
func (o Orders) VFsEnabled(pf pfvf.ID, n int) { o.s.funcs.enabled[pf.PF()] = n }

// PFLink records the link setting of a PF.
func (o Orders) PFLink(now falcon.Time, pf pfvf.ID, is pfvf.Link) {
	fs := o.s.funcs
	if fs.links[pf.PF()] != is { // equal if the PF is this shard's own
		fs.links[pf.PF()] = is
		fs.linkChanged(now, pf)
		o.s.plain.syncOf(pf)
	}
}

// takeKey starts sealing with a peer's new key, if this shard seals for that use.
func (o Orders) takeKey(u security.Use, sa cm.SA) error {
	if u.Class == cm.ClassGateway {
		return o.s.plain.gw.Tunnels.TakeKey(o.s.txSAs, u, sa)
	}
	if !o.s.txSAs.Has(u) {
		return nil
	}
	_, err := o.s.txSAs.Give(u, sa)
	return err
}
