package shard

import (
	"errors"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Core is the shard's access to the state that all shards of the NIC share. None of its methods
// waits: requests made in a Step are sent at its end (Flush), and the core answers by Orders.
type Core interface {
	conn.Requests
	security.Requester
	// SPIRefused reports a packet of a connection that came with another key than the one issued
	// for it.
	SPIRefused(u security.Use)
	// PathAnswered reports a peer's answer to a probe of the path to it.
	PathAnswered(peer cm.PeerID, size int, round uint32)
	// PathUsed reports that long packets are being sent to a peer.
	PathUsed(peer cm.PeerID)
	// PeerMoved reports that a packet of a peer came from somewhere else. The core asks the peer
	// whether it has moved.
	PeerMoved(peer cm.PeerID, at netip.AddrPort)
	// Knows reports whether a GID in a tenant belongs to a function, here or at a peer.
	Knows(tenant uint32, gid [16]byte) bool
	FunctionRequests
	// Opener returns an opener for what peers seal with the keys that the core issues.
	Opener() *security.Opener
	// Credits returns the shard's credit node for the host, whose parent is the node for the NIC.
	Credits() *credit.Node
	// Routes returns the routes of plain IP. SetPort and RemovePort change them.
	Routes() *gateway.Routes
	SetPort(function uint32, at gateway.Place)
	RemovePort(function uint32)
	// Flush sends the requests made so far, and reports whether there were any.
	Flush() bool
}

// FunctionRequests is the shard's access to the settings of functions, of which it owns a part.
type FunctionRequests interface {
	// Functions calls f for each function of the NIC that has settings. It is called before the
	// first Step.
	Functions(f func(id pfvf.ID, here bool, is *config.Function))
	// Find returns an error if no function can have this ID.
	Find(id pfvf.ID) error
	// Change changes the settings of a VF. It calls then when they are applied, or with the reason
	// why not.
	Change(vf pfvf.ID, edit functions.Edit, then func(error))
	// Visit calls f with a VF, on the VF's own shard, and calls then with what f returned.
	Visit(vf pfvf.ID, f func(abi.VFHandler) (abi.Status, abi.Result), then func(abi.Status, abi.Result))
	// Announce tells peers that a function now has the address add and no longer has the address
	// drop (zero: none). It calls then with the answer.
	Announce(id pfvf.ID, add, drop [16]byte, then func(error))
	// Withdraw takes back everything that was announced for a function before.
	Withdraw(id pfvf.ID)
	// ResetVFs resets the VFs of a PF that belong to other shards.
	ResetVFs(pf pfvf.ID)
}

// reasonOf returns the reason of a refusal in the form that operators see.
func reasonOf(err error) error {
	var no *functions.Refusal
	if errors.As(err, &no) {
		return errors.New(no.Why)
	}
	return err
}

// Orders carries out the core's orders for a shard. Its methods are called on the shard's thread.
type Orders struct{ s *Shard }

// Orders returns the shard's side of the core's orders.
func (s *Shard) Orders() Orders { return Orders{s} }

// Answer passes the answer to a function's request on.
func (o Orders) Answer(now falcon.Time, a *conn.Answer) {
	o.s.ordered(order{Answer: &answerOrder{a.Question, a.ID, tapeError(a.Err)}})
	o.s.falcon.conns.Answer(now, a)
}

// Decide carries out a decision of the connection manager for a function.
func (o Orders) Decide(now falcon.Time, d *conn.Decision) {
	o.s.ordered(order{Decide: decided(d)})
	o.s.falcon.conns.Decide(now, d)
}

// TakeKey starts sealing with a peer's new key, if this shard seals for that use.
func (o Orders) TakeKey(now falcon.Time, u security.Use, sa cm.SA) {
	o.s.ordered(order{TakeKey: &keyOrder{u, security.WithoutKey(sa)}})
	var err error
	switch {
	case u.Class == cm.ClassGateway:
		if err = o.s.probes.takeKey(u, sa); err == nil {
			err = o.s.plain.gw.Tunnels.TakeKey(o.s.txSAs, u, sa)
		}
	case o.s.txSAs.Has(u):
		_, err = o.s.txSAs.Give(u, sa)
	}
	if err != nil {
		o.s.log.Line(now, slog.LevelError, "new key not usable", "peer", o.s.peerName(u.Peer), "tenant", u.Tenant, "class", u.Class.String(), "err", err)
	}
}

// ForgetKeys drops the keys of a peer that lost them with its memory.
func (o Orders) ForgetKeys(peer cm.PeerID) {
	o.s.ordered(order{ForgetKeys: &peer})
	o.s.txSAs.ForgetPeer(peer)
	o.s.plain.gw.Tunnels.ForgetKeys(peer)
	o.s.probes.forgetKeys(peer)
}

// SetPeer says where a peer is; it may be a new one. Packets of its connections and tunnels go
// there from now on. anywhere means that the configuration does not say where the peer is.
func (o Orders) SetPeer(id cm.PeerID, name string, underlay netip.AddrPort, anywhere bool) {
	o.s.ordered(order{SetPeer: &peerOrder{id, name, underlay, anywhere}})
	p := o.s.peers[id]
	if p == nil {
		p = &peer{id: id}
		o.s.peers[id] = p
	}
	p.name, p.anywhere = name, anywhere
	if p.underlay == underlay {
		return
	}
	p.underlay = underlay
	o.s.falcon.table.MovePeer(id, underlay)
	o.s.plain.gw.Tunnels.SetPeer(id, gateway.Remote{Name: name, Underlay: underlay})
}

// RemovePeer drops what is left of a peer that is gone: its connections and keys went before.
func (o Orders) RemovePeer(id cm.PeerID) {
	o.s.ordered(order{RemovePeer: &id})
	o.s.plain.gw.Tunnels.RemovePeer(id)
	o.s.falcon.table.ForgetPeer(id)
	delete(o.s.peers, id)
}

// LimitPath says how many bytes of RDMA data the network carries in one packet to a peer.
func (o Orders) LimitPath(id cm.PeerID, data int) {
	o.s.ordered(order{LimitPath: &limitOrder{id, data}})
	o.s.falcon.table.LimitPath(id, data)
}

// peerName returns the name of a peer, for people.
func (s *Shard) peerName(id cm.PeerID) string {
	if p := s.peers[id]; p != nil {
		return p.name
	}
	return "gone"
}

// PeerPorts is called when the routes to a peer's ports have changed: it asks the peer for the keys
// of tenants that packets may be sent to.
func (o Orders) PeerPorts(now falcon.Time, id cm.PeerID) {
	o.s.ordered(order{PeerPorts: &id})
	p := o.s.peers[id]
	if p == nil {
		return
	}
	o.s.plain.gw.PeerChanged(id, o.s.core)
	o.s.uplink.underlay.Resolve(now, p.underlay)
}

// Resolve asks for the link address of an underlay address early: packets will probably follow.
func (o Orders) Resolve(now falcon.Time, to netip.AddrPort) {
	o.s.ordered(order{Resolve: &to})
	o.s.uplink.underlay.Resolve(now, to)
}

// ProbePath sends a probe to a peer, sealed with a key of a tenant, to the address at or, if that
// is not valid, to where the peer is.
func (o Orders) ProbePath(now falcon.Time, peer cm.PeerID, at netip.AddrPort, tenant uint32, p pathmtu.Probe) {
	o.s.ordered(order{Probe: &probeOrder{peer, at, tenant, p}})
	o.s.probes.request(now, peer, at, tenant, p)
}

// Set applies settings to a function.
func (o Orders) Set(now falcon.Time, id pfvf.ID, is *config.Function) error {
	o.s.ordered(order{Set: &setOrder{id, *is}})
	return o.s.funcs.set(now, id, *is)
}

// VF returns a handler with which a PF reads or resets a VF.
func (o Orders) VF(now falcon.Time, id pfvf.ID) abi.VFHandler {
	return &seenVF{fs: o.s.funcs, id: id, now: now}
}

// Reset resets a function, and with a PF its VFs, for the operator. It returns false if the
// function is disabled.
func (o Orders) Reset(now falcon.Time, id pfvf.ID) bool {
	o.s.ordered(order{Reset: &id})
	f := o.s.funcs.members.get(id)
	if f == nil || f.Lifecycle.State() == abi.StateDisabled {
		return false
	}
	f.TakeVFsDown(now)
	f.TakeDown(now, "the operator reset it")
	return true
}

// ResetVFs resets the VFs of a PF that was reset.
func (o Orders) ResetVFs(now falcon.Time, pf pfvf.ID) {
	o.s.ordered(order{ResetVFs: &pf})
	o.s.funcs.takeVFsDown(now, pf)
}

// VFsEnabled records how many VFs of a PF are enabled, over all shards.
func (o Orders) VFsEnabled(pf pfvf.ID, n int) {
	o.s.ordered(order{VFsEnabled: &vfsOrder{pf, n}})
	o.s.funcs.enabled[pf.PF()] = n
}

// PFLink records the link setting of a PF.
func (o Orders) PFLink(now falcon.Time, pf pfvf.ID, is pfvf.Link) {
	o.s.ordered(order{PFLink: &linkOrder{pf, is}})
	fs := o.s.funcs
	if fs.links[pf.PF()] != is { // equal if the PF is this shard's own
		fs.links[pf.PF()] = is
		fs.updateLinks(now, pf)
		fs.syncPorts(pf)
	}
}
