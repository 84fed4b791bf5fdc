package controller

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// DescribePeers describes the other NICs. links may be nil.
func (k *Core) DescribePeers(links Links) (list []control.Peer) {
	domain := ""
	if links != nil {
		domain = links.Domain()
	}
	info := map[cm.PeerID]cm.PeerInfo{}
	for _, p := range k.Manager.CM.Peers() {
		info[p.ID] = p
	}
	for _, peer := range k.Peers.sorted {
		p, identity := info[peer.ID], peer.Is.Identity
		if identity == "" && domain != "" {
			identity = cmlink.URI(domain, peer.Name)
		}
		v := control.Peer{
			Name: peer.Name, Host: p.Host, Underlay: placeOf(p.Underlay), Identity: identity, Tenants: p.Tenants,
			Up: p.Up, Functions: p.Offers, Refused: p.Functions.Count + p.Ports.Count, Connections: p.Connections, Note: k.note(&p),
			PathMTU: k.pathMTU(peer.ID), Addresses: []control.PeerAddress{},
		}
		if peer.Is.CM.IsValid() {
			v.CM = peer.Is.CM.String()
		}
		for _, f := range peer.Is.Functions {
			v.Addresses = append(v.Addresses, control.PeerAddress{Tenant: f.Tenant, Address: f.Address.String()})
		}
		if p.Speaks != 0 {
			v.Note = (&cm.VersionError{Got: p.Speaks}).Error()
		}
		if links != nil {
			v.Note, v.ClockAheadMS = cmp.Or(v.Note, links.Note(peer.ID)), links.Ahead(peer.ID).Milliseconds()
		}
		list = append(list, v)
	}
	return list
}

// peerHost returns the nic.host of the peer with a name; 0: it is gone, or not known yet.
func (k *Core) peerHost(name string) uint8 {
	peer := k.Peers.Find(name)
	if peer == nil {
		return 0
	}
	c, _, _ := k.Manager.CM.PeerOf(peer.ID)
	return c.Host
}

// note describes what is wrong with a peer that is up: it announces addresses that it may not have,
// of functions or else of ports, or one side has no function for the other, as when the two NICs
// list different tenants.
func (k *Core) note(p *cm.PeerInfo) string {
	switch {
	case !p.Up:
		return ""
	case p.Functions.Count > 0:
		return "does not get " + p.Functions.String()
	case p.Ports.Count > 0:
		return "does not get " + p.Ports.String()
	case p.Offers == 0:
		return fmt.Sprintf("announces no function in the tenants that are shared with it, %v: see its functions, and the entry for this NIC in its peers[]", p.Tenants)
	case p.Told == 0:
		return fmt.Sprintf("learns of no function of this NIC: none is enabled in the tenants that are shared with it, %v", p.Tenants)
	case k.pathMTU(p.ID) < k.cfg.NIC.Uplink.MTU:
		return fmt.Sprintf("the network carries packets of %d bytes to it, uplink.mtu is %d", k.pathMTU(p.ID), k.cfg.NIC.Uplink.MTU)
	}
	return ""
}

// Connections describes all connections, established or not. It leaves out the paths, which the
// shards know.
func (k *Core) Connections(now vtime.Time) (list []control.Connection) {
	for _, c := range k.Manager.CM.Connections() {
		v := control.Connection{
			ID: c.ID, Wire: "falcon", Function: pfvf.ID(c.Function).String(), PeerHost: k.cfg.NIC.NIC.Host, PeerName: c.PeerName, Tenant: c.Tenant, State: c.State.String(),
			QPN: c.QPN, PeerQPN: c.PeerQPN, LocalCID: c.LocalCID, RemoteCID: c.RemoteCID, TxSPI: c.TxSPI, RxSPI: c.RxSPI,
			MTU: c.MTU, AgeMS: (now - c.Created) / 1e6,
		}
		if c.Peer != cm.Self {
			v.PeerHost = k.peerHost(c.PeerName)
		}
		if c.PeerFunction != 0 {
			v.PeerFunction = pfvf.ID(c.PeerFunction).String()
		}
		list = append(list, v)
	}
	return list
}

// RotateKeys replaces the PSP master key and the keys of all peers.
func (k *Core) RotateKeys(now vtime.Time) (v control.Rotation, err error) {
	if err = k.Keys.Rotate(now); err == nil {
		s := k.Keys.Stats()
		v.Generation, v.Keys = s.Generation, s.Uses
	}
	return v, err
}

// KeyList describes the security associations that peers seal with. No answer holds a key.
func (k *Core) KeyList() (list []control.Key) {
	for _, i := range k.Keys.List() {
		list = append(list, control.Key{
			Direction: "rx", PeerName: k.Manager.Name(i.Use.Peer), Tenant: i.Use.Tenant, Class: i.Use.Class.String(),
			SPI: i.SPI, Previous: i.Previous, Generation: i.Generation,
		})
	}
	return list
}

// LogKeysTo makes the core write keys to a key log. It is called before the first Step.
func (k *Core) LogKeysTo(l *security.KeyLog) { k.Keys.LogTo(l) }

// count adds the core's counters to v.
func (k *Core) count(v control.Counters) {
	keys, manager := k.Keys.Stats(), k.Manager.CM.Stats()
	c := counters.Core{
		RxSAs: uint64(keys.SPIs), Rotations: keys.Rotations, RxSAsUnsettled: uint64(keys.Unsettled),
		CIDsInUse: uint64(k.Manager.CIDsInUse()),
	}
	v["drop.peer_message"], v["drop.peer_panic"] = k.refused, k.faults
	counters.OfCore.Add(v, &c)
	counters.OfCM.Add(v, &manager)
}

// credits holds the credit pools of the NIC and the host. The shards' trees lease from them.
type credits struct{ nic, host *credit.Pool }

func newCredits(c *config.Config, shards int) credits {
	return credits{credit.NewPool(c.Credits.NIC.Cost(), shards), credit.NewPool(c.Credits.Host.Cost(), shards)}
}

// Credits returns the shard's credit node for the host, whose parent is the node for the NIC. It
// belongs to the shard.
func (c *ShardLink) Credits() *credit.Node {
	pools := &c.core.credits
	return pools.host.Node(pools.nic.Node(nil, c.shard), c.shard)
}

// addCredits adds the use and refusals of one shard's nodes to the sums so far. Limits already
// cover the whole NIC and are not added.
func addCredits(sum, more []control.CreditNode) []control.CreditNode {
	if sum == nil {
		return more
	}
	for i := range sum {
		s, m := &sum[i], &more[i]
		for k, v := range m.InUse {
			s.InUse[k] += v
		}
		for k, v := range m.Charged {
			s.Charged[k] += v
		}
		s.Refused += m.Refused
		s.Underflows += m.Underflows
	}
	return sum
}

// placeOf describes where a peer is, for people.
func placeOf(at netip.AddrPort) string {
	if p := (config.Place{AddrPort: at}); !p.Anywhere() {
		return p.String()
	}
	return "not heard from yet"
}
