package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
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
	if h.proto == 1 && sum(b[ethLen+h.l4:ethLen+h.total]) != 0xffff {
		t.Errorf("ICMP checksum: %x", b)
	}
	return p
}

// Checks every reason to drop a guest's frame, one frame each: it is counted, and there is no
// output.
func TestDropsFromPort(t *testing.T) {
	plain := func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, ipC, 100) }
	plain6 := func(t testing.TB) []byte { return udp(t, gwA, macA, v6A, v6C, 100) }
	resum := func(f []byte) []byte { finishIPv4(f[ethLen:], 20); return f }
	for _, tc := range []struct {
		name string
		why  Reason
		f    func(t testing.TB) []byte
		off  Offload
	}{
		{"runt", DropTruncated, func(testing.TB) []byte { return make([]byte, 13) }, Offload{}},
		{"no packet", DropTruncated, func(t testing.TB) []byte { return plain(t)[:14] }, Offload{}},
		{"half a header", DropTruncated, func(t testing.TB) []byte { return plain(t)[:30] }, Offload{}},
		{"cut", DropTruncated, func(t testing.TB) []byte { f := plain(t); return f[:len(f)-1] }, Offload{}},
		{"cut IPv6", DropTruncated, func(t testing.TB) []byte { f := plain6(t); return f[:len(f)-1] }, Offload{}},
		{"foreign MAC", DropSourceMAC, func(t testing.TB) []byte { return udp(t, gwA, macB, ipA, ipC, 1) }, Offload{}},
		{"group MAC", DropSourceMAC, func(t testing.TB) []byte { return udp(t, gwA, everyone, ipA, ipC, 1) }, Offload{}},
		{"gateway's MAC", DropSourceMAC, func(t testing.TB) []byte { return udp(t, gwA, gwA, ipA, ipC, 1) }, Offload{}},
		{"another station", DropOtherMAC, func(t testing.TB) []byte { return udp(t, macB, macA, ipA, ipC, 1) }, Offload{}},
		{"VLAN", DropEtherType, func(t testing.TB) []byte { f := plain(t); f[12], f[13] = 0x81, 0; return f }, Offload{}},
		{"LLDP", DropEtherType, func(t testing.TB) []byte { f := plain(t); f[12], f[13] = 0x88, 0xcc; return f }, Offload{}},
		{"type and version differ", DropHeader, func(t testing.TB) []byte { f := plain(t); f[12], f[13] = 0x86, 0xdd; return f }, Offload{}},
		{"version", DropHeader, func(t testing.TB) []byte { f := plain(t); f[14] = 0x55; return f }, Offload{}},
		{"header length", DropHeader, func(t testing.TB) []byte { f := plain(t); f[14] = 0x44; return f }, Offload{}},
		{"header checksum", DropHeader, func(t testing.TB) []byte { f := plain(t); f[24] ^= 1; return f }, Offload{}},
		{"evil bit", DropHeader, func(t testing.TB) []byte { f := plain(t); f[20] |= 0x80; return resum(f) }, Offload{}},
		{"mapped address", DropHeader, func(t testing.TB) []byte {
			f := plain6(t)
			a := netip.AddrFrom16(ipA.As16()).As16()
			copy(f[22:], a[:])
			return f
		}, Offload{}},
		{"foreign address", DropSourceIP, func(t testing.TB) []byte { return udp(t, gwA, macA, ipB, ipC, 1) }, Offload{}},
		{"foreign IPv6 address", DropSourceIP, func(t testing.TB) []byte { return udp(t, gwA, macA, v6B, v6C, 1) }, Offload{}},
		{"no address", DropSourceIP, func(t testing.TB) []byte { return udp(t, gwA, macA, addr("0.0.0.0"), ipC, 1) }, Offload{}},
		{"a network behind another", DropSourceIP, func(t testing.TB) []byte { return udp(t, gwA, macA, addr("10.2.1.1"), ipC, 1) }, Offload{}},
		{"Falcon", DropFalcon, func(t testing.TB) []byte { f := plain(t); f[23] = 252; return resum(f) }, Offload{}},
		{"Falcon in IPv6", DropFalcon, func(t testing.TB) []byte { f := plain6(t); f[20] = 252; return f }, Offload{}},
		{"Falcon behind an extension", DropFalcon, func(t testing.TB) []byte {
			f := plain6(t)
			f[20] = protoDstOpts
			f[54], f[55] = 252, 0
			return f
		}, Offload{}},
		{"Falcon in a later fragment", DropFalcon, func(t testing.TB) []byte {
			f := plain6(t)
			f[20] = protoFragment
			f[54], f[56], f[57] = 252, 1, 0
			return f
		}, Offload{}},
		{"broadcast", DropMulticast, func(t testing.TB) []byte { return udp(t, everyone, macA, ipA, addr("255.255.255.255"), 1) }, Offload{}},
		{"multicast", DropMulticast, func(t testing.TB) []byte { return udp(t, MAC{1, 0, 0x5e, 0, 0, 1}, macA, ipA, addr("224.0.0.1"), 1) }, Offload{}},
		{"multicast to a unicast MAC", DropMulticast, func(t testing.TB) []byte { return udp(t, gwA, macA, v6A, addr("ff02::1"), 1) }, Offload{}},
		{"link-local", DropLinkLocal, func(t testing.TB) []byte { return udp(t, gwA, macA, addr("fe80::1"), v6C, 1) }, Offload{}},
		{"loopback", DropDestination, func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, addr("127.0.0.1"), 1) }, Offload{}},
		{"no route", DropNoRoute, func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, addr("10.0.0.9"), 1) }, Offload{}},
		{"a route that leads nowhere", DropNoRoute, func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, addr("10.3.3.9"), 1) }, Offload{}},
		{"to itself", DropHairpin, func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, ipA, 1) }, Offload{}},
		{"to a router", DropDestination, func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, router4, 1) }, Offload{}},
		{"no hop left", DropTTL, func(t testing.TB) []byte {
			f := udp(t, gwA, macA, ipA, addr("10.3.1.1"), 1)
			f[22] = 1
			return resum(f)
		}, Offload{}},
		{"too big", DropTooBig, func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, ipC, 1500) }, Offload{}},
		{"too big for IPv6", DropTooBig, func(t testing.TB) []byte { return udp(t, gwA, macA, v6A, v6C, 1500) }, Offload{}},
		{"unknown offload", DropOffload, plain, Offload{GSO: 3, NeedsCsum: true, Size: 100, CsumStart: 34, CsumOffset: 6}},
		{"TCP offload of UDP", DropOffload, plain, Offload{GSO: GSOTCP4, NeedsCsum: true, Size: 100, CsumStart: 34, CsumOffset: 16}},
		{"offload without size", DropOffload, plain, Offload{GSO: GSOUDP, NeedsCsum: true, CsumStart: 34, CsumOffset: 6}},
		{"offload without checksum", DropOffload, plain, Offload{GSO: GSOUDP, Size: 10, CsumStart: 34, CsumOffset: 6}},
		{"cut to crumbs", DropOffload, func(t testing.TB) []byte { return udp(t, gwA, macA, ipA, ipC, 1000) }, Offload{GSO: GSOUDP, NeedsCsum: true, Size: 7, CsumStart: 34, CsumOffset: 6}},
		{"checksum behind the end", DropOffload, plain, Offload{NeedsCsum: true, CsumStart: 141, CsumOffset: 6}},
		{"checksum in the Ethernet header", DropOffload, plain, Offload{NeedsCsum: true, CsumStart: 2, CsumOffset: 6}},
		{"announcement", DropARP, func(t testing.TB) []byte { return arpFrame(macA, ipA, ipA) }, Offload{}},
		{"probe for its own", DropARP, func(t testing.TB) []byte { return arpFrame(macA, addr("0.0.0.0"), ipA) }, Offload{}},
		{"request for nobody", DropARP, func(t testing.TB) []byte { return arpFrame(macA, ipA, addr("10.0.0.9")) }, Offload{}},
		{"request in another's name", DropSourceIP, func(t testing.TB) []byte { return arpFrame(macA, ipB, ipC) }, Offload{}},
		{"cut ARP", DropARP, func(t testing.TB) []byte { return arpFrame(macA, ipA, ipC)[:41] }, Offload{}},
		{"router advertisement", DropND, func(t testing.TB) []byte {
			return ndFrame(t, macA, addr("fe80::1"), addr("ff02::1"), ndRouterAdvertise, v6A)
		}, Offload{}},
		{"redirect", DropND, func(t testing.TB) []byte { return ndFrame(t, macA, addr("fe80::1"), v6C, ndRedirect, v6A) }, Offload{}},
		{"duplicate address detection of its own", DropND, func(t testing.TB) []byte { return ndFrame(t, macA, addr("::"), addr("ff02::1:ff00:1"), ndSolicit, v6A) }, Offload{}},
		{"solicitation for nobody", DropND, func(t testing.TB) []byte {
			return ndFrame(t, macA, v6A, addr("ff02::1:ff00:9"), ndSolicit, addr("fd00::9"))
		}, Offload{}},
		{"solicitation in another's name", DropSourceIP, func(t testing.TB) []byte { return ndFrame(t, macA, v6B, v6C, ndSolicit, v6C) }, Offload{}},
		{"DHCP answer", DropDHCP, func(t testing.TB) []byte {
			f := dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, netip.Addr{})
			f[ethLen+ipv4Len+udpLen] = bootReply
			return f
		}, Offload{}},
		{"half a DHCP message", DropDHCP, func(t testing.TB) []byte {
			u, ip := &layers.UDP{SrcPort: dhcpClient, DstPort: dhcpServer}, ip4(addr("0.0.0.0"), addr("255.255.255.255"), layers.IPProtocolUDP)
			_ = u.SetNetworkLayerForChecksum(ip)
			return frame(t, eth(everyone, macA, layers.EthernetTypeIPv4), ip, u, gopacket.Payload(append([]byte{bootRequest, 1, 6}, make([]byte, 100)...)))
		}, Offload{}},
		{"DHCP in another's name", DropDHCP, func(t testing.TB) []byte { return dhcpFrame(t, macB, layers.DHCPMsgTypeDiscover, netip.Addr{}) }, Offload{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNet(t)
			f := tc.f(t)
			if p := n.send(f, tc.off); p != nil {
				t.Errorf("%d packets for the tunnel", len(p))
			}
			for r, count := range n.g.Stats().Reasons {
				switch r := Reason(r); {
				case r == tc.why && (count != 1 || n.a.Drops[r] != 1):
					t.Errorf("%v counted %d times, %d at the port", r, count, n.a.Drops[r])
				case r != tc.why && count != 0 && r < CountARP:
					t.Errorf("%v counted %d times", r, count)
				}
			}
			for _, o := range n.output() {
				if o.port != n.a || tc.why != DropNoRoute && tc.why != DropTooBig && tc.why != DropTTL {
					t.Errorf("%x came out of %s", o.b, o.port.Name)
				}
			}
		})
	}
}

