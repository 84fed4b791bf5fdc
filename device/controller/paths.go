package controller

import (
	"log/slog"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// A switch or cable with a smaller MTU than uplink.mtu drops long packets and tells nobody. The core
// finds the longest packet that reaches each peer by probes (package pathmtu). If that is shorter
// than uplink.mtu, plain IP to the peer is cut or refused by that length, new connections have a
// smaller MTU, those that are there send shorter packets, and the log and `vnic show nic` say so.

// probeTogether is the least time between two looks at all paths, of which there may be thousands. The
// search of one path goes on at each answer.
const probeTogether = 100_000_000

// paths probes the paths to all peers. The shard that sends the probes is shard 0.
type paths struct {
	off  bool
	due  vtime.Time
	next vtime.Time // probe looks at no path before this time
}

// peerPath is the path to one peer.
type peerPath struct {
	prober *pathmtu.Prober // nil: the peer is down, or shares no tenant
	tenant uint32          // shared with the peer; its gateway key seals the probes
	told   int             // the MTU that the rest of the NIC knows; 0: that of the configuration
}

// pathChanged begins to probe the path to a peer, or ends it: the link came up or went down, or the
// peer has said what functions it has.
func (k *Core) pathChanged(id cm.PeerID) {
	peer := k.Peers.byID[id]
	k.alive.soon()
	if k.paths.off || peer == nil {
		return
	}
	p := &peer.path
	var shared bool
	switch p.tenant, shared = k.Manager.CM.SharedTenant(id); {
	case !shared:
		p.prober = nil // what was found stays until it is found again
	case p.prober == nil:
		p.prober = pathmtu.New(k.cfg.NIC.Uplink.MTU, k.cfg.NIC.Uplink.Own().Is6())
		k.paths.due = min(k.paths.due, k.paths.next)
	}
}

// searchAgain begins anew to probe the path to a peer.
func (k *Core) searchAgain(peer *Peer) {
	if peer.path.prober != nil {
		peer.path.prober = nil
		k.pathChanged(peer.ID)
	}
}

// alive is when this NIC, behind NAT, shows its peers that it is there, so that the NAT keeps its
// mapping and they know it.
type alive struct {
	every vtime.Time // 0: never
	due   vtime.Time
	first int // how many more follow each other quickly: a key may have to be asked for first
}

func (a *alive) soon() {
	if a.every > 0 {
		a.due, a.first = vtime.LongAgo, 3
	}
}

// showAlive sends the signs of life that are due.
func (k *Core) showAlive(now vtime.Time) {
	a := &k.alive
	if now < a.due {
		return
	}
	if a.due = now + a.every; a.first > 0 {
		a.due = now + min(a.every, 1e9)
		a.first--
	}
	for _, peer := range k.Peers.sorted {
		if tenant, shared := k.Manager.CM.SharedTenant(peer.ID); shared {
			id := peer.ID
			k.shards[0].tell(func(to Orders, now vtime.Time) {
				to.ProbePath(now, id, netip.AddrPort{}, tenant, pathmtu.Probe{Kind: pathmtu.Here})
			})
		}
	}
}

// probe sends the probes that are due.
func (k *Core) probe(now vtime.Time) {
	if now < k.paths.due {
		return
	}
	k.paths.due, k.paths.next = vtime.Never, now+probeTogether
	for _, peer := range k.Peers.sorted {
		if peer.path.prober != nil {
			k.probePeer(now, peer)
		}
	}
	k.paths.due = max(k.paths.due, k.paths.next)
}

// probePeer sends the probes to one peer that are due.
func (k *Core) probePeer(now vtime.Time, peer *Peer) {
	id, p := peer.ID, &peer.path
	sizes, round := p.prober.Due(now)
	for _, size := range slices.Backward(sizes) { // shortest first: no two of them make a superframe
		tenant, probe := p.tenant, pathmtu.Probe{Kind: pathmtu.Request, Size: uint16(size), Round: round}
		k.shards[0].tell(func(to Orders, now vtime.Time) { to.ProbePath(now, id, netip.AddrPort{}, tenant, probe) })
	}
	k.pathKnown(now, peer) // a round may have ended
	k.paths.due = min(k.paths.due, p.prober.Deadline())
}

// pathAnswered takes a peer's answer to a probe.
func (k *Core) pathAnswered(now vtime.Time, id cm.PeerID, size int, round uint32) {
	peer := k.Peers.byID[id]
	switch {
	case peer == nil:
		return
	case size == 0: // the answer to a question, not to a search
		k.moveAnswered(now, peer, round)
		return
	case peer.path.prober == nil:
		return
	}
	peer.path.prober.Answered(now, size, round)
	k.probePeer(now, peer)
}

// pathUsed takes a shard's word that long packets are being sent to a peer.
func (k *Core) pathUsed(now vtime.Time, id cm.PeerID) {
	peer := k.Peers.byID[id]
	if peer == nil || peer.path.prober == nil {
		return
	}
	peer.path.prober.Used(now)
	k.probePeer(now, peer)
}

// pathKnown makes the NIC keep to what a path carries, if that has changed.
func (k *Core) pathKnown(now vtime.Time, peer *Peer) {
	p := &peer.path
	mtu, most := p.prober.MTU(), k.cfg.NIC.Uplink.MTU
	if mtu == 0 || mtu == p.told || p.told == 0 && mtu == most {
		return
	}
	p.told = mtu
	id, data := peer.ID, k.cfg.NIC.RDMADataFor(mtu)
	k.Manager.CM.LimitMTU(id, conn.PathULP(data))
	k.all(func(to Orders, _ vtime.Time) { to.LimitPath(id, data) })
	k.portsChanged(now, peer.ID)
	if mtu < most {
		k.cfg.Log(now, slog.LevelWarn, "the network carries shorter packets to a peer than uplink.mtu says: plain IP and connections use the shorter size",
			"peer", peer.Name, "mtu", mtu, "uplink.mtu", most)
	} else {
		k.cfg.Log(now, slog.LevelInfo, "the network carries packets of uplink.mtu to a peer again", "peer", peer.Name, "mtu", mtu)
	}
}

// pathMTU returns the longest packet that the network carries to a peer, bytes of outer IP packet,
// as far as it is known: else uplink.mtu.
func (k *Core) pathMTU(id cm.PeerID) int {
	if peer := k.Peers.byID[id]; peer != nil && peer.path.told != 0 {
		return peer.path.told
	}
	return k.cfg.NIC.Uplink.MTU
}

// PathUsed reports that long packets are being sent to a peer.
func (c *ShardLink) PathUsed(peer cm.PeerID) {
	c.post(func(k *Core, now vtime.Time) { k.pathUsed(now, peer) })
}

// PathAnswered reports a peer's answer to a probe.
func (c *ShardLink) PathAnswered(host cm.PeerID, size int, round uint32) {
	c.post(func(k *Core, now vtime.Time) { k.pathAnswered(now, host, size, round) })
}
