package device

import (
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Falcon in PSP tunnel mode, IPv4 in IPv4, with the virtualization cookie.
const (
	// cryptOffset counts 4-byte words after the PSP base header: cookie 2,
	// inner IPv4 5, the Falcon word with the CID 1 (Falcon §7.1).
	cryptOffset = 8
	pspHeader   = psp.BaseLen + psp.VCLen
)

// cookie is the virtualization cookie of a tenant: its number in the upper
// half, tunnel 0 in the lower (docs/wire.md). It is also Falcon's PCID.
func cookie(tenant uint32) uint64 { return uint64(tenant) << 32 }

// saKey names a security association's use: one peer's packets of one tenant.
type saKey struct {
	peer   cm.HostID
	tenant uint32
}

// rxSA is what we issued for a peer to seal with.
type rxSA struct {
	sa         cm.SA
	generation uint32
}

// rxSAs issues receive SAs, one per peer and tenant, and remembers them until
// the peer has restarted: then its clock, which its nonces are made of, may
// have started over, and the key must not be used again.
type rxSAs struct {
	db      *psp.RxSADB
	version uint8
	current map[saKey]*rxSA
}

func (r *rxSAs) get(peer cm.HostID, tenant uint32) (*rxSA, error) {
	k := saKey{peer, tenant}
	if sa := r.current[k]; sa != nil {
		return sa, nil
	}
	spi, key, err := r.db.Issue(r.version)
	if err != nil {
		return nil, err
	}
	sa := &rxSA{sa: cm.SA{Version: r.version, SPI: spi, Key: key}, generation: r.db.Generation().Current}
	r.current[k] = sa
	return sa, nil
}

func (r *rxSAs) forget(peer cm.HostID) {
	for k, sa := range r.current {
		if k.peer == peer {
			r.db.Forget(sa.sa.SPI)
			delete(r.current, k)
		}
	}
}

// txSA is a transmit SA shared by all connections that the peer gave the same
// SPI, so that no nonce is used twice.
type txSA struct {
	*psp.TxSA
	owner *txSAs
	key   txKey
	users int
}

type txKey struct {
	saKey
	version uint8
	spi     uint32
}

type txSAs struct{ current map[txKey]*txSA }

// get returns the transmit SA for what the connection manager agreed, counting
// one more user.
func (t *txSAs) get(p *cm.Params) (*txSA, error) {
	k := txKey{saKey{p.Peer, p.Tenant}, p.TxVersion, p.TxSPI}
	if sa := t.current[k]; sa != nil {
		sa.users++
		return sa, nil
	}
	sa, err := psp.NewTxSA(p.TxVersion, p.TxSPI, p.TxKey, cookie(p.Tenant), cryptOffset)
	if err != nil {
		return nil, err
	}
	tx := &txSA{TxSA: sa, owner: t, key: k, users: 1}
	t.current[k] = tx
	return tx, nil
}

// release gives up one use. An SA that is set up again later goes on with
// later nonces, since they are the clock.
func (t *txSA) release() {
	t.users--
	if t.users == 0 {
		delete(t.owner.current, t.key)
	}
}
