package shard

import (
	"io"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/local"
)

// newConnections makes the shard's table of connections, the connection manager, and what stands
// between both and the functions.
func (s *Shard) newConnections(rand io.Reader) (err error) {
	s.table = conn.NewTable(conn.TableConfig{
		Shard: s.index, Slots: conn.MaxSlots, Transport: s.falcon, Loopbacks: rdma.Wire[*local.Engine](s.rdma), Keys: keyStore{s},
		Credits: connectionCredits(s.cfg), Log: s.log.Line,
	})
	cids := conn.NewCIDs(s.index, conn.MaxSlots)
	c := conn.ManagerConfig{
		Host: s.cfg.NIC.Host, MTU: s.cfg.RDMA.MTU, CIDs: cids, Keys: peerKeys{s}, Ports: s, Neighbours: s.underlay, Log: s.log.Line,
	}
	for i := range s.cfg.Peers {
		p := &s.cfg.Peers[i]
		s.peers[p.Host] = &peer{cfg: p, host: p.Host, underlay: p.Underlay}
		c.Peers = append(c.Peers, cm.Peer{Host: p.Host, Underlay: p.Underlay, Tenants: p.Tenants})
	}
	if s.cm, err = conn.NewManager(c, rand); err != nil {
		return err
	}
	s.txSAs = security.NewTxSAs(s.encap, s.cm)
	s.keys.Connect(s.cm)
	s.conns = conn.NewFunctions(conn.FunctionsConfig{
		MTU: s.cfg.RDMA.MTU, Table: s.table, CIDs: cids, Manager: s.cm, Links: s.rof, RDMA: s.rof, Wires: &s.roce, Log: s.log.Line,
	})
	s.cm.Serve(s.conns)
	return nil
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

// announce tells the connection manager, and it the peers, which functions there
// are and which addresses their ports have.
func (s *Shard) announce() error {
	if err := s.cm.SetEndpoints(s.funcs.endpoints()); err != nil {
		return err
	}
	return s.cm.SetPorts(s.plain.portAddresses())
}
