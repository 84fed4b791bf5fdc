package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestAPeerWithoutFunctionsIsExplained checks the notes of two connected NICs that have no
// functions for each other: each says what is missing on its side.
func TestAPeerWithoutFunctionsIsExplained(t *testing.T) {
	for name, tc := range map[string]struct {
		ours []uint32 // shared tenants
		says []cm.Endpoint
		want string
	}{
		"the peer has none there":   {[]uint32{7}, nil, "tells of no function in the tenants that are shared with it, [7]"},
		"the tenant is not shared":  {[]uint32{7}, []cm.Endpoint{{Tenant: 9, Function: 2 << 16, GID: [16]byte{1}}}, "of tenant 9: the tenant is not shared with it (peers[].tenants)"},
		"this NIC has none there":   {[]uint32{9}, []cm.Endpoint{{Tenant: 9, Function: 2 << 16, GID: [16]byte{1}}}, "is told of no function: none of this NIC is enabled in the tenants that are shared with it, [9]"},
		"there are some, both ways": {[]uint32{7}, []cm.Endpoint{{Tenant: 7, Function: 2 << 16, GID: [16]byte{1}}}, ""},
	} {
		n := newNIC(t, func(c *config.Config) { c.Peers[0].Tenants = tc.ours })
		n.told()
		if p := n.Peers()[0]; p.Note != "" {
			t.Errorf("%s: %q while the peer is down", name, p.Note)
		}
		m := n.PeerMail(2)
		m.Up()
		hello := cm.Hello{Host: 2, Instance: 2, Endpoints: tc.says}
		m.Message(hello.Append(nil))
		n.told()
		if p := n.Peers()[0]; !p.Up || (p.Note == "") != (tc.want == "") || !strings.Contains(p.Note, tc.want) {
			t.Errorf("%s: up %v, %q", name, p.Up, p.Note)
		}
	}
}

// TestAPeerGetsItsOwnAddressesAlone checks that a peer cannot claim an address that the
// configuration gives to another peer, by any message that announces addresses and in any order,
// nor one in the settings of this NIC's functions, enabled or not. The log and `vnic show nic`
// report it.
func TestAPeerGetsItsOwnAddressesAlone(t *testing.T) {
	const tenant = 7
	hosts, ours, off := netip.MustParseAddr("192.168.100.21"), netip.MustParseAddr("192.168.100.11"), netip.MustParseAddr("192.168.100.12")
	n := newNIC(t, func(c *config.Config) {
		c.Peers[0].Functions = []config.PeerFunction{{Tenant: tenant, Address: hosts}}
		third := c.Peers[0]
		third.Host, third.Underlay = 3, netip.MustParseAddr("10.99.0.3")
		third.Functions = []config.PeerFunction{{Tenant: tenant, Address: netip.MustParseAddr("192.168.100.31")}}
		c.Peers = append(c.Peers, third)
	})
	n.Change(vf(2), func(_, to *config.Function) error { to.Enabled = new(bool); return nil }, func(error) {})
	n.told()
	say := func(host cm.HostID, addrs ...[16]byte) {
		t.Helper()
		hello, ports := cm.Hello{Host: host, Instance: uint64(host)}, cm.PORTS{}
		for _, a := range addrs {
			f := uint32(host)<<16 | 1
			hello.Endpoints = append(hello.Endpoints, cm.Endpoint{Tenant: tenant, GID: a, Function: f})
			ports.Ports = append(ports.Ports, cm.Port{Tenant: tenant, Addr: a, Function: f, MTU: 1400})
		}
		m := n.PeerMail(host)
		m.Message(hello.Append(nil))
		m.Message(ports.Append(nil))
		n.told()
	}
	for _, h := range []cm.HostID{3, 2} {
		n.PeerMail(h).Up()
		n.told()
	}
	mac := pfvf.LinkLocal(config.FunctionMAC(2, 0, 1))
	say(3, hosts.As16(), ours.As16(), off.As16(), mac)
	leads := func(a netip.Addr) (to []uint8) {
		for _, r := range n.Routes() {
			if r.Kind == "peer" && r.Prefix == netip.PrefixFrom(a, a.BitLen()).String() {
				to = append(to, r.Peer)
			}
		}
		return to
	}
	for _, a := range []netip.Addr{hosts, ours, off, netip.AddrFrom16(mac)} {
		if by, has := n.Manager.Offered(tenant, a.As16()); has || leads(a) != nil {
			t.Errorf("%s: offered by host %d, plain IP goes to %v", a, by, leads(a))
		}
	}
	p := n.Peers()[1]
	if p.Functions != 0 || p.Refused != 8 || !strings.Contains(p.Note, "192.168.100.21 of tenant 7: peers[] gives it to host 2; 192.168.100.11 of") || !strings.Contains(p.Note, "1 more") {
		t.Errorf("shown: %+v", p)
	}
	named := 0
	for _, line := range n.log {
		if strings.HasPrefix(line, "a peer tells of addresses that it does not get peer 3 addresses 192.168.100.21 of") {
			named++
		}
	}
	if named != 2 {
		t.Errorf("functions and ports are named in %d lines of the log: %q", named, n.log)
	}
	say(2, hosts.As16(), mac)
	if by, has := n.Manager.Offered(tenant, hosts.As16()); !has || by != 2 || !slices.Equal(leads(hosts), []uint8{2}) {
		t.Errorf("the owner is second: offered %v by host %d, plain IP goes to %v", has, by, leads(hosts))
	}
	if by, has := n.Manager.Offered(tenant, mac); !has || by != 2 {
		t.Errorf("the link-local address of its function: offered %v by host %d", has, by)
	}
	var err error
	n.Line(1).Announce(vf(1), netip.MustParseAddr("192.168.100.31").As16(), [16]byte{}, func(e error) { err = e })
	n.Line(1).Flush()
	n.now += vtime.Time(gidPause)
	n.told()
	n.told()
	if err == nil || !strings.Contains(err.Error(), "host 3") {
		t.Errorf("a driver adds the address of host 3, which has not told of it yet: %v", err)
	}
}
