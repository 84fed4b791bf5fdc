package gateway

import (
	"bytes"
	"encoding/binary"
	"testing"
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

// TestTheUpperLayerIsFoundBehindExtensionHeaders: the parser finds the upper layer behind any extension headers, at the right
// offset.
func TestTheUpperLayerIsFoundBehindExtensionHeaders(t *testing.T) {
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

// TestPacketsOfOtherTunnelsAreRecognised: packets of other tunnels are recognised, and no others.
func TestPacketsOfOtherTunnelsAreRecognised(t *testing.T) {
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

// shorten corrects the header of a frame's IPv4 packet for a shorter length.
func shorten(b []byte) []byte {
	binary.BigEndian.PutUint16(b[ethLen+2:], uint16(len(b)-ethLen))
	finishIPv4(b[ethLen:], ipv4Len)
	return b
}

// TestAPacketMayEndWithItsHeader: a packet may end with its header. A header that is truncated, or longer than
// its packet, is invalid.
func TestAPacketMayEndWithItsHeader(t *testing.T) {
	v4, v6 := make([]byte, ipv4Len), make([]byte, ipv6Len)
	putIPv4(v4, protoICMP, ipA, ipC, len(v4))
	putIPv6(v6, 59, 64, v6A, v6C, 0) // 59: no next header
	wrong := bytes.Clone(v4)
	wrong[8]--
	long := append(bytes.Clone(v4), 0, 0, 0, 0)
	long[0] = 0x46
	finishIPv4(long, len(long))
	for name, tc := range map[string]struct {
		b   []byte
		why Reason
	}{
		"nothing":                           {nil, DropTruncated},
		"a byte of no version":              {[]byte{0x50}, DropHeader},
		"a byte of IPv4":                    {v4[:1], DropTruncated},
		"an IPv4 header":                    {v4, none},
		"a byte less":                       {v4[:19], DropTruncated},
		"its checksum":                      {wrong, DropHeader},
		"options that are longer than it":   {long, DropTruncated},
		"an IPv6 header":                    {v6, none},
		"a byte less than an IPv6 header":   {v6[:39], DropTruncated},
		"an extension header that ends it":  {endsWith(59), none},
		"another one, of which there is no": {endsWith(protoDstOpts), DropTruncated},
	} {
		h, why := parseIP(tc.b)
		if why != tc.why || why == none && h.total != len(tc.b) {
			t.Errorf("%s: %v, %+v; want %v", name, why, h, tc.why)
		}
	}
}

// endsWith returns an IPv6 packet that ends with an extension header whose next header is next.
func endsWith(next uint8) []byte {
	b := ip6With(protoDstOpts) // its UDP header stands for one
	b[ipv6Len], b[ipv6Len+1] = next, 0
	return b
}

// TestHeadersAreParsedAsFarAsTheyAreThere: if only the beginning of a packet is present, its
// headers are parsed as far as they are there.
func TestHeadersAreParsedAsFarAsTheyAreThere(t *testing.T) {
	b := ip6With(protoHopByHop, extension(protoDstOpts, 0, 8), extension(protoUDP, 2, 24))
	for n := ipv6Len; n <= len(b); n++ {
		want := 40
		switch {
		case n >= 56: // the beginning of the second, which says how long it is
			want = 72
		case n >= 48:
			want = 48
		}
		var h header
		if why := h.parse(b[:n:n], len(b)); why != none || h.l4 != want || h.total != len(b) {
			t.Errorf("%d bytes: %v, upper layer at %d of %d, want %d", n, why, h.l4, h.total, want)
		}
	}
	options := make([]byte, 24)
	putIPv4(options, protoUDP, ipA, ipC, 100)
	options[0] = 0x46
	for n, want := range map[int]Reason{20: none, 23: none, 24: DropHeader} { // the whole tells: its checksum is wrong
		var h header
		if why := h.parse(options[:n:n], 100); why != want || why == none && h.l4 != 24 {
			t.Errorf("%d bytes with options: %v, want %v", n, why, want)
		}
	}
}

// TestAtMostEightExtensionHeadersAreAccepted: eight extension headers are accepted, nine are not.
func TestAtMostEightExtensionHeadersAreAccepted(t *testing.T) {
	for n, want := range map[int]Reason{1: none, 8: none, 9: DropHeader} {
		list := make([][]byte, n)
		for i := range list {
			list[i] = extension(protoDstOpts, 0, 8)
		}
		list[n-1][0] = protoUDP
		h, why := parseIP(ip6With(protoDstOpts, list...))
		if why != want || why == none && h.l4 != ipv6Len+8*n {
			t.Errorf("%d extension headers: %v, upper layer at %d", n, why, h.l4)
		}
	}
}

// TestEveryBitOfAFlowCounts: two flows that differ in one bit of an address, a port or the protocol
// have different hashes.
func TestEveryBitOfAFlowCounts(t *testing.T) {
	v4, v6 := udp(t, gwA, macA, ipA, ipC, 10)[ethLen:], udp(t, gwA, macA, v6A, v6C, 10)[ethLen:]
	for name, tc := range map[string]struct {
		b        []byte
		from, to int // of the addresses
	}{"IPv4": {v4, 12, 20}, "IPv6": {v6, 8, 40}} {
		h, why := parseIP(tc.b)
		if why != none {
			t.Fatal(why)
		}
		flow := h.flow(tc.b)
		differs := func(at int) {
			for bit := range 8 {
				b := bytes.Clone(tc.b)
				b[at] ^= 1 << bit
				if h.flow(b) == flow {
					t.Errorf("%s: bit %d of byte %d makes no other flow", name, bit, at)
				}
			}
		}
		for at := tc.from; at < tc.to; at++ {
			differs(at)
		}
		for at := h.l4; at < h.l4+4; at++ {
			differs(at)
		}
		tcp := h
		tcp.proto = protoTCP
		if tcp.flow(tc.b) == flow {
			t.Errorf("%s: TCP and UDP are one flow", name)
		}
		for n, matter := range map[int]bool{3: false, 4: true} { // without room for both ports there are none
			cut, short := bytes.Clone(tc.b[:h.l4+n]), h
			short.total = len(cut)
			before := short.flow(cut)
			cut[h.l4] ^= 1
			if changed := short.flow(cut) != before; changed != matter {
				t.Errorf("%s with %d bytes behind its header: the port matters: %t", name, n, changed)
			}
		}
	}
}
