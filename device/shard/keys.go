package shard

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// newSecurity makes the keys, and what the shard opens and seals with them. Only once the connection
// manager is there is any key given or taken.
func (s *Shard) newSecurity(rand io.Reader) (err error) {
	transport := s.cfg.PSP.Mode == config.PSPTransport
	s.encap = security.Tunnel{}
	if transport {
		s.encap = security.Transport{}
	}
	s.keys, err = security.NewKeys(security.Config{
		Version: s.cfg.PSP.Version, Shards: 1, Transport: transport, ReplayMargin: s.cfg.PSP.ReplayMargin, RotateEvery: *s.cfg.PSP.RotateEvery, Rand: rand,
		Needed: s.keyNeeded, Log: s.log.Line,
	})
	if err != nil {
		return err
	}
	s.opener = s.keys.Opener(s.index)
	return nil
}

// keyNeeded tells whether a peer is there to be told of another key, or a port has a tunnel.
func (s *Shard) keyNeeded(u security.Use) bool {
	return s.cm.Reachable(u.Peer) || u.Class == cm.ClassGateway && s.plain.routes.Reaches(u.Peer, u.Tenant)
}

// peerKeys has the keys that are agreed with other NICs.
type peerKeys struct{ s *Shard }

// RxSA implements conn.PeerKeys.
func (k peerKeys) RxSA(u cm.Use) (cm.SA, error) {
	return k.s.keys.Issue(u)
}

// ForgetSAs implements conn.PeerKeys.
func (k peerKeys) ForgetSAs(host cm.HostID) {
	k.s.keys.ForgetPeer(host)
	k.s.txSAs.ForgetPeer(host)
	k.s.plain.gw.ForgetKeys(host)
}

// HandleKeys implements conn.PeerKeys.
func (k peerKeys) HandleKeys(now falcon.Time, o *cm.Output) {
	s, u := k.s, o.Use
	switch o.Kind {
	case cm.OutRekey:
		if err := s.takeKey(u, o.SA); err != nil {
			s.log.Line(now, slog.LevelError, "new key not usable", "peer", u.Peer, "tenant", u.Tenant, "class", u.Class.String(), "err", err)
		}
	case cm.OutRekeyed:
		s.keys.Confirmed(now, u, o.SA.SPI, o.Time)
	case cm.OutRekeyWanted:
		s.keys.Asked(now, u, o.SA.SPI)
	}
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
func (x keyStore) Protect(p *cm.Params) (conn.Keys, error) {
	r, ok := x.s.keys.Receive(security.Use{Peer: p.Peer, Shard: p.PeerShard, Tenant: p.Tenant}, p.RemoteTime)
	if !ok {
		return nil, errors.New("the peer restarted while connecting")
	}
	tx, err := x.s.txSAs.Give(security.Use{Peer: p.Peer, Shard: p.Shard, Tenant: p.Tenant}, cm.SA{Version: p.TxVersion, SPI: p.TxSPI, Key: p.TxKey})
	if err != nil {
		r.Release()
		return nil, fmt.Errorf("transmit key: %w", err)
	}
	return security.NewSession(r, tx, netip.AddrFrom16(p.LocalGID).Unmap().Is6()), nil
}

func sessionOf(c *conn.Slot) *security.Session { return c.Keys.(*security.Session) }
