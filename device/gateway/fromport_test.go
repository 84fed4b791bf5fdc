package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Checks every reason to drop a guest's frame, one frame each, also behind a good one: it is counted,
// and there is no output.
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
		{"another host", DropOtherMAC, func(t testing.TB) []byte { return udp(t, macB, macA, ipA, ipC, 1) }, Offload{}},
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
		{"good addresses to all", DropMulticast, func(t testing.TB) []byte { return udp(t, everyone, macA, ipA, ipC, 1) }, Offload{}},
		{"good IPv6 addresses to all", DropMulticast, func(t testing.TB) []byte { return udp(t, everyone, macA, v6A, v6C, 1) }, Offload{}},
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
		for _, good := range []func(testing.TB) []byte{nil, plain, plain6} {
			t.Run(tc.name, func(t *testing.T) {
				n := newNet(t)
				if good != nil && n.send(good(t), Offload{}) == nil {
					t.Fatal("a good frame was dropped")
				}
				if p := n.send(tc.f(t), tc.off); p != nil {
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
}

// TestNewSettingsHoldForTheNextFrame: a port that may no longer send from an address has the next
// frame from there dropped, whether the address was the function's own or led behind it.
func TestNewSettingsHoldForTheNextFrame(t *testing.T) {
	n := newNet(t)
	behind := addr("10.1.0.9")
	may := func(src netip.Addr, want bool) {
		t.Helper()
		before := n.a.Drops[DropSourceIP]
		if sent := n.send(udp(t, gwA, macA, src, ipC, 1), Offload{}) != nil; sent != want || (n.a.Drops[DropSourceIP] == before) != want {
			t.Errorf("from %v: sent %v, want %v", src, sent, want)
		}
	}
	may(behind, true)
	n.g.routes.SetTenant(TenantConfig{Tenant: 7, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	may(behind, false)
	may(ipA, true)
	c := n.a.EndpointConfig
	c.Addresses = []netip.Addr{v6A}
	configure(n.g, n.a, c, true)
	may(ipA, false)
	c.Spoof = true
	configure(n.g, n.a, c, true)
	may(ipA, true)
	may(behind, true)
}

// fragmented changes the IPv4 packet of a frame into a first fragment.
func fragmented(f []byte) []byte {
	f[ethLen+6] |= 0x20
	finishIPv4(f[ethLen:], ipv4Len)
	return f
}

// TestPortSendsFromItsFunctionOnly: a packet from a port must come from its function, go to one
// other host, and have an address that may leave the link. A port that may send from any address
// may not send from an invalid one.
func TestPortSendsFromItsFunctionOnly(t *testing.T) {
	small := func(dst MAC, from, to netip.Addr) []byte { return udp(t, dst, macA, from, to, 10) }
	group := MAC{1, 0, 0x5e, 1, 2, 3}
	from := func(src MAC) []byte { return udp(t, gwA, src, ipA, ipC, 10) }
	for name, tc := range map[string]struct {
		trust, spoof bool
		f            []byte
		why          Reason
	}{
		"a trusted MAC":                   {true, false, from(MAC{2, 9, 9, 9, 9, 9}), none},
		"any MAC of one that may spoof":   {false, true, from(MAC{2, 9, 9, 9, 9, 9}), none},
		"a group's MAC":                   {true, true, from(MAC{3, 9, 9, 9, 9, 9}), DropSourceMAC},
		"no MAC":                          {true, true, from(MAC{}), DropSourceMAC},
		"the gateway's MAC":               {true, true, from(gwA), DropSourceMAC},
		"to no address":                   {false, false, small(gwA, ipA, addr("0.0.0.0")), DropDestination},
		"to no IPv6 address":              {false, false, small(gwA, v6A, addr("::")), DropDestination},
		"to itself as all do":             {false, false, small(gwA, v6A, addr("::1")), DropDestination},
		"to one, for a group":             {false, false, small(group, ipA, ipC), DropMulticast},
		"to all, for the gateway":         {false, false, small(gwA, ipA, broadcastIP), DropMulticast},
		"to a group, for the gateway":     {false, false, small(gwA, ipA, addr("224.0.0.9")), DropMulticast},
		"from no address":                 {false, true, small(gwA, addr("0.0.0.0"), ipC), DropSourceIP},
		"from a group":                    {false, true, small(gwA, addr("224.0.0.9"), ipC), DropSourceIP},
		"from an IPv6 group":              {false, true, small(gwA, addr("ff02::9"), v6C), DropSourceIP},
		"from itself as all do":           {false, true, small(gwA, addr("127.0.0.1"), ipC), DropSourceIP},
		"from another's address":          {false, true, small(gwA, ipB, ipC), none},
		"from the link":                   {false, true, small(gwA, addr("fe80::9"), v6C), DropLinkLocal},
		"to the link":                     {false, false, small(gwA, v6A, addr("fe80::9")), DropLinkLocal},
		"to IPv4's link":                  {false, false, small(gwA, ipA, addr("169.254.7.7")), DropLinkLocal},
		"from IPv4's link":                {false, false, small(gwA, addr("169.254.7.7"), ipC), DropSourceIP},
		"from IPv4's link, spoofed":       {false, true, small(gwA, addr("169.254.7.7"), ipC), none},
		"nothing behind its type":         {false, false, small(gwA, v6A, v6C)[:ethLen], DropTruncated},
		"nothing behind a type of others": {false, false, append(small(gwA, v6A, v6C)[:12:12], 0x88, 0xcc), DropEtherType},
	} {
		n := newNet(t)
		c := n.a.EndpointConfig
		c.Trust, c.Spoof = tc.trust, tc.spoof
		configure(n.g, n.a, c, true)
		p := n.send(tc.f, Offload{})
		n.output()
		if len(p) != 0 != (tc.why == none) || tc.why != none && n.a.Drops[tc.why] != 1 {
			t.Errorf("%s: %d packets for the peer, %v", name, len(p), n.g.Stats().Reasons)
		}
	}
}

// TestRouterForwardsWhileAHopIsLeft: a router forwards a packet only if a hop is left after it.
// Inside a subnet the TTL is not changed.
func TestRouterForwardsWhileAHopIsLeft(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tc := range []struct {
			onLink     bool
			ttl, after uint8 // 0: it does not arrive
		}{{true, 1, 1}, {true, 2, 2}, {false, 1, 0}, {false, 2, 1}, {false, 3, 2}} {
			n := newNet(t)
			from, to, at := ipA, addr("10.3.1.1"), 8
			if v6 {
				from, to, at = v6A, v6C, 7
			}
			switch {
			case tc.onLink && !v6:
				to = ipC
			case !tc.onLink && v6: // it has moved out of the subnet
				to = addr("fd01::3")
				n.g.routes.Learn(2, []Address{{7, to, 0x020001, 9000}})
			}
			hop := func() []byte {
				f := udp(t, gwA, macA, from, to, 10)
				f[ethLen+at] = tc.ttl
				if !v6 {
					finishIPv4(f[ethLen:], ipv4Len)
				}
				return f
			}
			packets := n.send(hop(), Offload{})
			n.output()
			if n.g.FromFunction(n.a, hop(), FunctionWork{}, &n.fwd) {
				packets = append(packets, n.fwd.Next())
			}
			if (len(packets) == 2) != (tc.after != 0) || tc.after == 0 && n.a.Drops[DropTTL] != 2 {
				t.Fatalf("IPv6 %t, %+v: %d packets, %v", v6, tc, len(packets), n.g.Stats().Reasons)
			}
			for _, p := range packets {
				if h, why := parseIP(p); why != none || h.ttl != tc.after {
					t.Errorf("IPv6 %t, %+v: %v, %d hops left", v6, tc, why, h.ttl)
				}
			}
		}
	}
}

// tagged returns a frame with a VLAN tag.
func tagged(f []byte, tci uint16) []byte {
	t := append(bytes.Clone(f[:12]), 0x81, 0)
	return append(binary.BigEndian.AppendUint16(t, tci), f[12:]...)
}

// TestAPriorityTagChangesNothing: a frame with a priority tag is handled like one without; a frame of a VLAN is
// dropped.
func TestAPriorityTagChangesNothing(t *testing.T) {
	big, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 0, 5000, 1000, 0)
	for name, tc := range map[string]struct {
		frame []byte
		off   Offload
	}{
		"to a peer":             {udp(t, gwA, macA, ipA, ipC, 100), Offload{}},
		"to a port":             {udp(t, gwA, macA, v6A, v6B, 100), Offload{}},
		"ARP":                   {arpFrame(macA, ipA, ipB), Offload{}},
		"that stands for many":  {big, off},
		"a checksum left open":  {udp(t, gwA, macA, ipA, ipC, 100), Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 6}},
		"a checksum in nothing": {udp(t, gwA, macA, ipA, ipC, 100), Offload{NeedsCsum: true, CsumStart: 2, CsumOffset: 6}},
	} {
		plain := newNet(t)
		want := plain.send(bytes.Clone(tc.frame), tc.off)
		ports := plain.output()
		for _, tci := range []uint16{0, 0xe000, 0x1000} { // priorities, and DEI
			n := newNet(t)
			o := tc.off
			if o.NeedsCsum {
				o.CsumStart += 4
			}
			got := n.send(tagged(tc.frame, tci), o)
			if len(got) != len(want) || !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
				t.Errorf("%s, tag %#x: %d packets, want %d", name, tci, len(got), len(want))
			}
			out := n.output()
			if len(out) != len(ports) {
				t.Fatalf("%s, tag %#x: %d frames, want %d", name, tci, len(out), len(ports))
			}
			for i := range out {
				if !bytes.Equal(out[i].b, ports[i].b) || out[i].off != ports[i].off {
					t.Errorf("%s, tag %#x: frame %x, want %x", name, tci, out[i].b, ports[i].b)
				}
			}
		}
		n := newNet(t)
		if got := n.send(tagged(tc.frame, 1), tc.off); got != nil || len(n.output()) != 0 || n.g.Stats().Reasons[DropEtherType] != 1 {
			t.Errorf("%s of VLAN 1 went on", name)
		}
	}
	n := newNet(t)
	for i := range ethLen + 8 { // every prefix
		n.send(tagged(udp(t, gwA, macA, ipA, ipC, 100), 0)[:i], Offload{})
	}
	if s := n.g.Stats(); s.Reasons[DropTruncated]+s.Reasons[DropEtherType] != ethLen+8 {
		t.Errorf("%v", s.Reasons)
	}
}

// left is the end of a frame in its guest's memory.
type left struct {
	there   []byte
	room    []byte
	fetched bool
	lost    bool
}

func (l *left) Len() int { return len(l.room) }

func (l *left) Fetch() bool {
	if !l.fetched && !l.lost {
		copy(l.room, l.there)
	}
	l.fetched = true
	return !l.lost
}

// minHead is the least number of bytes that ports copy.
const minHead = ethLen + ipv6Len

// inTwo returns a frame of which only the first n bytes were copied.
func inTwo(p *Endpoint, f []byte, n int, off Offload) (*PortInput, *left) {
	if n >= len(f) {
		return &PortInput{From: p, Frame: bytes.Clone(f), Offload: off}, nil
	}
	room := bytes.Repeat([]byte{0xee}, len(f)) // that of other frames before
	copy(room, f[:n])
	l := &left{there: f[n:], room: room[n:]}
	return &PortInput{From: p, Frame: room[:n], Offload: off, Rest: l}, l
}

// put is like send, for a frame of which only a part was copied.
func (n *net) put(in *PortInput) (packets [][]byte) {
	n.t.Helper()
	if n.g.FromPort(second, in, &n.fwd) {
		for b := n.fwd.Next(); b != nil; b = n.fwd.Next() {
			packets = append(packets, bytes.Clone(b))
		}
	}
	return packets
}

// same compares the output of two gateways for a frame, of which one gets only the first bytes.
func same(t testing.TB, one, two *net, f []byte, copied int, off Offload) {
	t.Helper()
	in, _ := inTwo(two.a, f, copied, off)
	want, got := one.send(bytes.Clone(f), off), two.put(in)
	if !bytes.Equal(bytes.Join(want, []byte("|")), bytes.Join(got, []byte("|"))) {
		t.Fatalf("%d of %d bytes copied: %d packets for the tunnel, want %d", copied, len(f), len(got), len(want))
	}
	a, b := one.output(), two.output()
	if len(a) != len(b) {
		t.Fatalf("%d of %d bytes copied: %d frames for ports, want %d", copied, len(f), len(b), len(a))
	}
	for i := range a {
		if a[i].port.Name != b[i].port.Name || a[i].off != b[i].off || !bytes.Equal(a[i].b, b[i].b) {
			t.Fatalf("%d of %d bytes copied: at %s\n%x, want\n%x", copied, len(f), b[i].port.Name, b[i].b, a[i].b)
		}
	}
	if *one.g.Stats() != *two.g.Stats() {
		t.Fatalf("%d of %d bytes copied: %+v, want %+v", copied, len(f), *two.g.Stats(), *one.g.Stats())
	}
}

// moreSamples returns frames for a port of the shard, and frames that cause errors or answers.
func moreSamples(t testing.TB) (list [][]byte) {
	far := udp(t, gwA, macA, ipA, addr("10.2.0.1"), 300) // a router's work
	late := bytes.Clone(far)
	late[ethLen+8] = 1
	finishIPv4(late[ethLen:], ipv4Len)
	ip := ip4(ipA, router4, layers.IPProtocolICMPv4)
	ping := frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)}, gopacket.Payload(make([]byte, 600)))
	deep := udp(t, gwA, macA, v6A, v6B, 800) // options up to far behind the beginning
	deep[20] = protoDstOpts
	deep[54], deep[55] = protoUDP, 60
	padded := append(udp(t, gwA, macA, ipA, ipB, 400), make([]byte, 100)...)
	return [][]byte{
		udp(t, gwA, macA, ipA, ipB, 1300), udp(t, gwA, macA, v6A, v6B, 1300), udp(t, gwA, macA, ipA, ipB, 1500), udp(t, gwA, macA, v6A, v6B, 1500),
		udp(t, gwA, macA, ipA, addr("10.0.0.200"), 900), udp(t, gwA, macA, ipA, ipA, 900), far, late, ping, deep, padded,
	}
}

