package shard

import (
	"maps"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// maxProbes is the most probes of one peer that a shard takes in a second. A search sends up to
// 110 of them in a second, and there are fewer answers than those.
const maxProbes = 256

// probes sends the probes that the core asks for, answers those of peers, and reports their answers
// to the core (package pathmtu). It seals with the gateway's keys, whether or not there is a port.
//
// A probe must not travel in a superframe, which software passes on however long its packets are. So
// probes have a source port of their own, and the core sends shorter ones first: only the last
// packet of a superframe may have another length, a shorter one.
type probes struct {
	uplink   *uplink
	guard    guard
	drops    *dropCounts
	core     Core
	peers    map[cm.PeerID]*peer
	keys     *security.TxSAs
	asked    map[security.Use]bool // the peer was asked for a key
	shard    uint8
	overhead int // bytes around a packet of the gateway class
	packet   []byte

	short  int         // bytes of a sealed packet that is not long; without probes all are short
	recent cm.PeerID   // peer that the last long packet was sent to
	known  falcon.Time // until then the core need not be told of that peer again
}

// used takes note of a packet to a peer, with its length when sealed: while long ones are sent to it,
// the core has the path checked.
func (x *probes) used(now falcon.Time, to cm.PeerID, sealed int) {
	if sealed <= x.short || to == x.recent && now < x.known {
		return
	}
	p := x.peers[to]
	if p == nil {
		return
	}
	if p.pathUsed == 0 || now >= p.pathUsed+pathmtu.CheckEvery {
		p.pathUsed = now
		x.core.PathUsed(to)
	}
	x.recent, x.known = to, p.pathUsed+pathmtu.CheckEvery
}

// request sends a probe that the core asks for to a peer: one of p.Size bytes, or one without a size,
// which asks whether the peer is there, or shows that this NIC is.
func (x *probes) request(now falcon.Time, to cm.PeerID, at netip.AddrPort, tenant uint32, p pathmtu.Probe) {
	length := pathmtu.Length
	if p.Size != 0 {
		length = int(p.Size) - x.overhead
	}
	x.send(now, to, at, tenant, p, length)
}

// send sends a probe as an IP packet of length bytes, to the address at or, if that is not valid, to
// where the peer is. Without a key it asks for one: whoever waits for the probe asks again.
func (x *probes) send(now falcon.Time, to cm.PeerID, at netip.AddrPort, tenant uint32, p pathmtu.Probe, length int) {
	u := security.Use{Peer: to, Shard: x.shard, Tenant: tenant, Class: cm.ClassGateway}
	peer, key := x.peers[to], x.keys.Of(u)
	if peer == nil {
		return // it was removed
	}
	if key == nil {
		if !x.asked[u] {
			x.asked[u] = true
			_ = x.core.RequestRekey(u, 0)
		}
		return
	}
	b := x.uplink.tx.Slot()
	if b == nil {
		return // the queue is full: lost like any other packet
	}
	x.packet = p.Append(x.packet[:0], length)
	sealed, err := key.SealPlain(now, b[x.uplink.underlay.Headroom():], x.packet)
	if err != nil {
		x.drops.count(dropTxSeal)
		return
	}
	if !at.IsValid() {
		at = peer.underlay
	}
	x.uplink.send(now, outer{to: at, srcPort: probePort}, b, 0, sealed)
}

// take takes an opened packet of the gateway class if it is a probe (ok). from is its sender; nil: it
// was dropped.
func (x *probes) take(now falcon.Time, o *security.Opened) (from *peer, ok bool) {
	packet, ok := o.Plain()
	if !ok || !pathmtu.IsProbe(packet) {
		return nil, false
	}
	defer x.guard.survive(now, "a probe of a path", packet)
	from = x.peers[o.Use.Peer]
	p, ok := pathmtu.Parse(packet)
	if !ok || from == nil || !o.OwnCookie() || !from.mayProbe(now) {
		x.drops.count(dropProbe)
		return nil, true
	}
	switch p.Kind {
	case pathmtu.Answer:
		x.core.PathAnswered(from.id, int(p.Size), p.Round)
	case pathmtu.Request:
		x.send(now, from.id, netip.AddrPort{}, o.Use.Tenant, pathmtu.Probe{Kind: pathmtu.Answer, Size: p.Size, Round: p.Round}, pathmtu.Length)
	}
	return from, true
}

// takeKey starts sealing with a peer's new key, if it was asked for.
func (x *probes) takeKey(u security.Use, sa cm.SA) error {
	if !x.asked[u] {
		return nil
	}
	_, err := x.keys.Give(u, sa)
	return err
}

// forgetKeys makes the next probe ask a peer for a key: it lost the ones that it gave.
func (x *probes) forgetKeys(peer cm.PeerID) {
	maps.DeleteFunc(x.asked, func(u security.Use, _ bool) bool { return u.Peer == peer })
}

// mayProbe reports whether another probe of the peer is taken in this second, and counts it.
func (p *peer) mayProbe(now falcon.Time) bool {
	if now-p.probesSince >= 1e9 {
		p.probesSince, p.probes = now, 0
	}
	p.probes++
	return p.probes <= maxProbes
}
