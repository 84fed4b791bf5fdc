package gateway

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/checksum"
)

const second = 1_000_000_000

var (
	macA, macB = MAC{2, 0, 0, 0, 0, 0xa}, MAC{2, 0, 0, 0, 0, 0xb}
	gwA, gwB   = MAC{2, 1, 0, 0, 0, 0xa}, MAC{2, 1, 0, 0, 0, 0xb}
	everyone   = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

	ipA, ipB, ipC = addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3") // ours, ours, a peer's
	v6A, v6B, v6C = addr("fd00::1"), addr("fd00::2"), addr("fd00::3")
	router4       = addr("10.0.0.254")
	router6       = addr("fd00::fe")
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// net is a gateway with two ports of tenant 7, and a peer, 2, with a port in that tenant.
type net struct {
	t    testing.TB
	g    *Gateway
	a, b *Endpoint
	fwd  Forward
}

const tunnelMTU = 1432

func newNet(t testing.TB) *net {
	t.Helper()
	g := New(0, NewRoutes(tunnelMTU))
	g.Groups = []Claim{roceClaim}
	for peer := range cm.PeerID(10) {
		g.Tunnels.SetPeer(peer, Remote{Name: fmt.Sprint(peer)})
	}
	g.routes.SetTenant(TenantConfig{
		Tenant: 7, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")},
		Routers: []netip.Addr{router4, router6}, DNS: addrs("10.0.0.53", "fd00::53"),
		Routes: []Route{
			{netip.MustParsePrefix("10.2.0.0/16"), ipB},
			{netip.MustParsePrefix("10.3.0.0/16"), ipC},
			{netip.MustParsePrefix("10.1.0.0/16"), ipA},
			{netip.MustParsePrefix("10.3.3.0/24"), addr("10.0.0.77")},
		},
	})
	n := &net{t: t, g: g, a: g.AddEndpoint("a", 1, gwA), b: g.AddEndpoint("b", 2, gwB)}
	configure(g, n.a, EndpointConfig{Tenant: 7, MAC: macA, Addresses: []netip.Addr{ipA, v6A}, MTU: tunnelMTU, Assign: true, USO: true}, true)
	configure(g, n.b, EndpointConfig{Tenant: 7, MAC: macB, Addresses: []netip.Addr{ipB, v6B}, MTU: tunnelMTU, Assign: true, USO: true}, true)
	g.routes.Learn(2, []Address{{7, ipC, 0x020001, 9000}, {7, v6C, 0x020001, 9000}})
	return n
}

// configure configures a port in the gateway and in the routes.
func configure(g *Gateway, p *Endpoint, c EndpointConfig, up bool) {
	g.routes.SetPort(p.Function, Place{Shard: g.shard, Tenant: c.Tenant, Addresses: c.Addresses, MTU: c.MTU, Up: up})
	g.Configure(p, c, up)
}

func addrs(list ...string) (as []netip.Addr) {
	for _, s := range list {
		as = append(as, addr(s))
	}
	return as
}

// frame builds a frame with an independent encoder.
func frame(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

func eth(dst, src MAC, kind layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{DstMAC: dst[:], SrcMAC: src[:], EthernetType: kind}
}

func ip4(src, dst netip.Addr, proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

func ip6(src, dst netip.Addr, proto layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

// udp returns a frame with a UDP datagram of n bytes.
func udp(t testing.TB, dst, src MAC, from, to netip.Addr, n int) []byte {
	t.Helper()
	u := &layers.UDP{SrcPort: 1111, DstPort: 2222}
	body := make([]byte, n)
	for i := range body {
		body[i] = byte(i * 7)
	}
	var f []byte
	if from.Is4() {
		ip := ip4(from, to, layers.IPProtocolUDP)
		_ = u.SetNetworkLayerForChecksum(ip)
		f = frame(t, eth(dst, src, layers.EthernetTypeIPv4), ip, u, gopacket.Payload(body))
	} else {
		ip := ip6(from, to, layers.IPProtocolUDP)
		_ = u.SetNetworkLayerForChecksum(ip)
		f = frame(t, eth(dst, src, layers.EthernetTypeIPv6), ip, u, gopacket.Payload(body))
	}
	h, _ := parseIP(f[ethLen:])
	return f[:ethLen+h.total] // without padding
}

// send gives the gateway a frame of port a and returns the packets for the tunnel.
func (n *net) send(f []byte, off Offload) (packets [][]byte) {
	n.t.Helper()
	if n.g.FromPort(second, &PortInput{From: n.a, Frame: f, Offload: off}, &n.fwd) {
		for b := n.fwd.Next(); b != nil; b = n.fwd.Next() {
			packets = append(packets, bytes.Clone(b))
		}
	}
	return packets
}

// got is a frame that a port received.
type got struct {
	port *Endpoint
	b    []byte
	off  Offload
}

// output returns the frames that wait for the ports.
func (n *net) output() (list []got) {
	for _, f := range n.g.Output() {
		if !f.Whole() {
			continue
		}
		list = append(list, got{f.To, bytes.Join(f.Parts, nil), f.Offload})
	}
	n.g.Done()
	return list
}

// decode checks a frame of the gateway with an independent decoder.
func decode(t testing.TB, b []byte) gopacket.Packet {
	t.Helper()
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("%v: %x", e.Error(), b)
	}
	h, why := parseIP(b[ethLen:])
	if why != none {
		t.Fatalf("%v: %x", why, b)
	}
	if !h.fragment && h.proto != 58 && h.proto != 1 && !h.l4Valid(b[ethLen:]) || h.proto == 58 && !h.l4Valid(b[ethLen:]) {
		t.Errorf("checksum: %x", b)
	}
	if h.proto == 1 && checksum.Sum(b[ethLen+h.l4:ethLen+h.total]) != 0xffff {
		t.Errorf("ICMP checksum: %x", b)
	}
	return p
}

// Between ports of a NIC a frame passes whole, whatever it stands for. Inside a subnet its TTL is
// not changed.
func TestFrameBetweenPortsStaysWhole(t *testing.T) {
	n := newNet(t)
	f := udp(t, gwA, macA, ipA, ipB, 1000)
	want := bytes.Clone(f[ethLen:])
	off := Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 6}
	if p := n.send(f, off); p != nil {
		t.Fatal("to a tunnel")
	}
	out := n.output()
	if len(out) != 1 || out[0].port != n.b || out[0].off != off || !bytes.Equal(out[0].b[ethLen:], want) || MAC(out[0].b[:6]) != macB || MAC(out[0].b[6:12]) != gwB {
		t.Fatalf("%+v", out)
	}
	// A frame that stands for several says so, and in packets of a size that fits there.
	for _, c := range []struct{ size, want uint16 }{{500, 500}, {1 << 14, uint16(n.b.MTU - 40)}} {
		f, off := whole(t, ipA, ipB, layers.IPProtocolTCP, 0, 3000, int(c.size), 0)
		n.send(f, off)
		off.Size = c.want
		if out := n.output(); len(out) != 1 || out[0].off != off {
			t.Fatalf("size %d: %+v", c.size, out)
		}
	}
	n.send(udp(t, gwA, macA, ipA, addr("10.2.1.1"), 10), Offload{}) // a network behind b: one hop
	if out := n.output(); len(out) != 1 || out[0].b[22] != 63 {
		t.Fatalf("%+v", out)
	}
	configure(n.g, n.b, n.b.EndpointConfig, false)
	n.send(udp(t, gwA, macA, ipA, ipB, 10), Offload{})
	if n.g.Stats().Reasons[DropNoRoute] != 1 {
		t.Error("sent to a port that is down")
	}
}

// Attack: tenants with equal addresses. Whatever one tenant sends, from its port or through a
// tunnel, the other tenant's ports do not receive it.
func TestOneTenantReachesNoPortOfAnother(t *testing.T) {
	n := newNet(t)
	g := n.g
	evil := g.AddEndpoint("evil", 3, MAC{2, 1, 0, 0, 0, 0xe})
	g.routes.SetTenant(TenantConfig{Tenant: 8, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}})
	configure(g, evil, EndpointConfig{Tenant: 8, MAC: macA, Addresses: []netip.Addr{ipA, v6A}, MTU: tunnelMTU, Trust: true, Spoof: true}, true)
	g.routes.Learn(3, []Address{{8, ipC, 0x030001, 9000}, {8, ipB, 0x030002, 9000}})
	for _, f := range [][]byte{
		udp(t, evil.Gateway, macA, ipA, ipB, 10), udp(t, evil.Gateway, macA, ipC, ipB, 10), udp(t, evil.Gateway, macA, v6A, v6B, 10), udp(t, evil.Gateway, macA, ipB, ipA, 10),
		arpFrame(macA, ipA, router4), arpFrame(macA, ipB, ipA), ndFrame(t, macA, v6A, v6B, ndSolicit, v6B), udp(t, gwA, macA, ipA, ipB, 10), udp(t, everyone, macA, ipA, ipB, 10),
	} {
		if g.FromPort(second, &PortInput{From: evil, Frame: f}, &n.fwd) {
			if n.fwd.Tunnel.Tenant != 8 {
				t.Errorf("%x went to tenant %d", f, n.fwd.Tunnel.Tenant)
			}
		}
		for _, o := range n.output() {
			if o.port.Tenant != 8 {
				t.Errorf("%x came out of %s", f, o.port.Name)
			}
		}
	}
	tunnel := g.Tunnels.To(3, 8)
	if tunnel == nil || g.Tunnels.To(3, 7) != nil {
		t.Fatal("tunnels")
	}
	g.FromTunnel(tunnel, udp(t, macA, gwA, ipC, ipA, 10), 0)
	out := n.output()
	if len(out) != 1 || out[0].port != evil {
		t.Fatalf("%+v", out)
	}
	g.FromTunnel(tunnel, udp(t, macA, gwA, ipC, ipB, 10), 0) // ours of the other tenant; in this one it is a peer's
	if out := n.output(); len(out) != 0 || g.Stats().Reasons[DropNoPort] != 1 {
		t.Errorf("%+v", out)
	}
}

// TestEndpointsComeAndGo: ports can be removed in any order; the others stay and are found by
// function.
func TestEndpointsComeAndGo(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		g := New(0, NewRoutes(1400))
		g.Groups = []Claim{roceClaim}
		var there []*Endpoint
		for n := range uint32(100) {
			if len(there) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(there))
				g.RemoveEndpoint(there[i])
				there = slices.Delete(there, i, i+1)
			} else {
				there = append(there, g.AddEndpoint("vp", n, MAC{}))
			}
			if len(g.ports) != len(there) {
				t.Fatalf("seed %d: %d ports, want %d", seed, len(g.ports), len(there))
			}
			for _, p := range there {
				if !slices.Contains(g.ports, p) || g.Endpoint(p.Function) != p {
					t.Fatalf("seed %d: the port of function %d is gone, and another was removed", seed, p.Function)
				}
			}
		}
	}
}

