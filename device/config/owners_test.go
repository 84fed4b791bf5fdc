package config

import (
	"net/netip"
	"strings"
	"testing"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// TestAListedAddressBelongsToOnePeer: an address that is listed for a peer belongs to that peer only. A peer whose functions
// in a tenant are listed, or of which all is known, gets no other addresses there. A link-local address belongs to the NIC from
// whose name the MAC in it is derived.
func TestAListedAddressBelongsToOnePeer(t *testing.T) {
	o := OwnersOf("here", []Peer{
		{Name: "2", Tenants: []uint32{7}, Functions: []PeerFunction{{7, netip.MustParseAddr("192.168.100.21")}}},
		{Name: "rack3", Tenants: []uint32{7, 8}, Functions: []PeerFunction{{8, netip.MustParseAddr("fd00::31")}}},
		{Name: "known", Tenants: []uint32{8}, All: true},
	})
	local := func(m MAC) string { return netip.AddrFrom16(pfvf.LinkLocal(m)).String() }
	for _, tc := range []struct {
		peer   string
		tenant uint32
		addr   string
		why    string
	}{
		{"2", 7, "192.168.100.21", ""},
		{"rack3", 7, "192.168.100.21", "gives it to NIC 2"},
		{"2", 7, "192.168.100.22", "not listed"},
		{"rack3", 7, "192.168.100.22", ""}, // it has no list there
		{"known", 8, "192.168.100.21", "not listed"},
		{"2", 8, "192.168.100.21", ""}, // another tenant's address, and no list
		{"rack3", 8, "fd00::31", ""},
		{"rack3", 8, "fd00::32", "not listed"},
		{"2", 7, local(FunctionMAC("2", 15, 4095)), ""},
		{"rack3", 7, local(FunctionMAC("2", 15, 4095)), "belongs to a function of NIC 2"},
		{"rack3", 7, local(FunctionMAC("200", 0, 1)), "belongs to a function of NIC 200"}, // which is no peer
		{"rack3", 7, local(FunctionMAC("rack3", 15, 4095)), ""},
		{"2", 7, local(FunctionMAC("rack3", 15, 4095)), "belongs to a function of NIC rack3"},
		{"2", 7, local(FunctionMAC("here", 0, 1)), "belongs to a function of NIC here"},
		{"2", 7, local(MAC{2, 0, 0, 1, 2, 3}), ""},
		{"2", 7, "fe80::1", ""},
	} {
		why := o.Refuses(tc.peer, tc.tenant, netip.MustParseAddr(tc.addr))
		if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
			t.Errorf("peer %s, tenant %d, %s: %q", tc.peer, tc.tenant, tc.addr, why)
		}
	}
}
