package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// TestEntries: the table of routes is sorted by tenant, address and then prefix, the longest first,
// and marks routes that lead nowhere.
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

// TestFunctionOf: an outgoing packet belongs to the local function that sent it, an incoming one to
// the local function that gets it.
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