func arpFrame(src MAC, sender, target netip.Addr) []byte {
	f := make([]byte, ethLen+arpLen)
	copy(f, everyone[:])
	copy(f[6:], src[:])
	binary.BigEndian.PutUint16(f[12:], typeARP)
	a := f[ethLen:]
	copy(a, arpPrefix[:])
	a[7] = arpRequest
	copy(a[8:], src[:])
	s, d := sender.As4(), target.As4()
	copy(a[14:], s[:])
	copy(a[24:], d[:])
	return f
}

func ndFrame(t testing.TB, src MAC, from, to netip.Addr, kind uint8, target netip.Addr) []byte {
	t.Helper()
	ip := ip6(from, to, layers.IPProtocolICMPv6)
	ip.HopLimit = 255
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	_ = icmp.SetNetworkLayerForChecksum(ip)
	body := make([]byte, 20)
	a := target.As16()
	copy(body[4:], a[:])
	return frame(t, eth(MAC{0x33, 0x33, 0, 0, 0, 1}, src, layers.EthernetTypeIPv6), ip, icmp, gopacket.Payload(body))
}

func dhcpFrame(t testing.TB, client MAC, kind layers.DHCPMsgType, wants netip.Addr) []byte {
	t.Helper()
	d := &layers.DHCPv4{
		Operation: layers.DHCPOpRequest, HardwareType: layers.LinkTypeEthernet, HardwareLen: 6, Xid: 0x01020304, ClientHWAddr: client[:],
		ClientIP: []byte{0, 0, 0, 0}, YourClientIP: []byte{0, 0, 0, 0}, NextServerIP: []byte{0, 0, 0, 0}, RelayAgentIP: []byte{0, 0, 0, 0},
		Options: layers.DHCPOptions{layers.NewDHCPOption(layers.DHCPOptMessageType, []byte{byte(kind)})},
	}
	if wants.IsValid() {
		d.Options = append(d.Options, layers.NewDHCPOption(layers.DHCPOptRequestIP, wants.AsSlice()))
	}
	u := &layers.UDP{SrcPort: dhcpClient, DstPort: dhcpServer}
	ip := ip4(addr("0.0.0.0"), addr("255.255.255.255"), layers.IPProtocolUDP)
	_ = u.SetNetworkLayerForChecksum(ip)
	return frame(t, eth(everyone, macA, layers.EthernetTypeIPv4), ip, u, d)
}

