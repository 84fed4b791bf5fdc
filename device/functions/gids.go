package functions

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// address is the address of a function in its tenant.
type address struct {
	tenant uint32
	addr   netip.Addr
}

// gids holds the addresses that drivers have added with AddGID, besides those in the settings.
type gids struct {
	owner map[address]pfvf.ID
	of    map[pfvf.ID][]address // in the order they were added
	in    map[uint32]int        // number in each tenant
}

func newGIDs() gids {
	return gids{map[address]pfvf.ID{}, map[pfvf.ID][]address{}, map[uint32]int{}}
}

func (g *gids) clone() gids {
	c := gids{maps.Clone(g.owner), make(map[pfvf.ID][]address, len(g.of)), maps.Clone(g.in)}
	for id, list := range g.of {
		c.of[id] = slices.Clone(list)
	}
	return c
}

// add gives a function an address that no function has.
func (g *gids) add(id pfvf.ID, a address) {
	g.owner[a] = id
	g.of[id] = append(g.of[id], a)
	g.in[a.tenant]++
}

// drop removes some of a function's addresses.
func (g *gids) drop(id pfvf.ID, which func(address) bool) {
	left := slices.DeleteFunc(g.of[id], func(a address) bool {
		if !which(a) {
			return false
		}
		delete(g.owner, a)
		if g.in[a.tenant]--; g.in[a.tenant] == 0 {
			delete(g.in, a.tenant)
		}
		return true
	})
	if g.of[id] = left; len(left) == 0 {
		delete(g.of, id)
	}
}

// AddGID adds an address to a function in place of one that its driver added before (zero: none).
// The error is a *Refusal.
func (r *Registry) AddGID(id pfvf.ID, gid, instead [16]byte) error {
	a, old := r.at(id, gid), r.at(id, instead)
	if err := r.addable(id, a, old); err != nil {
		return err
	}
	r.gids.drop(id, func(b address) bool { return b == old })
	r.gids.add(id, a)
	return nil
}

// DelGID removes an address that a function's driver added, if it did.
func (r *Registry) DelGID(id pfvf.ID, gid [16]byte) {
	a := r.at(id, gid)
	r.gids.drop(id, func(b address) bool { return b == a })
}

// GIDs calls f for each address that a function's driver added.
func (r *Registry) GIDs(id pfvf.ID, f func(tenant uint32, gid [16]byte)) {
	for _, a := range r.gids.of[id] {
		f(a.tenant, a.addr.As16())
	}
}

// at returns a GID of a function as an address in its tenant.
func (r *Registry) at(id pfvf.ID, gid [16]byte) address {
	return address{r.Settings(id).Tenant, netip.AddrFrom16(gid).Unmap()}
}

// addable checks that a function's driver may add an address in place of an old one: no other
// function of the tenant has it, by its driver or by the configuration, enabled or not, the
// configuration gives it to no peer, and there is room to tell peers.
func (r *Registry) addable(id pfvf.ID, a, old address) error {
	if other, taken := r.taken.Address(a.tenant, a.addr); taken && (other != id.String() || a.addr == r.Settings(id).Address) {
		return Refuse(abi.StatusAddressInUse, "%s: GID %s of tenant %d is the address of %s", id, a.addr, a.tenant, other)
	}
	if other, taken := r.gids.owner[a]; taken {
		return Refuse(abi.StatusAddressInUse, "%s: GID %s of tenant %d was added by the driver of %s", id, a.addr, a.tenant, other)
	}
	if by, has := r.gids.owner[old]; has && by == id {
		return nil // no more addresses than before
	}
	for i := range r.peers {
		p := &r.peers[i]
		if n, further := r.shared(p.Tenants); slices.Contains(p.Tenants, a.tenant) && n.functions+further >= cm.MaxEndpoints {
			return Refuse(abi.StatusNoResources, "%s: GID %s: NIC %s is told of %d functions and GIDs already, which is all there can be in the tenants shared with it", id, a.addr, p.Name, cm.MaxEndpoints)
		}
	}
	return nil
}
