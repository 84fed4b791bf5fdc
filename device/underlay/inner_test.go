package underlay

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

func TestTheInnerIPv4HeaderIsWrittenAndReadExactly(t *testing.T) {
	want, _ := hex.DecodeString("450000500000400040fcb65ec0a80101c0a80102")
	h := Inner{Src: netip.MustParseAddr("192.168.1.1"), Dst: netip.MustParseAddr("192.168.1.2")}
	got := h.Append(nil, 60)
	if !bytes.Equal(got, want) {
		t.Fatalf("%x, want %x", got, want)
	}
	packet := append(got, make([]byte, 60)...)
	back, falcon, err := ParseInner(packet)
	if err != nil || back != h || len(falcon) != 60 {
		t.Fatalf("%+v %d %v", back, len(falcon), err)
	}
	for n := range packet {
		if _, _, err := ParseInner(packet[:n]); err == nil {
			t.Fatalf("prefix of %d bytes accepted", n)
		}
	}
	if _, _, err := ParseInner(append(packet, 0)); err == nil {
		t.Error("a trailing byte accepted")
	}
	packet[9] = 17
	packet[10], packet[11] = 0, 0
	binary.BigEndian.PutUint16(packet[10:], ^checksum.Sum(packet[:20]))
	if _, _, err := ParseInner(packet); err != ErrInnerProtocol {
		t.Errorf("UDP inside: %v", err)
	}
}

func TestInnerRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Custom(func(t *rapid.T) netip.Addr {
			var a [4]byte
			binary.BigEndian.PutUint32(a[:], rapid.Uint32().Draw(t, "addr"))
			return netip.AddrFrom4(a)
		})
		h := Inner{Src: addr.Draw(t, "src"), Dst: addr.Draw(t, "dst"), ECN: rapid.Uint8Range(0, 3).Draw(t, "ecn")}
		body := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "body")
		back, got, err := ParseInner(append(h.Append(nil, len(body)), body...))
		if err != nil || back != h || !bytes.Equal(got, body) {
			t.Fatal(back, got, err)
		}
	})
}

// TestSealedIsUDP: Sealed accepts only UDP to PSP's port, whatever bytes are where the port would
// be.
func TestSealedIsUDP(t *testing.T) {
	frame := func(version, proto byte, port uint16) []byte {
		f := make([]byte, Headroom+20)
		f[12], f[ethLen], f[ethLen+9] = 8, version, proto
		f[Headroom-udpLen+2], f[Headroom-udpLen+3] = byte(port>>8), byte(port)
		return f
	}
	for _, c := range []struct {
		version, proto byte
		port           uint16
		want           bool
	}{{0x45, 17, SealedPort, true}, {0x45, 6, SealedPort, false}, {0x46, 17, SealedPort, false}, {0x45, 17, SealedPort + 1, false}} {
		if p, ok := new(Stack).Peek(frame(c.version, c.proto, c.port)); ok != c.want || ok && len(p) != 20 {
			t.Errorf("%+v: %v, %d bytes", c, ok, len(p))
		}
	}
}

func TestTheInnerIPv6HeaderIsWrittenAndReadExactly(t *testing.T) {
	h := Inner{Src: ip6A, Dst: ip6B, ECN: 2}
	want, _ := hex.DecodeString("60200000" + "003c" + "fc40" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002")
	got := h.Append(nil, 60)
	if !bytes.Equal(got, want) || len(got) != h.Len() {
		t.Fatalf("%x, want %x", got, want)
	}
	packet := append(got, make([]byte, 60)...)
	p := gopacket.NewPacket(packet, layers.LayerTypeIPv6, gopacket.Default)
	if ip, ok := p.NetworkLayer().(*layers.IPv6); !ok || !ip.SrcIP.Equal(net.IP(ip6A.AsSlice())) || ip.NextHeader != ProtoFalcon || ip.HopLimit != innerTTL || ip.Length != 60 {
		t.Errorf("decoded %v", p)
	}
	if back, falcon, err := ParseInner(packet); err != nil || back != h || len(falcon) != 60 {
		t.Fatalf("%+v %d %v", back, len(falcon), err)
	}
	for n := range packet {
		if _, _, err := ParseInner(packet[:n]); err == nil {
			t.Fatalf("prefix of %d bytes accepted", n)
		}
	}
	if _, _, err := ParseInner(append(packet, 0)); err == nil {
		t.Error("a trailing byte accepted")
	}
	packet[6] = protoUDP
	if _, _, err := ParseInner(packet); err != ErrInnerProtocol {
		t.Errorf("UDP inside: %v", err)
	}
}

// TestTheInnerHeaderCarriesClassECNAndTTL: Class gives the upper six bits, ECN the two lower ones. A TTL of 0 means the
// default.
func TestTheInnerHeaderCarriesClassECNAndTTL(t *testing.T) {
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

// TestALongInnerPacketMayNotHaveTrailingBytes: a long packet, too, may not be followed by other bytes.
func TestALongInnerPacketMayNotHaveTrailingBytes(t *testing.T) {
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