// TestFlowsSpreadOverAllPaths: flows that differ in a port or an address use all paths.
func TestFlowsSpreadOverAllPaths(t *testing.T) {
	const paths = 8
	spread := func(name string, make func(i int) []byte) {
		t.Helper()
		var used [paths]int
		for i := range 64 * paths {
			b := make(i)[ethLen:]
			h, drop := parseIP(b)
			if drop != 0 {
				t.Fatalf("%s: packet %d is dropped for %v", name, i, drop)
			}
			used[h.flow(b)%paths]++
		}
		for path, n := range used {
			if n < 16 || n > 256 {
				t.Errorf("%s: %d of %d flows on path %d", name, n, 64*paths, path)
			}
		}
	}
	spread("IPv4 addresses", func(i int) []byte {
		return udp(t, gwA, macA, ipA, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 10)
	})
	spread("IPv6 addresses", func(i int) []byte {
		to := v6C.As16()
		to[14], to[15] = byte(i>>8), byte(i)
		return udp(t, gwA, macA, v6A, netip.AddrFrom16(to), 10)
	})
	for name, to := range map[string]netip.Addr{"IPv4 ports": ipC, "IPv6 ports": v6C} {
		from, at := ipA, ethLen+20
		if to.Is6() {
			from, at = v6A, ethLen+40
		}
		spread(name, func(i int) []byte {
			b := udp(t, gwA, macA, from, to, 10)
			b[at], b[at+1] = byte(i>>8), byte(i)
			return b
		})
	}
}

