package gateway

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// asked records the keys that were requested from peers. It is a security.Requester.
type asked []security.Use

func (a *asked) RequestRekey(u security.Use, _ uint32) error {
	*a = append(*a, u)
	return nil
}

// TestAsksChangedPeer: the gateway requests a peer's key for each tenant in which the peer has
// addresses and this NIC has ports, once, for any number of ports.
func TestAsksChangedPeer(t *testing.T) {
	n := newNet(t) // two ports of tenant 7
	for tenant, id := range map[uint32]uint32{8: 3, 9: 4} {
		p := n.g.AddEndpoint("c", id, gwA)
		configure(n.g, p, EndpointConfig{Tenant: tenant, MAC: macA, Addresses: addrs("10.0.0.1"), MTU: tunnelMTU}, true)
	}
	n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, 9000}, {8, ipC, 0x020002, 9000}})
	var got asked
	n.g.PeerChanged(2, &got)
	slices.SortFunc(got, func(a, b security.Use) int { return int(a.Tenant) - int(b.Tenant) })
	if want := (asked{{Peer: 2, Tenant: 7, Class: cm.ClassGateway}, {Peer: 2, Tenant: 8, Class: cm.ClassGateway}}); !slices.Equal(got, want) {
		t.Errorf("asked for %+v, want %+v", got, want)
	}
}