// The gateway's output does not depend on how much of a frame a port has copied.
func TestRestChangesNothing(t *testing.T) {
	one, two := newNet(t), newNet(t)
	for _, f := range append(samples(t), moreSamples(t)...) {
		for copied := minHead; copied <= len(f); copied += 1 + copied/40 {
			same(t, one, two, f, copied, Offload{})
		}
	}
	for _, to := range []string{"10.0.0.2", "10.0.0.3", "10.2.0.1"} {
		f, off := whole(t, ipA, addr(to), layers.IPProtocolTCP, 12, 4000, 1400, tcpPSH)
		for copied := minHead; copied <= len(f); copied += 97 {
			same(t, one, two, f, copied, off)
		}
	}
}

// TCP and UDP payload between two ports stays where it is. Everything else is copied first, and the
// frame is dropped if that fails.
func TestOnlyPayloadStaysInGuestMemory(t *testing.T) {
	const copied = 256
	tcp, tso := whole(t, v6A, v6B, layers.IPProtocolTCP, 12, 4000, 1400, 0)
	for i, f := range [][]byte{udp(t, gwA, macA, ipA, ipB, 1000), tcp} {
		n := newNet(t)
		off := []Offload{{}, tso}[i]
		in, l := inTwo(n.a, f, copied, off)
		n.put(in)
		out := n.g.Output()
		if len(out) != 1 || l.fetched || out[0].Rest != l || len(out[0].Parts) != 1 || !bytes.Equal(out[0].Parts[0][ethLen:], f[ethLen:copied]) || out[0].GSO != off.GSO {
			t.Errorf("%d: %d frames, fetched %v", i, len(out), l.fetched)
		}
	}
	dhcp := longOption(dhcpFrame(t, macA, layers.DHCPMsgTypeDiscover, ipA), 200)
	frames := append(moreSamples(t)[2:], dhcp, udp(t, gwA, macA, ipA, ipC, 1000), append(arpFrame(macA, ipA, ipB), make([]byte, 300)...))
	for i, f := range frames {
		if bytes.Equal(f, moreSamples(t)[5]) || bytes.Equal(f, moreSamples(t)[6]) {
			continue // to itself: dropped unseen; and one that a router passes on
		}
		n := newNet(t)
		in, l := inTwo(n.a, f, copied, Offload{})
		n.put(in)
		if n.output(); !l.fetched {
			t.Errorf("frame %d was not copied", i)
		}
		n = newNet(t)
		in, l = inTwo(n.a, f, copied, Offload{})
		l.lost = true
		if p := n.put(in); p != nil {
			t.Errorf("frame %d went on without its end", i)
		}
		for _, o := range n.output() { // errors may quote what there is
			if o.port != n.a || len(o.b) > ethLen+ipv6Len+icmpLen+copied {
				t.Errorf("frame %d: %x at %s", i, o.b, o.port.Name)
			}
		}
		if n.g.Stats().Reasons[DropPanic] != 0 {
			t.Errorf("frame %d: panic", i)
		}
	}
}