// TestFlowKeepsItsPath: packets of one flow take one path. This includes ICMP messages between two
// addresses, which have no ports, and fragments of a datagram, of which only the first has ports.
func TestFlowKeepsItsPath(t *testing.T) {
	flow := func(b []byte) uint32 {
		t.Helper()
		h, drop := parseIP(b)
		if drop != 0 {
			t.Fatal(drop)
		}
		return h.flow(b)
	}
	ping := func(seq uint16) []byte {
		icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5, Seq: seq}
		return frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip4(ipA, ipC, layers.IPProtocolICMPv4), icmp)[ethLen:]
	}
	if a, b := flow(ping(1)), flow(ping(2)); a != b {
		t.Errorf("two echo requests: flows %#x and %#x", a, b)
	}
	fragment := func(offset uint16, more layers.IPv4Flag) []byte {
		ip := ip4(ipA, ipC, layers.IPProtocolUDP)
		ip.Flags, ip.FragOffset = more, offset
		return frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip, gopacket.Payload{byte(offset), 1, 2, 3, 4, 5, 6, 7})[ethLen:]
	}
	if a, b := flow(fragment(0, layers.IPv4MoreFragments)), flow(fragment(1, 0)); a != b {
		t.Errorf("two fragments: flows %#x and %#x", a, b)
	}
}