// The gateway answers with its own MAC for addresses behind it, as seen from the port.
func TestARPAnswers(t *testing.T) {
	for _, target := range []netip.Addr{ipB, ipC, router4, addr("10.3.1.1"), addr("10.2.1.1")} {
		for _, sender := range []netip.Addr{ipA, addr("0.0.0.0"), addr("10.1.4.4")} { // its own, a probe, behind it
			n := newNet(t)
			n.send(arpFrame(macA, sender, target), Offload{})
			out := n.output()
			if len(out) != 1 || out[0].port != n.a {
				t.Fatalf("%s asks for %s: %d answers", sender, target, len(out))
			}
			p := gopacket.NewPacket(out[0].b, layers.LayerTypeEthernet, gopacket.Default)
			a, _ := p.Layer(layers.LayerTypeARP).(*layers.ARP)
			if a == nil || a.Operation != 2 || MAC(a.SourceHwAddress) != gwA || MAC(a.DstHwAddress) != macA ||
				netip.AddrFrom4([4]byte(a.SourceProtAddress)) != target || netip.AddrFrom4([4]byte(a.DstProtAddress)) != sender || MAC(out[0].b[:6]) != macA {
				t.Errorf("%+v", a)
			}
		}
	}
}

// TestLinkLocalFunctions: the gateway answers for link-local addresses that drivers added to
// functions of the tenant, and for no others. A guest that checks whether such an address is free
// gets no answer, since the address may be its own.
func TestLinkLocalFunctions(t *testing.T) {
	n := newNet(t)
	there := addr("fe80::56:4eff:fe02:1")
	n.g.UseFunctions(func(tenant uint32, gid [16]byte) bool { return tenant == 7 && gid == there.As16() })
	for _, c := range []struct {
		from, target string
		answers      int
	}{{"fe80::1", there.String(), 1}, {"fe80::1", "fe80::99", 0}, {"::", there.String(), 0}} {
		n.send(ndFrame(t, macA, addr(c.from), addr("ff02::1:ff02:1"), ndSolicit, addr(c.target)), Offload{})
		out := n.output()
		if len(out) != c.answers {
			t.Fatalf("%s asks for %s: %d answers, want %d", c.from, c.target, len(out), c.answers)
		}
		if len(out) == 1 {
			na, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
			if na == nil || na.Flags != flagSolicited|flagOverride || MAC(na.Options[0].Data) != gwA {
				t.Errorf("%+v", na)
			}
		}
	}
}

