package controller

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon/credit"
)

// credits holds the credit pools of the NIC and the host. The shards' trees lease from them.
type credits struct{ nic, host *credit.Pool }

func newCredits(c *config.Config, shards int) credits {
	return credits{credit.NewPool(c.Credits.NIC.Cost(), shards), credit.NewPool(c.Credits.Host.Cost(), shards)}
}

// Credits returns the shard's credit node for the host, whose parent is the node for the NIC. It
// belongs to the shard.
func (l *Line) Credits() *credit.Node {
	c := &l.core.credits
	return c.host.Node(c.nic.Node(nil, l.shard), l.shard)
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
