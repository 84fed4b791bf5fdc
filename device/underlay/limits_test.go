package underlay

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestConfigLimits: the least and the largest MTU are accepted, and any valid station address of
// the subnet is accepted as a neighbour.
func TestConfigLimits(t *testing.T) {
	with := func(prefix string, neighbours ...Neighbour) Config {
		return Config{Addr: netip.MustParsePrefix(prefix), MTU: 1500, Neighbours: neighbours}
	}
	mtu := func(prefix string, n int) Config { return Config{Addr: netip.MustParsePrefix(prefix), MTU: n} }
	at := func(ip string) Neighbour { return Neighbour{netip.MustParseAddr(ip), macB} }
	for name, tc := range map[string]struct {
		c  Config
		ok bool
	}{
		"the least MTU":                {mtu("10.0.0.1/24", 576), true},
		"the least of IPv6":            {mtu("fd00::1/64", 1280), true},
		"the largest":                  {mtu("10.0.0.1/24", 65535), true},
		"a neighbour":                  {with("10.0.0.1/24", at("10.0.0.254")), true},
		"the same twice":               {with("10.0.0.1/24", Neighbour{ipB, macB}, Neighbour{ipB, macC}), false},
		"all of the subnet":            {with("10.0.0.1/24", at("10.0.0.255")), false},
		"the other of two":             {with("10.0.0.0/31", at("10.0.0.1")), true},
		"all of a subnet of two hosts": {with("10.0.0.1/30", at("10.0.0.3")), false},
	} {
		tc.c.MAC = macA
		if _, err := New(tc.c); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSumOfWords: the sum is that of RFC 1071 §1, for any carries.
func TestSumOfWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]uint16{0, 1, 2, 0x7fff, 0x8000, 0xfffd, 0xfffe, 0xffff})
		words := rapid.SliceOfN(word, 0, 40).Draw(t, "words")
		var b []byte
		want := uint32(0)
		for _, w := range words {
			b = binary.BigEndian.AppendUint16(b, w)
			if want += uint32(w); want > 0xffff {
				want -= 0xffff
			}
		}
		if got := sum(b); uint32(got) != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}

// TestShortFrames: a datagram may be empty, and a packet may end with its header. Frames for
// another station are ignored.
func TestShortFrames(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		own, headroom, ip, proto := "10.0.0.2/24", Headroom, ipv4Len, ethLen+9
		from, to := ipA, ipB
		if v6 {
			own, headroom, ip, proto = "fd00::2/64", HeadroomIPv6, ipv6Len, ethLen+6
			from, to = ip6A, ip6B
		}
		frame := func(n int) []byte { // with n bytes behind the IP header
			f := make([]byte, ethLen+ip+n)
			if v6 {
				putEthernet(f, macB, macA, typeIPv6)
				h := ipv6{next: protoUDP, hopLimit: 9, src: from.As16(), dst: to.As16()}
				h.put(f[ethLen:], n)
			} else {
				putEthernet(f, macB, macA, typeIPv4)
				h := ipv4{ttl: 9, protocol: protoUDP, src: from.As4(), dst: to.As4()}
				h.put(f[ethLen:], ipv4Len+n)
			}
			if n >= udpLen {
				udp := f[ethLen+ip:]
				binary.BigEndian.PutUint16(udp[2:], SealedPort)
				binary.BigEndian.PutUint16(udp[4:], uint16(n))
			}
			return f
		}
		b := newStack4or6(t, macB, own)
		for n, want := range map[int]Verdict{0: DropUDPLength, 7: DropUDPLength, 8: Deliver, 9: Deliver} {
			f := frame(n)
			d, v := b.Input(0, f)
			if v != want || v == Deliver && len(d.Payload) != n-udpLen {
				t.Errorf("IPv6 %t, %d bytes behind the header: %v, %d bytes for us", v6, n, v, len(d.Payload))
			}
			if p, ok := Sealed(f); ok != (want == Deliver) || ok && len(p) != n-udpLen {
				t.Errorf("IPv6 %t, %d bytes behind the header: sealed %t, %d bytes", v6, n, ok, len(p))
			}
		}
		port := headroom - udpLen + 2
		for _, at := range []int{12, 13, proto, port, port + 1} {
			f := frame(20)
			f[at] ^= 1
			if _, ok := Sealed(f); ok {
				t.Errorf("IPv6 %t, byte %d is another: sealed", v6, at)
			}
		}
	}
	b := newStack(t, macB, "10.0.0.2/24")
	reply := arp{op: arpReply, senderMAC: macA, senderIP: ipA.As4(), targetMAC: macC, targetIP: ipC.As4()}
	if _, v := b.Input(0, arpFrame(macC, macA, reply)); v != DropMAC {
		t.Errorf("ARP for another station: %v", v)
	}
	six := newStack4or6(t, macB, "fd00::2/64")
	f := make([]byte, ethLen+ipv6Len)
	putEthernet(f, macB, macA, typeIPv6)
	h := ipv6{next: protoICMP6, hopLimit: 255, src: ip6A.As16(), dst: ip6B.As16()}
	h.put(f[ethLen:], 0)
	if _, v := six.Input(0, f); v != DropProtocol {
		t.Errorf("ICMPv6 without a message: %v", v)
	}
}