func TestNeighbourDiscovery(t *testing.T) {
	n := newNet(t)
	ask := func(from, target netip.Addr) *layers.ICMPv6NeighborAdvertisement {
		t.Helper()
		n.send(ndFrame(t, macA, from, addr("ff02::1:ff00:3"), ndSolicit, target), Offload{})
		out := n.output()
		if len(out) != 1 || out[0].port != n.a {
			t.Fatalf("%d answers", len(out))
		}
		p := decode(t, out[0].b)
		na, _ := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		if na == nil || len(na.Options) != 1 || MAC(na.Options[0].Data) != gwA || !bytes.Equal(na.TargetAddress, target.AsSlice()) {
			t.Fatalf("%v", p)
		}
		return na
	}
	if na := ask(v6A, v6C); na.Flags != flagSolicited|flagOverride {
		t.Errorf("%+v", na)
	}
	if na := ask(addr("fe80::1"), router6); na.Flags != flagSolicited|flagOverride|flagRouter {
		t.Errorf("%+v", na)
	}
	if na := ask(addr("::"), v6B); na.Flags != flagOverride { // another's duplicate address detection: it is taken
		t.Errorf("%+v", na)
	}

	n.send(ndFrame(t, macA, addr("fe80::1"), addr("ff02::2"), ndRouterSolicit, addr("::")), Offload{})
	out := n.output()
	if len(out) != 1 {
		t.Fatal("no router advertisement")
	}
	ra, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6RouterAdvertisement).(*layers.ICMPv6RouterAdvertisement)
	if ra == nil || ra.RouterLifetime != routerLifetime {
		t.Fatalf("%+v", ra)
	}
	found := map[layers.ICMPv6Opt][]byte{}
	for _, o := range ra.Options {
		found[o.Type] = o.Data
	}
	if mtu := found[layers.ICMPv6OptMTU]; len(mtu) != 6 || binary.BigEndian.Uint32(mtu[2:]) != tunnelMTU {
		t.Errorf("MTU %x", mtu)
	}
	if p := found[layers.ICMPv6OptPrefixInfo]; len(p) != 30 || p[0] != 64 || p[1] != onLinkFlag || p[14] != 0xfd {
		t.Errorf("prefix %x: a guest must not make itself an address that is not its own", p)
	}
	mac := EndpointConfig{Tenant: 7, MAC: macA, Addresses: []netip.Addr{ipA, eui64(netip.MustParsePrefix("fd00::/64"), macA)}, MTU: tunnelMTU, Assign: true}
	configure(n.g, n.a, mac, true)
	n.send(ndFrame(t, macA, addr("fe80::1"), addr("ff02::2"), ndRouterSolicit, addr("::")), Offload{})
	if b := n.output()[0].b; !bytes.Contains(b, []byte{optPrefix, 4, 64, onLinkFlag | autonomousFlag}) {
		t.Errorf("%x", b)
	}
}

