package controller

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/credit"
)

// credits are the pools of the NIC and of its host, which the trees of its shards lease from.
type credits struct{ nic, host *credit.Pool }

func newCredits(c *config.Config, shards int) credits {
	return credits{credit.NewPool(c.Credits.NIC.Cost(), shards), credit.NewPool(c.Credits.Host.Cost(), shards)}
}

// Credits is the shard's tree at the level of the host; the NIC's is above it. It is the shard's.
func (l *Line) Credits() *credit.Node {
	c := &l.core.credits
	return c.host.Node(c.nic.Node(nil, l.shard), l.shard)
}

// addCredits adds a shard's nodes to those of the shards before: what is used and refused. Limits
// are those of the whole.
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