// kept records frames for other shards.
type kept struct{ frames [][]byte }

func (k *kept) ToPort(_ uint8, _, _ uint32, frame []byte, _ Offload) bool {
	k.frames = append(k.frames, bytes.Clone(frame))
	return true
}

func (k *kept) ToGroup(uint8, uint32, uint32, []byte) bool { return false }

// A frame for another shard, or for a port's function, is copied first.
func TestRestIsCopiedForShardsAndFunctions(t *testing.T) {
	f := udp(t, gwA, macA, ipA, ipB, 1000)
	n, other := newNet(t), &kept{}
	n.g.Handover = other
	n.g.RemoveEndpoint(n.b)
	n.g.routes.SetPort(2, Place{Shard: 1, Tenant: 7, Addresses: addrs("10.0.0.2"), MTU: tunnelMTU, Up: true})
	in, _ := inTwo(n.a, f, 256, Offload{})
	n.put(in)
	if len(other.frames) != 1 || !bytes.Equal(other.frames[0], f) {
		t.Errorf("%d frames for the other shard", len(other.frames))
	}

	n = newNet(t)
	var packets [][]byte
	n.b.SetFunction(roceClaim, receiving(func(p []byte) { packets = append(packets, bytes.Clone(p)) }))
	binary.BigEndian.PutUint16(f[ethLen+ipv4Len+2:], rocePort)
	in, _ = inTwo(n.a, f, 256, Offload{})
	n.put(in)
	if len(packets) != 1 || !bytes.Equal(packets[0], f[ethLen:]) || len(n.output()) != 0 {
		t.Errorf("%d packets for the function", len(packets))
	}
}

