package gateway

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/allocs"

	"pgregory.net/rapid"
)

// routesModel records who claims what; all routes can be computed from it.
type routesModel struct {
	tenants map[uint32]TenantConfig
	ports   map[uint32]Place
	peers   map[cm.PeerID][]Address
}

// all computes where each address leads: our own ports come first, then routers, then peers.
func (m *routesModel) all() map[place]Target {
	all := map[place]Target{}
	put := func(tenant uint32, a netip.Addr, to Target) {
		if _, taken := all[place{tenant, a}]; !taken {
			all[place{tenant, a}] = to
		}
	}
	for _, fn := range slices.Sorted(maps.Keys(m.ports)) {
		p := m.ports[fn]
		for _, a := range p.led() {
			put(p.Tenant, a, Target{Kind: ToPort, Shard: p.Shard, Function: fn, MTU: p.MTU})
		}
	}
	for _, t := range m.tenants {
		for _, a := range t.Routers {
			put(t.Tenant, a, Target{Kind: ToRouter})
		}
	}
	for _, h := range slices.Sorted(maps.Keys(m.peers)) {
		for _, a := range m.peers[h] {
			put(a.Tenant, a.Addr, Target{Kind: ToPeer, Peer: h, Function: a.Function, MTU: min(tunnelMTU, a.MTU)})
		}
	}
	return all
}

// TestRoutesAreAsIfNewlyComputed: after any changes of ports, tenants and peers, each address leads where newly
// computed routes would lead, and nothing remains of removed objects.
func TestRoutesAreAsIfNewlyComputed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRoutes(tunnelMTU)
		m := &routesModel{tenants: map[uint32]TenantConfig{}, ports: map[uint32]Place{}, peers: map[cm.PeerID][]Address{}}
		tenant := rapid.Uint32Range(7, 9)
		address := rapid.Custom(func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, rapid.Uint8Range(1, 6).Draw(t, "address")})
		})
		some := rapid.SliceOfNDistinct(address, 0, 3, rapid.ID)
		function, mtu := rapid.Uint32Range(1, 4), rapid.SampledFrom([]int{1400, 9000})
		t.Repeat(map[string]func(*rapid.T){
			"port": func(t *rapid.T) {
				fn := function.Draw(t, "function")
				m.ports[fn] = Place{Shard: rapid.Uint8Range(0, 1).Draw(t, "shard"), Tenant: tenant.Draw(t, "tenant"), Addresses: some.Draw(t, "addresses"), MTU: mtu.Draw(t, "mtu"), Up: rapid.Bool().Draw(t, "up")}
				r.SetPort(fn, m.ports[fn])
			},
			"no port": func(t *rapid.T) {
				fn := function.Draw(t, "function")
				delete(m.ports, fn)
				r.RemovePort(fn)
			},
			"tenant": func(t *rapid.T) {
				c := TenantConfig{Tenant: tenant.Draw(t, "tenant"), Routers: some.Draw(t, "routers")}
				m.tenants[c.Tenant] = c
				r.SetTenant(c)
			},
			"no tenant": func(t *rapid.T) {
				n := tenant.Draw(t, "tenant")
				delete(m.tenants, n)
				r.ForgetTenant(n)
			},
			"peer": func(t *rapid.T) {
				var list []Address
				for i, a := range some.Draw(t, "addresses") {
					list = append(list, Address{tenant.Draw(t, "tenant"), a, uint32(0x020000 + i), mtu.Draw(t, "mtu")})
				}
				h := cm.PeerID(rapid.Uint8Range(2, 3).Draw(t, "peer"))
				m.peers[h] = list
				r.Learn(h, list)
			},
			"": func(t *rapid.T) {
				want, got := m.all(), map[place]Target{}
				for _, e := range r.Entries() {
					got[place{e.Tenant, e.Prefix.Addr()}] = e.To
				}
				if !maps.Equal(got, want) {
					t.Fatalf("routes\n%v\nwant\n%v", got, want)
				}
				for h := cm.PeerID(2); h < 4; h++ {
					for n := uint32(7); n < 10; n++ {
						has := slices.ContainsFunc(m.peers[h], func(a Address) bool { return a.Tenant == n })
						if r.Reaches(h, n) != has {
							t.Fatalf("host %d is reached in tenant %d: %v", h, n, !has)
						}
					}
				}
			},
		})
		for fn := range m.ports {
			r.RemovePort(fn)
		}
		for n := range m.tenants {
			r.ForgetTenant(n)
		}
		for h := range m.peers {
			r.Learn(h, nil)
		}
		if n := r.networks.Len(); n != 0 {
			t.Fatalf("%d networks are left", n)
		}
	})
}

// manyPorts returns the routes of a NIC with n ports in one tenant, in which a peer has as many.
func manyPorts(n int) *Routes {
	r := NewRoutes(tunnelMTU)
	r.SetTenant(TenantConfig{Tenant: 7, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	var peers []Address
	for i := range n {
		r.SetPort(uint32(i), Place{Tenant: 7, Addresses: []netip.Addr{manyAddr(1, i)}, MTU: 1400, Up: true})
		peers = append(peers, Address{7, manyAddr(2, i), 0x020000 + uint32(i), 1400})
	}
	r.Learn(2, peers)
	return r
}

func manyAddr(net byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)})
}