// TestFramesAreSentInOrder: taken frames are sent in order, and taking an empty list does not drop
// them.
func TestFramesAreSentInOrder(t *testing.T) {
	n := newNet(t)
	var in []PortInput
	for i := range 3 {
		f, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 0, 1000*(i+1), 1000, 0)
		in = append(in, PortInput{From: n.a, Frame: f, Offload: off})
	}
	n.g.Take(in)
	for i := range in {
		n.g.Take(nil)
		packets := 0
		f := n.g.Outgoing(second)
		if f == nil || n.g.Outgoing(second) != f {
			t.Fatalf("frame %d is not at hand", i)
		}
		for f.Next() != nil {
			packets++
		}
		if packets != i+1 || !n.g.Busy() {
			t.Errorf("frame %d: %d packets", i, packets)
		}
		n.g.EndFrame()
		if n.g.Busy() != (i < len(in)-1) {
			t.Errorf("after frame %d: busy %t", i, n.g.Busy())
		}
	}
	if n.g.Outgoing(second) != nil {
		t.Error("one more frame")
	}
}

// A frame that makes this code panic leaves nothing behind but a count.
func TestAPanicLeavesNothingButACount(t *testing.T) {
	n := newNet(t)
	var told []any
	n.g.Panicked = func(v any, _ []byte) { told = append(told, v) }
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, gwA, macA, ipC, ipA, 100), 0)
	n.send(arpFrame(macA, ipA, ipC), Offload{})

	network := n.a.network
	n.a.network = nil // whatever needs it fails
	for _, f := range [][]byte{udp(t, gwA, macA, ipA, ipC, 100), dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, ipA), arpFrame(macA, ipA, ipB)} {
		if p := n.send(f, Offload{}); p != nil {
			t.Errorf("%x went on", p)
		}
	}
	n.a.network = network
	n.g.FromTunnel(nil, udp(t, gwA, macA, v6C, v6A, 100), 0)

	if c := n.g.Stats().Reasons[DropPanic]; c != 4 || n.a.Drops[DropPanic] != 3 || len(told) != 4 {
		t.Errorf("%d counted, %d at the port, %d told: %v", c, n.a.Drops[DropPanic], len(told), told)
	}
	if out := n.output(); len(out) != 2 {
		t.Errorf("%d frames for ports, want the two from before", len(out))
	}
	if p := n.send(udp(t, gwA, macA, ipA, ipC, 100), Offload{}); len(p) != 1 {
		t.Error("the port does not work any more")
	}
}