// TestOutputOfNothing: a payload may be empty.
func TestOutputOfNothing(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	f, n := payload("")
	if total, ok := a.Output(0, ipB, 1, false, f, n); !ok || total != Headroom {
		t.Errorf("%d bytes, %t", total, ok)
	}
}

// TestMarksOfIP: congestion is marked only in a packet of the IP version that the frame says, of
// any length.
func TestMarksOfIP(t *testing.T) {
	for _, tc := range []struct {
		etherType uint16
		version   byte
		n         int
		marks     bool
	}{
		{typeIPv4, 4, ethLen + ipv4Len, true},
		{typeIPv4, 4, ethLen + ipv4Len - 1, false},
		{typeIPv4, 6, 60, false},
		{typeIPv6, 6, ethLen + ipv6Len, true},
		{typeIPv6, 4, 60, false},
		{typeARP, 4, 60, false},
	} {
		f := make([]byte, tc.n)
		binary.BigEndian.PutUint16(f[12:], tc.etherType)
		f[ethLen], f[ethLen+1] = tc.version<<4|5, ECT0<<4|ECT0
		if MarkCE(f) != tc.marks {
			t.Errorf("%+v: marked %t", tc, !tc.marks)
		}
	}
}

// TestInnerClass: Class gives the upper six bits, ECN the two lower ones. A TTL of 0 means the
// default.
func TestInnerClass(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tc := range []struct{ class, ecn, tos, ttl, left uint8 }{
			{0, 0, 0, 0, 64},
			{0xff, 1, 0xfd, 1, 1},
			{0x2b, 2, 0x2a, 255, 255},
			{0xb8, 3, 0xbb, 64, 64},
			{0, 0xfe, 2, 63, 63},
		} {
			h := Inner{Src: ipA, Dst: ipB, Class: tc.class, ECN: tc.ecn, TTL: tc.ttl}
			if v6 {
				h.Src, h.Dst = ip6A, ip6B
			}
			b := h.Append(nil, 0)
			tos, ttl := b[1], b[8]
			if v6 {
				tos, ttl = b[0]<<4|b[1]>>4, b[7]
			}
			if tos != tc.tos || ttl != tc.left {
				t.Errorf("IPv6 %t, %+v: class %#x, %d hops", v6, tc, tos, ttl)
			}
		}
	}
}

// TestLongInner: a long packet, too, may not be followed by other bytes.
func TestLongInner(t *testing.T) {
	for _, h := range []Inner{{Src: ipA, Dst: ipB}, {Src: ip6A, Dst: ip6B}} {
		b := append(h.Append(nil, 1000), make([]byte, 1000)...)
		if _, packet, err := ParseInner(b); err != nil || len(packet) != 1000 {
			t.Errorf("%v: %d bytes, %v", h.Src, len(packet), err)
		}
		if _, _, err := ParseInner(append(b, make([]byte, 256)...)); err == nil {
			t.Errorf("%v: 256 bytes behind it are taken", h.Src)
		}
	}
}
