package shard

import (
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// newSecurity makes what the shard opens and seals with.
func (s *Shard) newSecurity() {
	s.encap = security.Tunnel{}
	if s.cfg.PSP.Mode == config.PSPTransport {
		s.encap = security.Transport{}
	}
	s.opener = s.core.Opener()
}

// takeKey seals with what a peer gave us, where something is sealed for it.
func (s *Shard) takeKey(u security.Use, sa cm.SA) error {
	if u.Class == cm.ClassGateway {
		return s.plain.gw.TakeKey(s.txSAs, u, sa)
	}
	if !s.txSAs.Has(u) {
		return nil
	}
	_, err := s.txSAs.Give(u, sa)
	return err
}

// keyStore gives connections to other NICs their security.
type keyStore struct{ s *Shard }

// Protect implements conn.KeyStore.
func (x keyStore) Protect(p *cm.Params, issued conn.Receiving) (conn.Keys, error) {
	tx, err := x.s.txSAs.Give(security.Use{Peer: p.Peer, Shard: p.Shard, Tenant: p.Tenant}, cm.SA{Version: p.TxVersion, SPI: p.TxSPI, Key: p.TxKey})
	if err != nil {
		return nil, fmt.Errorf("transmit key: %w", err)
	}
	r := issued.(*security.Receive)
	k := security.NewSession(*r, tx, netip.AddrFrom16(p.LocalGID).Unmap().Is6())
	*r = security.Receive{} // the session releases it
	return k, nil
}

func sessionOf(c *conn.Slot) *security.Session { return c.Keys.(*security.Session) }