// TestPayloadStaysOnceAllHeadersAreCopied: the payload stays in the guest's memory if 60 bytes of
// the upper layer were copied, which is the length of the longest header.
func TestPayloadStaysOnceAllHeadersAreCopied(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		from, to, l4 := ipA, ipB, ethLen+ipv4Len
		if v6 {
			from, to, l4 = v6A, v6B, ethLen+ipv6Len
		}
		for copied, stays := range map[int]bool{l4 + 59: false, l4 + 60: true, l4 + 61: true} {
			n := newNet(t)
			in, l := inTwo(n.a, udp(t, gwA, macA, from, to, 500), copied, Offload{})
			if n.put(in); l.fetched == stays || len(n.output()) != 1 {
				t.Errorf("IPv6 %t, %d bytes were copied: fetched %t", v6, copied, l.fetched)
			}
		}
	}
}

// No checksum may be written over checked fields: addresses, extension headers, next headers.
func TestChecksumOnlyInUpperLayer(t *testing.T) {
	extended := udp(t, gwA, macA, v6A, v6C, 100)
	extended[20] = protoDstOpts
	clear(extended[54:62])
	extended[54], extended[56], extended[57] = protoUDP, 1, 4
	for _, tc := range []struct {
		name string
		f    []byte
		l4   int
	}{
		{"IPv4", udp(t, gwA, macA, ipA, ipC, 100), ipv4Len},
		{"IPv6", udp(t, gwA, macA, v6A, v6C, 100), ipv6Len},
		{"IPv6 with an extension", extended, ipv6Len + 8},
		{"IPv6 to a port of this NIC", udp(t, gwA, macA, v6A, v6B, 100), ipv6Len},
	} {
		for start := range len(tc.f) + 3 {
			for _, at := range []int{0, 1, 2, 6, 16, 0xfffe} {
				n := newNet(t)
				off := Offload{NeedsCsum: true, CsumStart: uint16(start), CsumOffset: uint16(at)}
				was := tc.f[ethLen : ethLen+tc.l4]
				packets := n.send(bytes.Clone(tc.f), off)
				for _, o := range n.output() { // its kernel completes the checksum
					if int(o.off.CsumStart) < ethLen+tc.l4 {
						t.Fatalf("%s: checksum from %d on, at +%d, reached a port", tc.name, start, at)
					}
					packets = append(packets, o.b[ethLen:])
				}
				want := start >= ethLen+tc.l4 && start+at+2 <= len(tc.f)
				if len(packets) == 1 != want || !want && n.a.Drops[DropOffload] != 1 {
					t.Fatalf("%s: checksum from %d on, at +%d: %d packets", tc.name, start, at, len(packets))
				}
				if want && !bytes.Equal(packets[0][:tc.l4], was) {
					t.Fatalf("%s: checksum from %d on, at +%d: headers %x became %x", tc.name, start, at, was, packets[0][:tc.l4])
				}
			}
		}
	}
}

