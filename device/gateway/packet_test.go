package gateway

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// ip6With returns an IPv6 packet with these extension headers and a UDP header for port 53.
func ip6With(first uint8, extensions ...[]byte) []byte {
	b := make([]byte, ipv6Len)
	b[0], b[6], b[7] = 0x60, first, 64
	s, d := v6A.As16(), v6C.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	for _, e := range extensions {
		b = append(b, e...)
	}
	b = append(b, 0x12, 0x34, 0, 53, 0, 8, 0, 0)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-ipv6Len))
	return b
}

func extension(next, length uint8, n int) []byte {
	e := make([]byte, n)
	e[0], e[1] = next, length
	return e
}

func fragment(next uint8, field uint16) []byte {
	e := extension(next, 0, 8)
	binary.BigEndian.PutUint16(e[2:], field)
	return e
}

// TestExtensionHeaders: the parser finds the upper layer behind any extension headers, at the right
// offset.
func TestExtensionHeaders(t *testing.T) {
	for name, tc := range map[string]struct {
		b        []byte
		l4       int
		fragment bool
		why      Reason
	}{
		"none":                {ip6With(protoUDP), 40, false, none},
		"options":             {ip6With(protoDstOpts, extension(protoUDP, 0, 8)), 48, false, none},
		"long options":        {ip6With(protoDstOpts, extension(protoUDP, 2, 24)), 64, false, none},
		"authentication":      {ip6With(protoAH, extension(protoUDP, 4, 24)), 64, false, none},
		"three":               {ip6With(protoHopByHop, extension(protoRouting, 1, 16), extension(protoDstOpts, 0, 8), extension(protoUDP, 0, 8)), 72, false, none},
		"atomic fragment":     {ip6With(protoFragment, fragment(protoUDP, 0)), 48, false, none},
		"reserved bits":       {ip6With(protoFragment, fragment(protoUDP, 6)), 48, false, none},
		"first fragment":      {ip6With(protoFragment, fragment(protoUDP, 1)), 48, true, none},
		"later fragment":      {ip6With(protoFragment, fragment(protoUDP, 8)), 48, true, none},
		"options of a later":  {ip6With(protoFragment, fragment(protoDstOpts, 8), extension(protoUDP, 0, 8)), 48, true, none},
		"options of a first":  {ip6With(protoFragment, fragment(protoDstOpts, 1), extension(protoUDP, 0, 8)), 56, true, none},
		"longer than packet":  {ip6With(protoDstOpts, extension(protoUDP, 9, 8)), 0, false, DropTruncated},
		"header cut off":      {ip6With(protoDstOpts)[:44], 0, false, DropTruncated},
		"ends at its options": {ip6With(protoDstOpts, extension(59, 1, 8)), 56, false, none},
	} {
		if name == "header cut off" {
			binary.BigEndian.PutUint16(tc.b[4:], 4)
		}
		h, why := parseIP(tc.b)
		if why != tc.why || why == none && (h.l4 != tc.l4 || h.fragment != tc.fragment) {
			t.Errorf("%s: %v, upper layer at %d, fragment %v; want %v, %d, %v", name, why, h.l4, h.fragment, tc.why, tc.l4, tc.fragment)
		}
	}
}

// TestNested: packets of other tunnels are recognised, and no others.
func TestNested(t *testing.T) {
	for name, tc := range map[string]struct {
		proto  uint8
		port   uint16
		frag   bool
		nested bool
	}{
		"IP in IP":          {protoIPIP, 0, false, true},
		"IPv6 in IP":        {protoIPv6, 0, false, true},
		"GRE":               {protoGRE, 0, false, true},
		"PSP":               {protoUDP, pspPort, false, true},
		"DNS":               {protoUDP, 53, false, false},
		"fragment":          {protoUDP, pspPort, true, false},
		"TCP to PSP's port": {protoTCP, pspPort, false, false},
	} {
		b := make([]byte, ipv4Len+udpLen)
		binary.BigEndian.PutUint16(b[ipv4Len+2:], tc.port)
		h := header{proto: tc.proto, l4: ipv4Len, total: len(b), fragment: tc.frag}
		if h.nested(b) != tc.nested {
			t.Errorf("%s: nested %v", name, !tc.nested)
		}
	}
	if (&header{proto: protoUDP, l4: ipv4Len, total: ipv4Len + udpLen - 1}).nested(make([]byte, 60)) {
		t.Error("a UDP header that is cut off names a port")
	}
}

// TestNoEcho: a router answers whole echo requests of both IP versions, and nothing else.
func TestNoEcho(t *testing.T) {
	ping := func(kind, code uint8, n int) []byte {
		return frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip4(ipA, router4, layers.IPProtocolICMPv4),
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, code)}, gopacket.Payload(make([]byte, n)))
	}
	for name, tc := range map[string]struct {
		change func(b []byte) []byte
		echoes bool
	}{
		"as it is":     {func(b []byte) []byte { return b }, true},
		"a reply":      {func([]byte) []byte { return ping(0, 0, 40) }, false},
		"a code":       {func([]byte) []byte { return ping(8, 1, 40) }, false},
		"UDP":          {func([]byte) []byte { return udp(t, gwA, macA, ipA, router4, 40) }, false},
		"largest":      {func([]byte) []byte { return ping(8, 0, maxEchoing-ipv4Len-icmpLen) }, true},
		"too large":    {func([]byte) []byte { return ping(8, 0, maxEchoing-ipv4Len-icmpLen+1) }, false},
		"no whole one": {func(b []byte) []byte { return shorten(b[:ethLen+ipv4Len+icmpLen-1]) }, false},
		"a fragment": {func(b []byte) []byte {
			b[ethLen+6] = 0x20
			finishIPv4(b[ethLen:], ipv4Len)
			return b
		}, false},
	} {
		n := newNet(t)
		n.send(tc.change(ping(8, 0, 40)), Offload{})
		echoes := false
		for _, f := range n.output() {
			icmp, _ := decode(t, f.b).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
			echoes = echoes || icmp != nil && icmp.TypeCode.Type() == icmpEchoReply
		}
		if echoes != tc.echoes {
			t.Errorf("%s: answered %v", name, echoes)
		}
	}
}

// shorten corrects the header of a frame's IPv4 packet for a shorter length.
func shorten(b []byte) []byte {
	binary.BigEndian.PutUint16(b[ethLen+2:], uint16(len(b)-ethLen))
	finishIPv4(b[ethLen:], ipv4Len)
	return b
}
