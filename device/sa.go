package device

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Falcon in PSP tunnel mode, with the virtualization cookie. The crypt offset
// counts 4-byte words after the PSP base header: cookie 2, inner IPv4 5 or IPv6
// 10, the Falcon word with the CID 1 (Falcon §7.1).
const (
	cryptOffset     = 2 + underlay.InnerLen/4 + 1
	cryptOffsetIPv6 = 2 + underlay.InnerLen6/4 + 1
	pspHeader       = psp.BaseLen + psp.VCLen

	cryptOffsetPlain     = 2 // the cookie; all of a plain packet is encrypted
	cryptOffsetTransport = 1 // the Falcon word with the CID
)

// cookie is the virtualization cookie of a tenant: its number in the upper
// half, tunnel 0 in the lower (docs/wire.md). It is also Falcon's PCID.
func cookie(tenant uint32) uint64 { return uint64(tenant) << 32 }

// saKey names a security association's use: one peer's packets of one tenant
// in one class.
type saKey struct {
	peer   cm.HostID
	tenant uint32
	class  cm.Class
}

// owner is the peer and the tenant in one number.
func (k saKey) owner() uint64 { return uint64(k.peer)<<32 | uint64(k.tenant) }

func compareSAKeys(a, b saKey) int {
	return cmp.Or(cmp.Compare(a.peer, b.peer), cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.class, b.class))
}

// rxSA is what we issued for a peer to seal with.
type rxSA struct {
	sa         cm.SA
	generation uint32
	previous   uint32      // SPI that sa replaced, still accepted; 0: none
	dropAt     falcon.Time // when it is not any more; never until the peer has confirmed sa
}

// rxSAs issues receive SAs, one per peer, tenant and class, and remembers them
// until the peer has restarted: then its clock, which its nonces are made of,
// may have started over, and the key must not be used again.
type rxSAs struct {
	db      *psp.RxSADB
	version uint8
	current map[saKey]*rxSA
	log     *keyLog
}

func (r *rxSAs) get(k saKey) (*rxSA, error) {
	if sa := r.current[k]; sa != nil {
		return sa, nil
	}
	if len(r.current) >= maxRxSAs/2 { // a rotation issues another for each
		return nil, fmt.Errorf("%w: keys for %d peers, tenants and classes", psp.ErrFull, len(r.current))
	}
	sa := &rxSA{dropAt: never}
	if err := r.issue(sa, k); err != nil {
		return nil, err
	}
	r.current[k] = sa
	return sa, nil
}

// issue puts a new key of the current generation into sa.
func (r *rxSAs) issue(sa *rxSA, k saKey) error {
	spi, key, err := r.db.IssueTo(r.version, psp.Class(k.class), k.owner())
	if err != nil {
		return err
	}
	sa.sa = cm.SA{Version: r.version, SPI: spi, Key: key}
	sa.generation = r.db.Generation().Current
	r.log.sa("rx", k, &sa.sa)
	return nil
}

// unsettled counts the uses whose previous key is still accepted.
func (r *rxSAs) unsettled() (n int) {
	for _, sa := range r.current {
		if sa.previous != 0 {
			n++
		}
	}
	return n
}

func (r *rxSAs) forget(k saKey) {
	sa := r.current[k]
	r.db.Forget(sa.sa.SPI)
	r.db.Forget(sa.previous)
	delete(r.current, k)
}

func (r *rxSAs) forgetPeer(peer cm.HostID) {
	for k := range r.current {
		if k.peer == peer {
			r.forget(k)
		}
	}
}

// keys returns the uses in an order that a replay repeats.
func (r *rxSAs) keys() []saKey { return slices.SortedFunc(maps.Keys(r.current), compareSAKeys) }

// txSA is the transmit SA of all connections to one peer in one tenant: no
// nonce is used twice, and a new key serves all of them at once. It stays when
// the last connection goes, with the IVs it has used.
type txSA struct {
	*psp.TxSA
	key   saKey
	asked bool // for another one
}

type txSAs struct {
	current map[saKey]*txSA
	limit   uint64 // packets per key
	direct  bool   // Falcon's packets in transport mode
	log     *keyLog
}

// get returns the transmit SA for what the connection manager agreed.
func (t *txSAs) get(p *cm.Params) (*txSA, error) {
	k := saKey{p.Peer, p.Tenant, cm.ClassFalcon}
	tx := t.current[k]
	if tx == nil {
		tx = &txSA{key: k}
	}
	if err := t.renew(tx, cm.SA{Version: p.TxVersion, SPI: p.TxSPI, Key: p.TxKey}); err != nil {
		return nil, err
	}
	t.current[k] = tx
	return tx, nil
}

// forgetPeer drops what a peer gave us that has lost it with its memory: its
// new process may issue the same SPIs with other keys.
func (t *txSAs) forgetPeer(peer cm.HostID) {
	maps.DeleteFunc(t.current, func(k saKey, _ *txSA) bool { return k.peer == peer })
}

// renew makes tx seal with sa from now on.
func (t *txSAs) renew(tx *txSA, sa cm.SA) error {
	old := tx.TxSA
	if old != nil && old.SPI() == sa.SPI {
		return nil // told twice; a second one of it would begin its IVs anew
	}
	var n *psp.TxSA
	var err error
	switch {
	case tx.key.class == cm.ClassGateway:
		n, err = psp.NewGatewayTxSA(sa.Version, sa.SPI, sa.Key, cookie(tx.key.tenant), cryptOffsetPlain)
	case t.direct:
		n, err = psp.NewTransportTxSA(sa.Version, sa.SPI, sa.Key, cryptOffsetTransport)
	default:
		n, err = psp.NewTxSA(sa.Version, sa.SPI, sa.Key, cookie(tx.key.tenant), cryptOffset)
	}
	if err != nil {
		return err
	}
	n.SetPacketLimit(t.limit)
	if old != nil {
		n.Follow(old)
	}
	tx.TxSA, tx.asked = n, false
	t.log.sa("tx", tx.key, &sa)
	return nil
}

// connKeys are the keys of one connection.
type connKeys struct {
	guard psp.Guard
	tx    *txSA
}

func keysOf(c *conn.Slot) *connKeys { return c.Keys.(*connKeys) }

// Release implements conn.Keys.
func (*connKeys) Release() {}

// connectionKeys gives connections their keys.
type connectionKeys struct{ s *Shard }

// Protect implements conn.KeyStore.
func (c connectionKeys) Protect(p *cm.Params) (conn.Keys, error) {
	s := c.s
	rx := s.rxSAs.current[saKey{p.Peer, p.Tenant, cm.ClassFalcon}]
	if rx == nil {
		return nil, errors.New("the peer restarted while connecting")
	}
	tx, err := s.txSAs.get(p)
	if err != nil {
		return nil, fmt.Errorf("transmit key: %w", err)
	}
	return &connKeys{tx: tx, guard: psp.NewGuard(psp.GuardConfig{
		SPI: rx.sa.SPI, Previous: rx.previous, Generation: rx.generation, PCID: cookie(p.Tenant), AnyPCID: s.txSAs.direct,
		Margin: int64(s.cfg.PSP.ReplayMargin), RemoteTime: p.RemoteTime,
	})}, nil
}

// eachProtected calls f for the keys of each connection of one use.
func (s *Shard) eachProtected(k saKey, f func(*connKeys)) {
	s.table.Each(func(c *conn.Slot) {
		if c.Conn == nil {
			return
		}
		if keys := keysOf(c); keys.tx.key == k {
			f(keys)
		}
	})
}
