package config

import (
	"net/netip"
	"strconv"
)

// Owners says to which peer the configuration gives each address of a tenant. It does not contain
// the addresses of this NIC's own functions, which change at run time.
type Owners struct {
	peers map[tenantAddr]string // names of peers
	lists map[peerTenant]bool   // peers whose functions in a tenant are listed: they may have no others
	nics  map[prefix]string     // names, by what the MACs of their functions begin with
}

type peerTenant struct {
	peer   string
	tenant uint32
}

// OwnersOf returns the owners of the addresses that are listed for the peers of a NIC.
func OwnersOf(nic string, peers []Peer) *Owners {
	o := &Owners{peers: map[tenantAddr]string{}, lists: map[peerTenant]bool{}, nics: map[prefix]string{prefixOf(nic): nic}}
	for i := range peers {
		p := &peers[i]
		o.nics[prefixOf(p.Name)] = p.Name
		for _, f := range p.Functions {
			o.peers[tenantAddr{f.Tenant, f.Address}] = p.Name
		}
		for _, t := range p.Tenants {
			o.lists[peerTenant{p.Name, t}] = p.lists(t)
		}
	}
	return o
}

// Refuses returns why a peer may not have an address of a shared tenant; "": it may. A link-local
// address is not listed: it belongs to the NIC from whose name the MAC in it is derived.
func (o *Owners) Refuses(peer string, tenant uint32, a netip.Addr) (why string) {
	if other, given := o.peers[tenantAddr{tenant, a}]; given && other != peer {
		return "peers[] gives it to NIC " + other
	} else if given {
		return ""
	}
	if a.Is6() && a.IsLinkLocalUnicast() {
		if nic := o.nicOf(a); nic != "" && nic != peer {
			return "the MAC in it belongs to a function of NIC " + nic
		}
		return ""
	}
	if o.lists[peerTenant{peer, tenant}] {
		return "it is not listed among this peer's functions in peers[], as others of the tenant are"
	}
	return ""
}

// nicOf returns the NIC whose function has a link-local address, if the address contains a MAC that
// is derived from the name of this NIC, of a peer, or from a number; otherwise "".
func (o *Owners) nicOf(a netip.Addr) string {
	p, ok := prefixIn(a)
	switch {
	case !ok:
		return ""
	case o.nics[p] == "" && p == prefixOf(strconv.Itoa(int(p[3]))):
		return strconv.Itoa(int(p[3]))
	}
	return o.nics[p]
}
