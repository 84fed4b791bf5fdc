package underlay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// A marked frame is delivered with CE and is otherwise unchanged.
func TestCEIsSetOnlyOnFramesThatAllowIt(t *testing.T) {
	for _, net := range [][2]string{{"10.0.0.1/24", "10.0.0.2/24"}, {"fd00::1/64", "fd00::2/64"}} {
		a, b := newStack4or6(t, macA, net[0]), newStack4or6(t, macB, net[1])
		introduceTo(t, a, b, netip.MustParsePrefix(net[1]).Addr())
		for _, ect := range []bool{true, false} {
			frame := make([]byte, a.Headroom()+5)
			copy(frame[a.Headroom():], "hello")
			n, ok := a.Output(second, sealedAt(netip.MustParsePrefix(net[1]).Addr()), 0xC000, classOf(ect), frame, 5)
			if !ok {
				t.Fatal("not sent")
			}
			before := bytes.Clone(frame[:n])
			if MarkCE(frame[:n]) != ect {
				t.Errorf("%s, ECT %v: not marked as it allows", net[0], ect)
			}
			if bytes.Equal(before, frame[:n]) == ect {
				t.Errorf("%s, ECT %v: changed %v", net[0], ect, !ect)
			}
			d, v := b.Input(second, frame[:n])
			if v != Deliver || d.CE != ect || string(d.Payload) != "hello" {
				t.Errorf("%s, ECT %v: %v, %+v", net[0], ect, v, d)
			}
		}
	}
	for n := range 60 { // whatever is no IP packet
		f := bytes.Repeat([]byte{0xff}, n)
		if MarkCE(f) {
			t.Errorf("marked %d bytes of nothing", n)
		}
	}
}

func newStack4or6(t *testing.T, mac MAC, prefix string) *Stack {
	t.Helper()
	s, err := New(Config{MAC: mac, Addr: netip.MustParsePrefix(prefix), MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// introduceTo makes a learn b's Ethernet address.
func introduceTo(t *testing.T, a, b *Stack, addr netip.Addr) {
	t.Helper()
	a.Output(second, sealedAt(addr), 0xC000, ECT0, make([]byte, a.Headroom()+1), 1)
	pump(t, second, a, b)
}

// TestAChecksumStaysValidWhenAWordChanges: after any word of a header has changed, adjust makes the checksum valid again.
func TestAChecksumStaysValidWhenAWordChanges(t *testing.T) {
	words := []uint16{0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff, 0x4500, 0x1234}
	sum := func(list ...uint16) uint16 {
		s := uint32(0)
		for _, w := range list {
			s += uint32(w)
		}
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
		return uint16(s)
	}
	for _, was := range words {
		for _, before := range words {
			for _, after := range words {
				others := ^sum(was, before) // what the header's other words add up to
				if others == 0 {
					continue // no header is nothing but zeros
				}
				check := binary.BigEndian.AppendUint16(nil, was)
				adjust(check, before, after)
				if got := sum(others, after, binary.BigEndian.Uint16(check)); got != 0xffff {
					t.Errorf("%#x from %#x to %#x: the sum is %#x", was, before, after, got)
				}
			}
		}
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
