package functions

import (
	"net/netip"
	"slices"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
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
