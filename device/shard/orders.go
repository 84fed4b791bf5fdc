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
	if err := o.takeKey(u, sa); err != nil {
		o.s.log.Line(now, slog.LevelError, "new key not usable", "peer", u.Peer, "tenant", u.Tenant, "class", u.Class.String(), "err", err)
	}
}

// ForgetKeys drops what a peer gave us that has lost it with its memory.
func (o Orders) ForgetKeys(host cm.HostID) {
	o.s.txSAs.ForgetPeer(host)
	o.s.plain.gw.Tunnels.ForgetKeys(host)
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

// Reset resets a function, and with a PF its VFs, for the operator. It reports false for one that
// is disabled.
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
		o.s.plain.syncOf(pf)
	}
}

// takeKey seals with what a peer gave us, where something is sealed for it.
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
