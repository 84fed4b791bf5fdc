package capture

import (
	"fmt"
	"net"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

var (
	macA, macB = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	ip4A, ip4B = net.IP{192, 0, 2, 1}, net.IP{192, 0, 2, 2}
	ip6A, ip6B = net.ParseIP("2001:db8::1"), net.ParseIP("2001:db8::2")
)

// build serialises layers with gopacket, which is independent of our parser.
func build(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, ls...); err != nil {
		t.Fatal(err)
	}
	f := b.Bytes()
	if f[12] == 8 && f[13] == 0 { // the kernel's bridge checks the IPv4 header
		h := f[14 : 14+4*int(f[14]&15)]
		sum := uint32(0)
		for i := 0; i < len(h); i += 2 {
			sum += uint32(h[i])<<8 | uint32(h[i+1])
		}
		sum = sum&0xffff + sum>>16
		sum = ^(sum&0xffff + sum>>16)
		h[10], h[11] = byte(sum>>8), byte(sum)
	}
	return f
}

func eth(typ layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: typ}
}

func ip4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 255, Protocol: proto, SrcIP: ip4A, DstIP: ip4B}
}

func ip6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: next, SrcIP: ip6A, DstIP: ip6B}
}

func udp(dst layers.UDPPort) *layers.UDP { return &layers.UDP{SrcPort: 0xc001, DstPort: dst} }

func icmp6(typ uint8) *layers.ICMPv6 {
	return &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, 0)}
}

func arp() *layers.ARP {
	return &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
		Operation: layers.ARPRequest, SourceHwAddress: macA, SourceProtAddress: ip4A, DstHwAddress: macB, DstProtAddress: ip4B,
	}
}

type sample struct {
	name  string
	frame []byte
	want  Class
	least int // bytes that show it
}

func frames(t testing.TB) []sample {
	body := gopacket.Payload(make([]byte, 40))
	options := ip4(layers.IPProtocolUDP)
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	later := ip4(layers.IPProtocolUDP)
	later.FragOffset = 100
	other := func(f []byte, version byte) []byte { f[14] = f[14]&15 | version<<4; return f }
	long := append([]byte{17, 1, 1, 12, 15: 0}, 0xc0, 1, 1000>>8, 1000&255, 0, 8, 0, 0)
	longND := append([]byte{58, 1, 1, 12, 15: 0}, 136, 0, 0, 0)
	short := build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(1000), body)
	short[14] = 4<<4 | 4
	copy(short[14+16:], short[14+20:14+28]) // there a header of that length would end
	hbh := append([]byte{58, 0, 5, 2, 0, 0, 1, 0}, 143, 0, 0, 0, 0, 0, 0, 0)
	return []sample{
		{"PSP in IPv4", build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(1000), body), PSP, 42},
		{"PSP with IPv4 options", build(t, eth(layers.EthernetTypeIPv4), options, udp(1000), body), PSP, 46},
		{"PSP in IPv6", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolUDP), udp(1000), body), PSP, 62},
		{"a later fragment", build(t, eth(layers.EthernetTypeIPv4), later, udp(1000), body), Other, 0},
		{"from port 1000", build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), &layers.UDP{SrcPort: 1000, DstPort: 53}, body), Other, 0},
		{"IPv4's type, version 6", other(build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(1000), body), 6), Other, 0},
		{"IPv6's type, version 4", other(build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolUDP), udp(1000), body), 4), Other, 0},
		{"DNS", build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(53), body), Other, 0},
		{"TCP", build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolTCP), &layers.TCP{DstPort: 1000}, body), Other, 0},
		{"ICMP", build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolICMPv4), &layers.ICMPv4{}, body), Other, 0},
		{"Falcon without PSP", build(t, eth(layers.EthernetTypeIPv4), ip4(252), body), Other, 0},
		{"ARP", build(t, eth(layers.EthernetTypeARP), arp()), ARP, 14},
		{"neighbour solicitation", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolICMPv6), icmp6(135), body), ND, 58},
		{"neighbour advertisement", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolICMPv6), icmp6(136), body), ND, 58},
		{"router solicitation", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolICMPv6), icmp6(133), body), ND, 58},
		{"redirect", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolICMPv6), icmp6(137), body), ND, 58},
		{"type before neighbour discovery's", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolICMPv6), icmp6(132), body), ICMPv6, 58},
		{"type behind neighbour discovery's", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolICMPv6), icmp6(138), body), ICMPv6, 58},
		{"ping", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolICMPv6), icmp6(128), body), ICMPv6, 58},
		{"MLD", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolIPv6HopByHop), gopacket.Payload(hbh)), ICMPv6, 66},
		{"PSP behind hop-by-hop options", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolIPv6HopByHop), gopacket.Payload(long)), PSP, 78},
		{"ICMPv6 behind such", build(t, eth(layers.EthernetTypeIPv6), ip6(layers.IPProtocolIPv6HopByHop), gopacket.Payload(longND)), ND, 74},
		{"IPv4 header too short", short, Other, 0},
		{"LLDP", build(t, eth(layers.EthernetTypeLinkLayerDiscovery), body), Other, 0},
		{"STP", append(append(append([]byte{}, macB...), macA...), 0, 38, 0x42, 0x42, 3), Other, 0},
	}
}

// TestEnoughBytesGiveAFrameItsClass: a frame gets its class as soon as enough bytes of it are present, and not before.
// The description contains what is present.
func TestEnoughBytesGiveAFrameItsClass(t *testing.T) {
	for _, s := range frames(t) {
		for n := range len(s.frame) + 1 { // must not read past the end
			want := s.want
			if n < s.least {
				want = Other
			}
			f := s.frame[:n:n]
			if got := Classify(f); got != want {
				t.Errorf("%s, %d bytes: %v, want %v", s.name, n, got, want)
			}
			says := fmt.Sprintf("%d bytes", n)
			if n >= 14 {
				says += fmt.Sprintf(", 020000000001 > 020000000002, ethertype %#04x", f[12:14])
			}
			switch {
			case n >= 34 && f[12] == 0x08 && f[13] == 0x00:
				says += fmt.Sprintf(", IPv4 protocol %d", f[23])
			case n >= 54 && f[12] == 0x86:
				says += fmt.Sprintf(", IPv6 next header %d", f[20])
			}
			if got := describe(f); got != says {
				t.Errorf("%s: described as %q, want %q", s.name, got, says)
			}
		}
	}
}

func FuzzClassify(f *testing.F) {
	for _, s := range frames(f) {
		f.Add(s.frame)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Classify(b)
		_ = c.String() + describe(b)
		p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		// gopacket reads what a station does not: a type whose version is another, and IP
		// behind the type 0xffff, which it keeps for raw IP.
		station := len(b) >= 15 && (b[12] == 0x08 && b[13] == 0x00 && b[14]>>4 == 4 || b[12] == 0x86 && b[13] == 0xdd && b[14]>>4 == 6)
		u, ok := p.TransportLayer().(*layers.UDP)
		if station && p.ErrorLayer() == nil && ok && u.DstPort == 1000 && len(p.Layers()) >= 3 && p.Layers()[2] == gopacket.Layer(u) && c != PSP {
			t.Fatalf("gopacket sees UDP to port 1000, we %v", c)
		}
		if c == ARP && len(b) >= 42 && p.ErrorLayer() == nil && p.Layer(layers.LayerTypeARP) == nil {
			t.Fatal("gopacket sees no ARP")
		}
	})
}
