package config

import (
	"fmt"
	"net/netip"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Owners says to which peer the configuration gives each address of a tenant. It does not contain
// the addresses of this NIC's own functions, which change at run time.
type Owners struct {
	peers map[tenantAddr]string // names of peers
	lists map[peerTenant]bool   // peers whose functions in a tenant are listed: they may have no others
}

type peerTenant struct {
	peer   string
	tenant uint32
}

// OwnersOf returns the owners of the addresses that are listed for peers.
func OwnersOf(peers []Peer) *Owners {
	o := &Owners{peers: map[tenantAddr]string{}, lists: map[peerTenant]bool{}}
	for i := range peers {
		p := &peers[i]
		for _, f := range p.Functions {
			o.peers[tenantAddr{f.Tenant, f.Address}] = p.Name()
			o.lists[peerTenant{p.Name(), f.Tenant}] = true
		}
	}
	return o
}

// Refuses returns why a peer, whose functions are of a host, may not have an address of a shared
// tenant; "": it may. A link-local address is not listed: it belongs to the function whose MAC it
// contains.
func (o *Owners) Refuses(peer string, host uint8, tenant uint32, a netip.Addr) (why string) {
	if other, given := o.peers[tenantAddr{tenant, a}]; given && other != peer {
		return "peers[] gives it to host " + other
	} else if given {
		return ""
	}
	if a.Is6() && a.IsLinkLocalUnicast() {
		if h, derived := hostOfLinkLocal(a); derived && h != host {
			return fmt.Sprintf("the MAC in it is that of a function of host %d", h)
		}
		return ""
	}
	if o.lists[peerTenant{peer, tenant}] {
		return "it is not listed among this peer's functions in peers[], as others of the tenant are"
	}
	return ""
}

// hostOfLinkLocal returns the host whose function has a link-local address, if the address contains
// a derived MAC (FunctionMAC).
func hostOfLinkLocal(a netip.Addr) (host uint8, ok bool) {
	b := a.As16()
	mac := MAC{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
	host = mac[3]
	is := FunctionMAC(host, mac[4]>>4, uint16(mac[4]&0xf)<<8|uint16(mac[5]))
	return host, is == mac && pfvf.LinkLocal(mac) == b
}
