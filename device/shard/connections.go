package shard

import (
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/local"
)

// newConnections makes the shard's table of connections, and what stands between it, the functions
// and the connection manager.
func (s *Shard) newConnections() {
	s.table = conn.NewTable(conn.TableConfig{
		Shard: s.index, Slots: conn.MaxSlots, Transport: s.falcon, Loopbacks: rdma.Wire[*local.Engine](s.rdma), Keys: keyStore{s},
		Credits: connectionCredits(s.cfg), Log: s.log.Line,
	})
	for i := range s.cfg.Peers {
		p := &s.cfg.Peers[i]
		s.peers[p.Host] = &peer{cfg: p, host: p.Host, underlay: p.Underlay}
	}
	s.txSAs = security.NewTxSAs(s.encap, s.core)
	s.conns = conn.NewFunctions(conn.FunctionsConfig{
		MTU: s.cfg.RDMA.MTU, Table: s.table, Manager: s.core, Links: s.rof, RDMA: s.rof, Wires: &s.roce, Log: s.log.Line,
	})
}

// connectionCredits is the most one connection holds.
func connectionCredits(cfg *config.Config) credit.Cost {
	c := cfg.Credits.Connection.Cost()
	for i, v := range c {
		if v == 0 {
			c[i] = credit.Unlimited
		}
	}
	return c
}
