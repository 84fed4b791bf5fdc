package underlay

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestInner(t *testing.T) {
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
	binary.BigEndian.PutUint16(packet[10:], ^sum(packet[:20]))
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
		if p, ok := Sealed(frame(c.version, c.proto, c.port)); ok != c.want || ok && len(p) != 20 {
			t.Errorf("%+v: %v, %d bytes", c, ok, len(p))
		}
	}
}
