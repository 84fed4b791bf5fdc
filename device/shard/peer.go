package shard

import (
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// peer describes another NIC.
type peer struct {
	host     cm.HostID
	underlay netip.Addr

	otherMode     falcon.Time // time of its last packet in another psp.mode; 0: none
	otherModeTold falcon.Time // time of the last log line about that
}

// peersOf returns the other NICs in the configuration.
func peersOf(cfg *config.Config) map[cm.HostID]*peer {
	peers := map[cm.HostID]*peer{}
	for i := range cfg.Peers {
		p := &cfg.Peers[i]
		peers[p.Host] = &peer{host: p.Host, underlay: p.Underlay}
	}
	return peers
}

// otherModeEvery is the least time between two log lines about one peer, and how long `vnic show
// nic` shows the note after the last packet.
const otherModeEvery = 60_000_000_000

// sealsOtherwise records that a peer, which is authenticated by its key, seals in another psp.mode
// than ours.
func (p *peer) sealsOtherwise(now falcon.Time, log *loglimit.Log, ours string) {
	if p == nil {
		return
	}
	if p.otherMode == 0 || now-p.otherModeTold >= otherModeEvery {
		p.otherModeTold = now
		log.Line(now, slog.LevelWarn, "a peer seals in another psp.mode: set it to the same on all NICs", "peer", p.host, "ours", ours)
	}
	p.otherMode = now
}