func TestDHCP(t *testing.T) {
	n := newNet(t)
	answer := func(f []byte) *layers.DHCPv4 {
		t.Helper()
		n.send(f, Offload{})
		out := n.output()
		if len(out) != 1 || out[0].port != n.a {
			t.Fatalf("%d answers", len(out))
		}
		d, _ := decode(t, out[0].b).Layer(layers.LayerTypeDHCPv4).(*layers.DHCPv4)
		if d == nil || d.Xid != 0x01020304 || d.Operation != layers.DHCPOpReply || MAC(d.ClientHWAddr) != macA {
			t.Fatalf("%+v", d)
		}
		return d
	}
	ask := func(kind layers.DHCPMsgType, wants netip.Addr) *layers.DHCPv4 {
		t.Helper()
		return answer(dhcpFrame(t, macA, kind, wants))
	}
	option := func(d *layers.DHCPv4, o layers.DHCPOpt) []byte {
		for _, x := range d.Options {
			if x.Type == o {
				return x.Data
			}
		}
		return nil
	}
	offer := ask(layers.DHCPMsgTypeDiscover, netip.Addr{})
	if option(offer, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeOffer) || !offer.YourClientIP.Equal(ipA.AsSlice()) {
		t.Errorf("%+v", offer)
	}
	for o, want := range map[layers.DHCPOpt][]byte{
		layers.DHCPOptSubnetMask: {255, 255, 255, 0}, layers.DHCPOptRouter: router4.AsSlice(), layers.DHCPOptDNS: {10, 0, 0, 53},
		layers.DHCPOptInterfaceMTU: {tunnelMTU >> 8, tunnelMTU & 0xff}, layers.DHCPOptServerID: router4.AsSlice(),
	} {
		if got := option(offer, o); !bytes.Equal(got, want) {
			t.Errorf("option %v: %v, want %v", o, got, want)
		}
	}
	if d := ask(layers.DHCPMsgTypeRequest, ipA); option(d, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeAck) {
		t.Errorf("%+v", d)
	}
	if d := ask(layers.DHCPMsgTypeRequest, ipB); option(d, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeNak) || option(d, layers.DHCPOptSubnetMask) != nil {
		t.Errorf("%+v", d)
	}
	renewal := dhcpFrame(t, macA, layers.DHCPMsgTypeRequest, netip.Addr{}) // to the server itself, of the address it has
	copy(renewal, gwA[:])
	copy(renewal[ethLen+12:], ipA.AsSlice())
	copy(renewal[ethLen+16:], router4.AsSlice())
	finishIPv4(renewal[ethLen:], ipv4Len)
	m := renewal[ethLen+ipv4Len+udpLen:]
	copy(m[12:], ipA.AsSlice())
	finishL4(renewal[ethLen:], &header{proto: protoUDP, src: ipA, dst: router4, l4: ipv4Len, total: ipv4Len + udpLen + len(m)}, 6)
	if d := answer(renewal); option(d, layers.DHCPOptMessageType)[0] != byte(layers.DHCPMsgTypeAck) || !d.YourClientIP.Equal(ipA.AsSlice()) {
		t.Errorf("%+v", d)
	}
	n.a.Assign = false
	if n.send(dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, netip.Addr{}), Offload{}); len(n.output()) != 0 {
		t.Error("answered though it assigns nothing")
	}
}

