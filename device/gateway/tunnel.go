package gateway

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/device/security"
)

// reach names a tunnel.
type reach struct {
	peer   uint8
	tenant uint32
}

// Tunnel is where packets for a peer's functions in a tenant go.
type Tunnel struct {
	Peer     uint8
	Tenant   uint32
	Underlay netip.Addr // of the peer

	asked bool           // the peer for a key
	tx    *security.TxSA // nil: no key yet
}

// Sealed tells whether the peer has given us a key.
func (t *Tunnel) Sealed() bool { return t.tx != nil }
