package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestOwners: an address that is listed for a peer belongs to that peer only. A peer whose
// functions in a tenant are listed gets no other addresses there. A link-local address belongs to
// the host of the MAC in it.
func TestOwners(t *testing.T) {
	o := OwnersOf([]Peer{
		{Host: 2, Tenants: []uint32{7}, Functions: []PeerFunction{{7, netip.MustParseAddr("192.168.100.21")}}},
		{Host: 3, Tenants: []uint32{7, 8}, Functions: []PeerFunction{{8, netip.MustParseAddr("fd00::31")}}},
	})
	local := func(m MAC) string { return netip.AddrFrom16(pfvf.LinkLocal(m)).String() }
	for _, tc := range []struct {
		host   uint8
		tenant uint32
		addr   string
		why    string
	}{
		{2, 7, "192.168.100.21", ""},
		{3, 7, "192.168.100.21", "gives it to host 2"},
		{2, 7, "192.168.100.22", "not listed"},
		{3, 7, "192.168.100.22", ""}, // it has no list there
		{2, 8, "192.168.100.21", ""}, // another tenant's address, and no list
		{3, 8, "fd00::31", ""},
		{3, 8, "fd00::32", "not listed"},
		{2, 7, local(FunctionMAC(2, 15, 4095)), ""},
		{3, 7, local(FunctionMAC(2, 15, 4095)), "of a function of host 2"},
		{2, 7, local(MAC{2, 0, 0, 1, 2, 3}), ""},
		{2, 7, "fe80::1", ""},
	} {
		why := o.Refuses(fmt.Sprint(tc.host), tc.host, tc.tenant, netip.MustParseAddr(tc.addr))
		if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
			t.Errorf("host %d, tenant %d, %s: %q", tc.host, tc.tenant, tc.addr, why)
		}
	}
}