// The sender of a packet that is too long gets an error with the MTU, but not about errors, and not
// too often.
func TestTooBig(t *testing.T) {
	n := newNet(t)
	big := udp(t, gwA, macA, ipA, ipC, 1500)
	n.send(bytes.Clone(big), Offload{})
	icmp, _ := decode(t, n.output()[0].b).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if icmp == nil || icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || icmp.Seq != tunnelMTU || !bytes.Equal(icmp.Payload, big[14:14+548]) {
		t.Errorf("%+v", icmp)
	}
	n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, 1300}, {7, v6C, 0x020001, 1300}}) // the peer's port takes less
	six := udp(t, gwA, macA, v6A, v6C, 1300)
	n.send(six, Offload{})
	p := decode(t, n.output()[0].b)
	m, _ := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if m == nil || m.TypeCode != layers.CreateICMPv6TypeCode(2, 0) || binary.BigEndian.Uint32(m.Payload) != 1300 || len(p.Data()) > 1280+14 {
		t.Errorf("%v", p)
	}
	told := n.g.Stats().Reasons[CountICMP]
	for range 1000 {
		n.send(bytes.Clone(big), Offload{})
		n.output()
	}
	if now := n.g.Stats().Reasons[CountICMP]; now != errorBurst || n.g.Stats().Reasons[DropICMPLimit] == 0 {
		t.Errorf("%d errors, %d before", now, told)
	}
	m2 := ip4(ipA, ipC, layers.IPProtocolICMPv4)
	refusal := frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), m2, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)}, gopacket.Payload(make([]byte, 1500)))
	n = newNet(t)
	if n.send(refusal, Offload{}); len(n.output()) != 0 {
		t.Error("an error about an error")
	}
}

func TestEcho(t *testing.T) {
	n := newNet(t)
	ping := frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip4(ipA, router4, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5, Seq: 6}, gopacket.Payload("hello"))
	n.send(ping, Offload{})
	icmp, _ := decode(t, n.output()[0].b).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if icmp == nil || icmp.TypeCode.Type() != 0 || icmp.Id != 5 || icmp.Seq != 6 || string(icmp.Payload) != "hello" {
		t.Errorf("%+v", icmp)
	}

	ip := ip6(v6A, v6C, layers.IPProtocolICMPv6) // another's: it is not the gateway's to answer
	to := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	_ = to.SetNetworkLayerForChecksum(ip)
	ping = frame(t, eth(gwA, macA, layers.EthernetTypeIPv6), ip, to, gopacket.Payload("\x00\x05\x00\x06hello"))
	if p := n.send(bytes.Clone(ping), Offload{}); len(p) != 1 || !bytes.Equal(p[0], ping[ethLen:]) {
		t.Errorf("%x of %x to the peer", p, ping)
	}
}

