package shard

import (
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/loglimit"
)

// peer describes another NIC.
type peer struct {
	id       cm.PeerID
	name     string
	underlay netip.AddrPort // where it receives
	anywhere bool           // underlay is not configured: the peer is where its packets come from
	moved    falcon.Time    // when this shard last reported that it had moved; 0: never

	pathUsed    falcon.Time // when the core was last told that long packets go there
	probesSince falcon.Time // when probes were first counted
	probes      int         // probes that came in the second after that

	otherMode     falcon.Time // time of its last packet in another psp.mode; 0: none
	otherModeTold falcon.Time // time of the last log line about that
}

// otherModeEvery is the least time between two log lines about one peer, and how long `vnic show
// nic` shows the note after the last packet.
const otherModeEvery = 60_000_000_000

// sealsOtherwise records that a peer, which is authenticated by its key, seals with another psp.mode
// than ours.
func (p *peer) sealsOtherwise(now falcon.Time, log *loglimit.Log, ours string) {
	if p == nil {
		return
	}
	if p.otherMode == 0 || now-p.otherModeTold >= otherModeEvery {
		p.otherModeTold = now
		log.Line(now, slog.LevelWarn, "a peer seals with another psp.mode: set it to the same on all NICs", "peer", p.name, "ours", ours)
	}
	p.otherMode = now
}

// On an uplink over UDP a peer may move: its host gets another address, or a NAT in front of it
// another address or port. The shard notices that by a packet that is authentic, and newer than
// those before it, since a copy proves nothing. The core then asks the peer, and tells all shards
// (Orders.SetPeer).
//
//   - A peer that is configured with an address keeps its port wherever it goes. Its packets come
//     from other ports too: each path has one.
//   - A peer without one is behind NAT. It sends from one port, and is where its last packet came
//     from.

// minStay is the least time between two moves of a peer that a shard reports.
const minStay = 100_000_000

// heardFrom takes note of where a packet of a peer came from. The packet, which came in d, is
// authentic and no copy. at is where packets to the peer go.
func (r *receiver) heardFrom(now falcon.Time, d *underlay.Datagram, id cm.PeerID, at netip.AddrPort) {
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
