package security

import (
	"cmp"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// Use is what a security association is for: one peer's packets of one tenant in one class.
type Use struct {
	Peer   cm.HostID
	Tenant uint32
	Class  cm.Class
}

// owner is the peer and the tenant in one number, and useOf the way back.
func (u Use) owner() uint64 { return uint64(u.Peer)<<32 | uint64(u.Tenant) }

func useOf(owner uint64, class cm.Class) Use {
	return Use{Peer: cm.HostID(owner >> 32), Tenant: uint32(owner), Class: class}
}

func compare(a, b Use) int {
	return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Class, b.Class))
}

// Cookie is the virtualization cookie of a tenant: its number in the upper half, tunnel 0 in the
// lower (docs/wire.md). It is also Falcon's PCID.
func Cookie(tenant uint32) uint64 { return uint64(tenant) << 32 }
