package shard

import (
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// encapOf returns how Falcon packets are encapsulated in PSP.
func encapOf(cfg *config.Config) security.Encap {
	if cfg.PSP.Mode == config.PSPTransport {
		return security.Transport{}
	}
	return security.Tunnel{}
}

// keyStore gives connections to other NICs their keys.
type keyStore struct{ tx *security.TxSAs }

// Protect implements conn.KeyStore.
func (x keyStore) Protect(p *cm.Params, issued conn.Receiving) (conn.Keys, error) {
	tx, err := x.tx.Give(security.Use{Peer: p.Peer, Shard: p.Shard, Tenant: p.Tenant}, cm.SA{Version: p.TxVersion, SPI: p.TxSPI, Key: p.TxKey})
	if err != nil {
		return nil, fmt.Errorf("transmit key: %w", err)
	}
	r := issued.(*security.Receive)
	k := security.NewSession(*r, tx, netip.AddrFrom16(p.LocalGID).Unmap().Is6())
	*r = security.Receive{} // the session releases it
	return k, nil
}

func sessionOf(c *conn.Slot) *security.Session { return c.Keys.(*security.Session) }
