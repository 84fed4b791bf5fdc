package controller

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
)

// TestPeersAreToldOfPortsThatAreUp checks that peers are told the addresses of ports that are up,
// in order, and only after a change. A tenant's networks follow its ports' addresses and go with
// the last port.
func TestPeersAreToldOfPortsThatAreUp(t *testing.T) {
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	for i := range cfg.Functions[0].VFs {
		cfg.Functions[0].VFs[i].Port = nil
	}
	p := newPlain(cfg)
	at := func(tenant uint32, up bool, addrs ...string) gateway.Place {
		return gateway.Place{Name: "vp", Tenant: tenant, Addresses: devicetest.Addrs(addrs...), MTU: 1400, Up: up}
	}
	told := func(want ...string) {
		t.Helper()
		var got []string
		for _, a := range p.addresses() {
			if a.MTU != 1400 || a.Tenant != 20 {
				t.Errorf("%+v", a)
			}
			got = append(got, netip.AddrFrom16(a.Addr).Unmap().String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("peers are told of %v, want %v", got, want)
		}
	}
	subnets := func(want ...string) {
		t.Helper()
		var got []string
		for _, s := range p.networks.Of(20).Subnets {
			got = append(got, s.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("subnets %v, want %v", got, want)
		}
	}
	p.set(9, at(20, true, "10.1.0.9", "fd00::9"))
	p.set(3, at(20, true, "10.1.0.3"))
	p.set(5, at(20, false, "10.1.0.5"))
	if told("10.1.0.3", "10.1.0.9", "fd00::9"); !p.untold || p.users[20] != 3 {
		t.Errorf("%d ports in the tenant", p.users[20])
	}
	subnets("10.1.0.0/24", "fd00::/64")
	p.untold = false
	if p.remove(77); p.untold {
		t.Error("a port that was not there is gone")
	}
	p.set(9, at(20, true, "10.2.0.9")) // moves
	told("10.1.0.3", "10.2.0.9")
	subnets("10.1.0.0/24", "10.2.0.0/24")
	if !p.untold || p.users[20] != 3 {
		t.Errorf("%d ports in the tenant", p.users[20])
	}
	p.untold = false
	p.remove(3)
	p.remove(5)
	told("10.2.0.9")
	subnets("10.2.0.0/24")
	if !p.untold || p.users[20] != 1 {
		t.Errorf("%d ports in the tenant", p.users[20])
	}
	p.set(9, at(30, true, "10.2.0.9")) // to another tenant
	if _, left := p.users[20]; left || p.users[30] != 1 {
		t.Errorf("ports by tenant: %v", p.users)
	}
	subnets()
	p.remove(9)
	if len(p.users) != 0 || len(p.ports) != 0 || p.addresses() != nil {
		t.Errorf("left: %v, %v", p.users, p.ports)
	}
}