// Between ports of a NIC a frame passes whole, whatever it stands for. Inside a subnet its TTL is
// not changed.
func TestLocal(t *testing.T) {
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

// A trusted port's station has its own MAC, which the gateway learns from packets of its addresses,
// not from traffic between other stations of its network. A station that asks for a neighbour gets
// the answer itself.
func TestTrustedStation(t *testing.T) {
	n := newNet(t)
	station, other := MAC{2, 0, 0, 0, 0, 0xc}, MAC{2, 0, 0, 0, 0, 0xd}
	c := n.a.EndpointConfig
	c.Trust = true
	configure(n.g, n.a, c, true)
	to := func(at ...netip.Addr) MAC {
		t.Helper()
		from := ipB
		if at = append(at, ipA); at[0].Is6() {
			from = v6B
		}
		n.g.FromPort(second, &PortInput{From: n.b, Frame: udp(t, gwB, macB, from, at[0], 10)}, &n.fwd)
		out := n.output()
		if len(out) == 0 || out[0].port != n.a {
			t.Fatalf("%+v", out)
		}
		return MAC(out[0].b[:6])
	}
	if got := to(); got != macA {
		t.Errorf("before it is heard: to %x", got)
	}
	link := addr("fe80::d")
	for name, announce := range map[string][]byte{
		"a packet": udp(t, gwA, station, ipA, ipB, 10), "ARP": arpFrame(station, ipA, ipB), "an announcement": arpFrame(station, ipA, ipA),
		"a solicitation": ndFrame(t, station, v6A, v6B, ndSolicit, v6B),
	} {
		at := ipA
		if name == "a solicitation" {
			at = v6A
		}
		n.send(udp(t, gwA, macA, ipA, ipB, 10), Offload{})
		n.send(announce, Offload{})
		n.output()
		if got := to(at); got != station {
			t.Errorf("after %s: to %x", name, got)
		}
		for _, f := range [][]byte{
			arpFrame(other, addr("10.0.0.77"), ipA), arpFrame(other, addr("0.0.0.0"), ipB), ndFrame(t, other, link, v6B, ndSolicit, v6B),
			udp(t, everyone, other, addr("10.0.0.77"), addr("10.0.0.255"), 10), udp(t, gwA, other, addr("10.0.0.77"), ipB, 10),
		} {
			n.send(f, Offload{})
			for _, o := range n.output() {
				if got := MAC(o.b[:6]); got != other {
					t.Errorf("%x was answered to %x", f, got)
				}
			}
		}
		if got := to(at); got != station {
			t.Errorf("after %s and what others said: to %x", name, got)
		}
	}
}

// Attack: tenants with equal addresses. Whatever one tenant sends, from its port or through a
// tunnel, the other tenant's ports do not receive it.
func TestTenantsApart(t *testing.T) {
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

// Packets from a peer are checked like packets from a guest.
func TestDropsFromTunnel(t *testing.T) {
	for _, tc := range []struct {
		name  string
		why   Reason
		f     func(t testing.TB) []byte
		outer uint8
	}{
		{"another's address", DropWrongSource, func(t testing.TB) []byte { return udp(t, macA, gwA, ipB, ipA, 10) }, 0},
		{"nobody's address", DropWrongSource, func(t testing.TB) []byte { return udp(t, macA, gwA, addr("10.0.0.9"), ipA, 10) }, 0},
		{"to nobody", DropNoPort, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, addr("10.0.0.9"), 10) }, 0},
		{"to itself", DropNoPort, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, ipC, 10) }, 0},
		{"to a router", DropNoPort, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, router4, 10) }, 0},
		{"Falcon", DropFalcon, func(t testing.TB) []byte {
			f := udp(t, macA, gwA, ipC, ipA, 10)
			f[23] = 252
			finishIPv4(f[14:], 20)
			return f
		}, 0},
		{"something behind", DropTruncated, func(t testing.TB) []byte { return append(udp(t, macA, gwA, ipC, ipA, 10), 0) }, 0},
		{"cut", DropTruncated, func(t testing.TB) []byte { f := udp(t, macA, gwA, ipC, ipA, 10); return f[:len(f)-1] }, 0},
		{"no packet", DropTruncated, func(t testing.TB) []byte { return make([]byte, 14) }, 0},
		{"too big", DropPortTooBig, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, ipA, 1500) }, 0},
		{"congestion untold", DropECN, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, ipA, 10) }, ecnCE},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNet(t)
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), tc.f(t), tc.outer)
			if out := n.output(); len(out) != 0 || n.g.Stats().Reasons[tc.why] != 1 {
				t.Errorf("%+v %v", out, n.g.Stats().Reasons)
			}
		})
	}
	n := newNet(t)
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, macA, gwA, addr("10.3.1.1"), ipA, 10), 0) // behind the peer's function
	if len(n.output()) != 1 {
		t.Error(n.g.Stats().Reasons)
	}
}

