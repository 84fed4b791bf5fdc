package gateway

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// TestCountersOfAnExchange: frames from port to port, to the tunnel and from it are counted
// exactly.
func TestCountersOfAnExchange(t *testing.T) {
	n := newNet(t)
	const headers, ip = 42, 28
	n.send(udp(t, gwA, macA, ipA, ipB, 100), Offload{})
	n.wrote()
	if packets := n.send(udp(t, gwA, macA, ipA, ipC, 200), Offload{}); len(packets) != 1 {
		t.Fatalf("%d packets to the peer", len(packets))
	}
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, macA, gwA, ipC, ipA, 300), 0)
	n.wrote()
	n.send(udp(t, gwA, macB, ipA, ipC, 1), Offload{}) // another's MAC
	want := Stats{
		Reasons:   [Reasons]uint64{DropSourceMAC: 1},
		FromPorts: 3, FromPortBytes: headers*3 + 100 + 200 + 1, ToPorts: 2, ToPortBytes: headers*2 + 100 + 300, Local: 1,
		TunnelIn: 1, TunnelInBytes: ip + 300,
	}
	if got := *n.g.Stats(); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// wrote is a device that takes all waiting frames.
func (n *net) wrote() {
	for _, f := range n.g.Output() {
		n.g.out.wrote(&f)
	}
	n.g.Done()
}

// TestManySubnets: a router advertisement contains as many subnets as fit a packet of the minimum
// MTU together with all name servers.
func TestManySubnets(t *testing.T) {
	n := newNet(t)
	tenant := TenantConfig{Tenant: 7, DNS: addrs("fd00::53", "fd00::54", "fd00::55", "fd00::56", "fd00::57")}
	for i := range 50 {
		tenant.Subnets = append(tenant.Subnets, netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/64", i)))
	}
	n.g.routes.SetTenant(tenant)
	n.send(ndFrame(t, macA, addr("fe80::1"), addr("ff02::2"), ndRouterSolicit, addr("::")), Offload{})
	out := n.output()
	if len(out) != 1 || len(out[0].b) > replySize {
		t.Fatalf("%d frames", len(out))
	}
	ra, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6RouterAdvertisement).(*layers.ICMPv6RouterAdvertisement)
	subnets, servers := 0, 0
	for _, o := range ra.Options {
		switch o.Type {
		case layers.ICMPv6OptPrefixInfo:
			subnets++
		case optDNS:
			servers = (len(o.Data) - 6) / 16
		}
	}
	if subnets != 35 || servers != maxDNS {
		t.Errorf("%d subnets and %d servers, want 35 and %d", subnets, servers, maxDNS)
	}
	if answers := n.g.Stats().Reasons[CountND]; answers != 1 {
		t.Errorf("%d solicitations are counted as answered, want 1", answers)
	}
}
