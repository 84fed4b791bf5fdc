package shard

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// On an uplink by UDP a peer may move: its host gets another address, or a NAT in front of it
// another address or port. The shard notices that by a packet that is authentic, and newer than
// those before it, since a copy proves nothing. The core then tells all shards (Orders.SetPeer).
//
//   - A peer that is configured with an address keeps its port wherever it goes. Its packets come
//     from other ports too: each path has one.
//   - A peer without one is behind NAT. It sends from one port, and is where its last packet came
//     from.

// minStay is the least time between two moves of a peer that a shard reports.
const minStay = 100_000_000

// came takes a packet of a peer that is authentic and no copy, and came in d. at is where packets to
// the peer go.
func (r *receiver) came(now falcon.Time, d *underlay.Datagram, id cm.PeerID, at netip.AddrPort) {
	switch {
	case d.Src == at.Addr() && (!r.moves || d.SrcPort == at.Port()):
		r.uplink.underlay.Authenticated(now, d.Src, d.From)
	case r.moves:
		if p := r.peers[id]; p != nil {
			if to := p.seenAt(d); to != p.underlay && (p.moved == 0 || now >= p.moved+minStay) {
				p.moved = now
				r.core.PeerMoved(id, to)
			}
		}
	}
}

// seenAt returns where a peer is, by a packet that came from it.
func (p *peer) seenAt(d *underlay.Datagram) netip.AddrPort {
	switch {
	case p.anywhere:
		return netip.AddrPortFrom(d.Src, d.SrcPort)
	case d.Src != p.underlay.Addr():
		return netip.AddrPortFrom(d.Src, p.underlay.Port())
	}
	return p.underlay
}
