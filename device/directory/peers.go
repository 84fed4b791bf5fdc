package directory

import (
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
)

// Self is what a NIC is, as far as it decides about its peers.
type Self struct {
	Name      string
	Functions []Function // that it offers
	Held      []Address  // of all its functions, also of those that are disabled
	Leaving   []Address  // of those that another host has now, and that the NIC gives up in a moment
}

// GiveUp takes a function that was moved to another host out of what a NIC is, with its addresses. Lists that others
// have, too, stay as they are.
func (s *Self) GiveUp(moved *Function) {
	s.Functions = slices.DeleteFunc(slices.Clone(s.Functions), func(f Function) bool { return f.Name == moved.Name })
	s.Held = slices.DeleteFunc(slices.Clone(s.Held), func(a Address) bool { return a.Tenant == moved.Tenant && slices.Contains(moved.Addresses, a.Addr) })
}

// Peers returns the peers of a NIC: the hosts that share a tenant with it, each with its addresses
// there. A tenant is a host's if it has an address in it, is granted one by name, or a function of it
// moves there; so a host has its links before it has the function. What is refused of any host is in the
// second list.
func (v *View) Peers(self *Self) (peers []config.Peer, refused []Refusal) {
	hosts, refused := v.Decide()
	tenants := map[uint32]bool{}
	for _, f := range self.Functions {
		tenants[f.Tenant] = true
	}
	for i := range hosts {
		if hosts[i].Name == self.Name {
			for _, a := range hosts[i].Granted {
				tenants[a.Tenant] = true
			}
			for _, t := range hosts[i].Coming {
				tenants[t] = true
			}
		}
	}
	held := map[Address]bool{}
	for _, a := range self.Held {
		held[a] = true
	}
	own := v.Grant(self.Name)
	for i := range hosts {
		h := &hosts[i]
		if h.Name == self.Name {
			continue
		}
		p := config.Peer{Name: h.Name, Underlay: config.Place{AddrPort: h.Underlay}, CM: h.CM, All: true}
		for _, a := range slices.Concat(h.Addresses, h.Granted) {
			if !tenants[a.Tenant] {
				continue
			}
			if slices.Contains(self.Leaving, a) || own != nil && own.incoming(a) { // it is here, still or soon
				h.Coming = append(h.Coming, a.Tenant) // the link stays
				continue
			}
			if held[a] {
				refused = append(refused, Refusal{h.Name, a.String(), "a function of this NIC has it, too", HostKey(v.prefix, h.Name)})
				continue
			}
			if !slices.Contains(p.Tenants, a.Tenant) {
				p.Tenants = append(p.Tenants, a.Tenant)
			}
			p.Functions = append(p.Functions, config.PeerFunction{Tenant: a.Tenant, Address: a.Addr})
		}
		for _, t := range h.Coming {
			if tenants[t] && !slices.Contains(p.Tenants, t) {
				p.Tenants = append(p.Tenants, t)
			}
		}
		if len(p.Tenants) > 0 {
			slices.Sort(p.Tenants)
			peers = append(peers, p)
		}
	}
	return peers, refused
}

// Outgoing returns the functions of a NIC that other hosts have been granted by name: they were moved there.
func (v *View) Outgoing(self *Self) (list []Function) {
	granted, _ := v.grantedByName()
	own := v.Grant(self.Name)
	for _, f := range self.Functions {
		if slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool {
			at := Address{f.Tenant, a}
			to, ok := granted[at]
			return ok && to != self.Name && (own == nil || !own.incoming(at))
		}) {
			list = append(list, f)
		}
	}
	return list
}

// Incoming returns the functions that were moved to a NIC and that it does not have yet.
func (v *View) Incoming(self *Self) (list []Move) {
	g := v.Grant(self.Name)
	if g == nil || g.Revoked {
		return nil
	}
	for _, m := range g.Moves {
		if len(m.Addresses) > 0 && g.Named(Address{m.Tenant, m.Addresses[0]}) && !m.Among(self.Functions) {
			list = append(list, m)
		}
	}
	return list
}