// TestOuterClassIsTheInnerOnes: the outer header has the DSCP and ECN of the inner packet, for
// plain IP and for RoCEv2 (RFC 2983 §3.1, RFC 6040 §4.1, Annex A17.9.2). A received packet has the
// DSCP that its sender wrote.
func TestOuterClassIsTheInnerOnes(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for class := range 256 {
			n := newNet(t)
			there, back := udp(t, gwA, macA, ipA, ipC, 10), udp(t, macA, gwA, ipC, ipA, 10)
			if v6 {
				there, back = udp(t, gwA, macA, v6A, v6C, 10), udp(t, macA, gwA, v6C, v6A, 10)
			}
			for _, f := range [][]byte{there, back} {
				setClass(f[14:], uint8(class))
			}
			roce := bytes.Clone(there)
			if n.send(there, Offload{}); n.fwd.Class != uint8(class) {
				t.Errorf("plain IP, IPv6 %t, class %#x: %#x outside", v6, class, n.fwd.Class)
			}
			var f Forward
			if !n.g.FromFunction(n.a, roce, &f) || f.Class != uint8(class) {
				t.Errorf("RoCEv2, IPv6 %t, class %#x: %#x outside", v6, class, f.Class)
			}
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), back, uint8(class)&ecnMask)
			if h, why := parseIP(n.output()[0].b[14:]); why != none || h.class != uint8(class) {
				t.Errorf("IPv6 %t, class %#x: arrived as %#x, %v", v6, class, h.class, why)
			}
		}
	}
}

// setClass writes the TOS or traffic class of an IP packet.
func setClass(b []byte, class uint8) {
	if b[0]>>4 == 6 {
		b[0], b[1] = 0x60|class>>4, class<<4|b[1]&0xf
		return
	}
	b[1] = class
	finishIPv4(b, int(b[0]&0xf)*4)
}

// RFC 6040, figure 4, and the marking at the entrance.
func TestECN(t *testing.T) {
	const not, ect1, ect0, ce = 0, ecnECT1, ecnECT0, ecnCE
	for _, tc := range []struct{ inner, outer, want uint8 }{
		{not, not, not},
		{not, ect0, not},
		{not, ect1, not},
		{ect0, not, ect0},
		{ect0, ect0, ect0},
		{ect0, ect1, ect1},
		{ect0, ce, ce},
		{ect1, not, ect1},
		{ect1, ect0, ect1},
		{ect1, ect1, ect1},
		{ect1, ce, ce},
		{ce, not, ce},
		{ce, ect0, ce},
		{ce, ect1, ce},
		{ce, ce, ce},
	} {
		for _, v6 := range []bool{false, true} {
			n := newNet(t)
			back, there := udp(t, macA, gwA, ipC, ipA, 10), udp(t, gwA, macA, ipA, ipC, 10)
			if v6 {
				back, there = udp(t, macA, gwA, v6C, v6A, 10), udp(t, gwA, macA, v6A, v6C, 10)
			}
			for _, f := range [][]byte{back, there} {
				h, _ := parseIP(f[14:])
				h.setECN(f[14:], tc.inner)
			}
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), back, tc.outer)
			h, why := parseIP(n.output()[0].b[14:])
			if why != none || h.ecn() != tc.want {
				t.Errorf("%+v, IPv6 %v: %d %v", tc, v6, h.ecn(), why)
			}
			if n.send(there, Offload{}); n.fwd.Class != tc.inner {
				t.Errorf("outer %d for inner %d", n.fwd.Class, tc.inner)
			}
		}
	}
}
