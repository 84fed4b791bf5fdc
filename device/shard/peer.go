package shard

import (
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/loglimit"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// peer is another NIC.
type peer struct {
	host     cm.HostID
	underlay netip.Addr

	otherMode     falcon.Time // of its last packet in another psp.mode; 0: none
	otherModeTold falcon.Time // when the log said so last
}

// peersOf are the other NICs that the configuration names.
func peersOf(cfg *config.Config) map[cm.HostID]*peer {
	peers := map[cm.HostID]*peer{}
	for i := range cfg.Peers {
		p := &cfg.Peers[i]
		peers[p.Host] = &peer{host: p.Host, underlay: p.Underlay}
	}
	return peers
}

// otherModeEvery is the least time between two lines of the log about one peer, and how long vnic
// show nic says it after the last packet.
const otherModeEvery = 60_000_000_000

// sealsOtherwise notes that a peer, which is proved by its key, seals in the psp.mode that is not
// ours.
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
