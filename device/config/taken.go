package config

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
)

// Taken records who uses things that must be unique: names of devices and paths of sockets, MACs,
// and addresses of tenants. Functions are checked against it one after another when a configuration
// is read, and by the same rules when a function is changed at run time.
type Taken struct {
	names     map[string]string
	macs      map[MAC]string
	addresses map[tenantAddr]string
}

// tenantAddr is an address in a tenant. It is unique in a fabric.
type tenantAddr struct {
	tenant uint32
	addr   netip.Addr
}

// Taken returns what objects other than functions use: the uplink, attachments, routers of tenants,
// and peers.
func (c *Config) Taken() *Taken {
	t := &Taken{map[string]string{}, map[MAC]string{}, map[tenantAddr]string{}}
	enter(t.macs, c.Uplink.MAC, "uplink")
	enter(t.names, c.Uplink.Name, "uplink")
	enter(t.names, c.Uplink.Bridge, "uplink.bridge")
	enter(t.names, c.Control, "control")
	for i := range c.Attach {
		enter(t.names, c.Attach[i].Socket, fmt.Sprintf("attach[%d]", i))
	}
	for i := range c.Tenants {
		for j, a := range c.Tenants[i].Routers {
			enter(t.addresses, tenantAddr{c.Tenants[i].Tenant, a}, fmt.Sprintf("tenants[%d].routers[%d]", i, j))
		}
	}
	for i := range c.Peers {
		t.PutPeer(&c.Peers[i])
	}
	return t
}

// PutPeer records the addresses that are listed for a peer.
func (t *Taken) PutPeer(p *Peer) {
	for _, f := range p.Functions {
		enter(t.addresses, tenantAddr{f.Tenant, f.Address}, p.listing())
	}
}

// RemovePeer removes what PutPeer recorded.
func (t *Taken) RemovePeer(p *Peer) {
	for _, f := range p.Functions {
		leave(t.addresses, tenantAddr{f.Tenant, f.Address}, p.listing())
	}
}

// CheckPeer returns an error if somebody other than peers has an address that is listed for one.
func (t *Taken) CheckPeer(p *Peer) error {
	for _, f := range p.Functions {
		if who, taken := t.Address(f.Tenant, f.Address); taken && !strings.HasPrefix(who, listed) {
			return fmt.Errorf("peer %s: functions: %s of tenant %d is the address of %s; list addresses that the peer has", p.Name, f.Address, f.Tenant, who)
		}
	}
	return nil
}

const listed = "peers[].functions of NIC "

func (p *Peer) listing() string { return listed + p.Name }

// Clone returns a copy.
func (t *Taken) Clone() *Taken {
	return &Taken{maps.Clone(t.names), maps.Clone(t.macs), maps.Clone(t.addresses)}
}

// Put records what a function uses.
func (t *Taken) Put(who string, f *Function) {
	enter(t.macs, f.MAC, who)
	for _, a := range f.Addresses() {
		enter(t.addresses, tenantAddr{f.Tenant, a}, who)
	}
	if p := f.Port; p != nil {
		enter(t.names, p.Name, who)
		enter(t.names, p.Socket, who)
		enter(t.macs, p.MAC, who)
	}
}

// Remove removes what Put recorded.
func (t *Taken) Remove(who string, f *Function) {
	leave(t.macs, f.MAC, who)
	for _, a := range f.Addresses() {
		leave(t.addresses, tenantAddr{f.Tenant, a}, who)
	}
	if p := f.Port; p != nil {
		leave(t.names, p.Name, who)
		leave(t.names, p.Socket, who)
		leave(t.macs, p.MAC, who)
	}
}

// Address returns who has an address of a tenant.
func (t *Taken) Address(tenant uint32, a netip.Addr) (who string, ok bool) {
	who, ok = t.addresses[tenantAddr{tenant, a}]
	return who, ok
}

// enter records who uses something; the first user keeps it.
func enter[K comparable](m map[K]string, what K, who string) {
	var nothing K
	if _, taken := m[what]; !taken && what != nothing {
		m[what] = who
	}
}

func leave[K comparable](m map[K]string, what K, who string) {
	if m[what] == who {
		delete(m, what)
	}
}

// by returns who uses something, and whether that is somebody other than who.
func by[K comparable](m map[K]string, what K, who string) (other string, taken bool) {
	other, taken = m[what]
	return other, taken && other != who
}