// TestARouteDoesNotCoverOthersAddresses: the function that a route leads to sends from addresses behind
// it, not from those that another function or the tenant's router has, neither plain IP nor RoCEv2.
func TestARouteDoesNotCoverOthersAddresses(t *testing.T) {
	for name, from := range map[string]netip.Addr{
		"another function here": ipC, "another function there": addr("10.0.0.9"), "the router": router4, "behind it": addr("198.51.100.7"),
	} {
		n := newNet(t)
		c := n.g.AddEndpoint("c", 3, gwB)
		configure(n.g, c, EndpointConfig{Tenant: 7, MAC: MAC{2, 0, 0, 0, 0, 0xc}, Addresses: []netip.Addr{ipC}, MTU: tunnelMTU}, true)
		n.g.routes.Learn(2, []Address{{7, addr("10.0.0.9"), 0x020001, 9000}})
		n.g.routes.SetTenant(TenantConfig{
			Tenant: 7, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Routers: []netip.Addr{router4},
			Routes: []Route{{netip.MustParsePrefix("0.0.0.0/0"), ipA}},
		})
		taken := 0
		n.b.SetFunction(roceClaim, func([]byte, int, int) (int, bool) { taken++; return 1, false })
		roce := udp(t, gwA, macA, from, ipB, 64)
		binary.BigEndian.PutUint16(roce[ethLen+22:], roceClaim.Port)
		n.send(roce, Offload{})
		n.output()
		n.send(udp(t, gwA, macA, from, ipB, 10), Offload{})
		arrived, want := len(n.output()) == 1, name == "behind it"
		if arrived != want {
			t.Errorf("from the address of %s (%s): arrived %t, want %t", name, from, arrived, want)
		}
		if taken > 0 && !want {
			t.Errorf("the function took a packet from the address of %s (%s)", name, from)
		}
	}
}
