package security

import (
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// Use is what a security association is for.
type Use = cm.Use

// owner packs the peer, its shard and the tenant into one number; useOf unpacks it.
func owner(u Use) uint64 { return uint64(u.Peer)<<40 | uint64(u.Shard)<<32 | uint64(u.Tenant) }

func useOf(owner uint64, class cm.Class) Use {
	return Use{Peer: cm.HostID(owner >> 40), Shard: uint8(owner >> 32), Tenant: uint32(owner), Class: class}
}

// Cookie returns the virtualization cookie of a tenant: its number in the upper half, tunnel 0 in
// the lower half (docs/wire.md). It is also Falcon's PCID.
func Cookie(tenant uint32) uint64 { return uint64(tenant) << 32 }

// nextHeader returns PSP's next header value for an IP packet.
func nextHeader(v6 bool) uint8 {
	if v6 {
		return psp.NextHeaderIPv6
	}
	return psp.NextHeaderIPv4
}
