package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// TestEntries: the table of routes is in the order of tenants, addresses and then of prefixes, the
// longest first, and says what leads nowhere.
func TestEntries(t *testing.T) {
	r := NewRoutes(tunnelMTU)
	prefix := netip.MustParsePrefix
	r.SetTenant(TenantConfig{Tenant: 7, Routers: addrs("10.0.0.254"), Routes: []Route{
		{prefix("10.0.0.0/8"), addr("10.0.0.9")}, {prefix("10.0.0.0/24"), ipB}, {prefix("10.0.0.0/16"), ipB},
	}})
	r.SetPort(2, Place{Name: "b", Tenant: 7, Addresses: []netip.Addr{ipB, v6B}, MTU: 1400, Up: true})
	r.SetPort(1, Place{Name: "a", Tenant: 7, Addresses: []netip.Addr{ipA}, MTU: 1400, Up: true})
	r.SetPort(3, Place{Name: "c", Tenant: 0xfffffff0, Addresses: []netip.Addr{ipA}, MTU: 1400, Up: true})
	r.SetPort(4, Place{Name: "d", Tenant: 1, Addresses: []netip.Addr{ipA}, MTU: 1400, Up: true})
	r.Learn(2, []Address{{7, ipC, 0x020001, 1400}})
	var got []string
	for _, e := range r.Entries() {
		got = append(got, fmt.Sprint(e.Tenant, " ", e.Prefix, " ", e.To.Kind, " ", e.Port, " ", e.None))
	}
	want := []string{
		"1 10.0.0.1/32 0 d false",
		"7 10.0.0.0/24 0 b false", "7 10.0.0.0/16 0 b false", "7 10.0.0.0/8 0  true",
		"7 10.0.0.1/32 0 a false", "7 10.0.0.2/32 0 b false", "7 10.0.0.3/32 2  false", "7 10.0.0.254/32 1  false",
		"7 fd00::2/128 0 b false",
		"4294967280 10.0.0.1/32 0 c false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// TestFunctionOf: a packet is of the function here that sent it or, on its way in, gets it.
func TestFunctionOf(t *testing.T) {
	n := newNet(t)
	for _, tc := range []struct {
		tenant   uint32
		from, to netip.Addr
		out      bool
		function uint32 // 0: of none
	}{
		{7, ipA, ipC, true, 1},
		{7, ipA, ipC, false, 0}, // a peer's
		{7, ipC, ipA, false, 1},
		{7, ipC, ipA, true, 0},
		{7, ipA, ipB, true, 1},
		{7, ipA, ipB, false, 2},
		{7, ipA, router4, false, 0},
		{7, ipA, nobody4, false, 0},
		{8, ipA, ipC, true, 0},
	} {
		packet := udp(t, gwA, macA, tc.from, tc.to, 10)[ethLen:]
		if fn, ok := n.g.routes.FunctionOf(tc.tenant, packet, tc.out); ok != (tc.function != 0) || ok && fn != tc.function {
			t.Errorf("%+v: %d, %t", tc, fn, ok)
		}
		if _, ok := n.g.routes.FunctionOf(tc.tenant, packet[:10], tc.out); ok {
			t.Errorf("%+v: half of it is of a function", tc)
		}
	}
}

// TestRefusedAddresses: an address that a peer may not have leads nowhere, is counted whenever the
// peer names it, and is told of when it did not the last time.
func TestRefusedAddresses(t *testing.T) {
	allows := func(tenant uint32, a netip.Addr) bool { return tenant == 7 && a != ipB }
	r := NewRoutes(tunnelMTU, Peer{Host: 2, Allows: allows})
	good, bad, worse := Address{7, ipC, 0x020001, 1400}, Address{7, ipB, 0x020001, 1400}, Address{8, ipC, 0x020001, 1400}
	for i, tc := range []struct {
		named, told []Address
		refusals    uint64
	}{
		{[]Address{good}, nil, 0},
		{[]Address{good, bad}, []Address{bad}, 1},
		{[]Address{good, bad}, nil, 2},
		{[]Address{good, bad, worse}, []Address{worse}, 4},
		{[]Address{good}, nil, 4},
		{[]Address{bad, good}, []Address{bad}, 5},
	} {
		if told := r.Learn(2, tc.named); !slices.Equal(told, tc.told) || r.Refusals() != tc.refusals {
			t.Errorf("turn %d: told of %v, %d refusals", i, told, r.Refusals())
		}
		if e := r.Entries(); len(e) != 1 || e[0].Prefix.Addr() != ipC || e[0].Tenant != 7 {
			t.Errorf("turn %d: %v", i, e)
		}
	}
	if told := r.Learn(3, []Address{bad}); told != nil || !r.Reaches(3, 7) {
		t.Errorf("a peer that may have any: told of %v", told)
	}
}