// change moves a port to another address and back.
func change(r *Routes) {
	for _, net := range []byte{3, 1} {
		r.SetPort(5, Place{Tenant: 7, Addresses: []netip.Addr{manyAddr(net, 5)}, MTU: 1400, Up: true})
	}
}

// TestChangeOfOnePort: a change costs the same with ten ports and with two thousand.
func TestChangeOfOnePort(t *testing.T) {
	few, many := manyPorts(10), manyPorts(2000)
	a, b := allocs.PerRun(50, func() { change(few) }), allocs.PerRun(50, func() { change(many) })
	if b > 2*a {
		t.Errorf("%v allocations with 10 ports, %v with 2000", a, b)
	}
}

func BenchmarkChange(b *testing.B) {
	for _, n := range []int{10, 2000} {
		b.Run(fmt.Sprintf("ports=%d", n), func(b *testing.B) {
			r := manyPorts(n)
			for b.Loop() {
				change(r)
			}
		})
	}
}

// TestRoutesThatStayAreFoundDuringChanges: while routes change, gateways of other shards still find the routes that
// stay.
func TestRoutesThatStayAreFoundDuringChanges(t *testing.T) {
	r := manyPorts(8)
	var end atomic.Bool
	var shards sync.WaitGroup
	for s := range uint8(2) {
		g := New(s, r)
		g.Groups = []Claim{roceClaim}
		g.Tunnels.SetPeer(2, Remote{})
		p := g.AddEndpoint("a", 100+uint32(s), gwA)
		own := netip.AddrFrom4([4]byte{10, 4, 0, s})
		r.SetPort(p.Function, Place{Shard: s, Tenant: 7, Addresses: []netip.Addr{own}, MTU: 1400, Up: true})
		g.Configure(p, EndpointConfig{Tenant: 7, MAC: macA, Addresses: []netip.Addr{own}, MTU: 1400}, true)
		good := udp(t, gwA, macA, own, manyAddr(2, 3), 100)
		shards.Go(func() {
			var f Forward
			for !end.Load() {
				if !g.FromPort(second, &PortInput{From: p, Frame: slices.Clone(good)}, &f) || f.Tunnel == nil || f.Tunnel.Peer != 2 {
					t.Errorf("shard %d: no tunnel: %v", s, g.Stats().Reasons)
					return
				}
				g.FromTunnel(f.Tunnel, udp(t, macA, gwA, manyAddr(2, 3), own, 100), 0)
				if out := g.Output(); len(out) != 1 || out[0].To != p {
					t.Errorf("shard %d: %d frames, %v", s, len(out), g.Stats().Reasons)
					return
				}
				g.Done()
			}
		})
	}
	for i := range 3000 {
		change(r)
		r.SetTenant(TenantConfig{Tenant: 7, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Routers: []netip.Addr{manyAddr(9, i%5)}})
		list := []Address{{7, manyAddr(2, 3), 3, 1400}, {7, manyAddr(2, 100+i%50), 4, 1400}}
		r.Learn(2, list)
	}
	end.Store(true)
	shards.Wait()
}

// TestTheTableOfRoutesIsSorted: the table of routes is sorted by tenant, address and then prefix, the longest first,
// and marks routes that lead nowhere.
func TestTheTableOfRoutesIsSorted(t *testing.T) {
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

// TestAPacketBelongsToItsLocalFunction: an outgoing packet belongs to the local function that sent it, an incoming one to
// the local function that gets it.
func TestAPacketBelongsToItsLocalFunction(t *testing.T) {
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

// TestWayFollowsRoutes: a port's packets go where the present routes say, also to the last
// destination.
func TestWayFollowsRoutes(t *testing.T) {
	n := newNet(t)
	for i, up := range []bool{true, false, true, true, false} {
		configure(n.g, n.b, n.b.EndpointConfig, up)
		n.send(udp(t, gwA, macA, ipA, ipB, 10), Offload{})
		out := n.output()
		if arrived := len(out) == 1 && out[0].port == n.b; arrived != up {
			t.Errorf("turn %d: arrives at a port that is up %t: %t", i, up, arrived)
		}
	}
}

// TestRouteAndPortLimitThePathMTU: the path MTU is limited by the route and by the port. There is none to a router or
// an unknown address, or while the port is down.
func TestRouteAndPortLimitThePathMTU(t *testing.T) {
	n := newNet(t)
	c := n.a.EndpointConfig
	for _, tc := range []struct {
		to   netip.Addr
		mtu  int // of the port
		up   bool
		want int
	}{
		{ipC, 9000, true, tunnelMTU},
		{ipC, 1000, true, 1000},
		{ipB, 9000, true, tunnelMTU},
		{addr("10.3.1.1"), 9000, true, tunnelMTU},
		{router4, 9000, true, 0},
		{nobody4, 9000, true, 0},
		{ipC, 9000, false, 0},
	} {
		c.MTU = tc.mtu
		configure(n.g, n.a, c, tc.up)
		if got := n.g.PathMTU(n.a, tc.to); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}
