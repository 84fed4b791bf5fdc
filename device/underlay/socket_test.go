package underlay

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

var (
	atA, atB   = netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.2:2000")
	at6A, at6B = netip.MustParseAddrPort("[fd00::1]:1000"), netip.MustParseAddrPort("[fd00::2]:2000")
)

func newSocket(t testing.TB, own netip.AddrPort, mtu int) *Socket {
	t.Helper()
	s, err := NewSocket(own, mtu)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestASocketReadsWhatAnotherWrote: the payload whole, from which address and port, and how it is marked. Neither sends
// anything of its own: neighbours are the kernel's.
func TestASocketReadsWhatAnotherWrote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := atA, atB
		if rapid.Bool().Draw(t, "IPv6") {
			from, to = at6A, at6B
		}
		a, _ := NewSocket(from, 1500)
		b, _ := NewSocket(to, 1500)
		most := 1500 - HeaderLen(from.Addr())
		payload := rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, "payload")
		path, class := rapid.Uint16().Draw(t, "path"), rapid.Byte().Draw(t, "class")
		frame := append(make([]byte, a.Headroom()), payload...)
		total, ok := a.Output(0, to, path, class, frame, len(payload))
		if !ok || total != len(frame) {
			t.Fatalf("%d bytes of %d, %v", total, len(frame), ok)
		}
		if sealed, ok := b.Peek(frame); !ok || string(sealed) != string(payload) {
			t.Fatalf("%x is %x at a glance", payload, sealed)
		}
		d, v := b.Input(0, frame)
		if v != Deliver || string(d.Payload) != string(payload) || d.Src != from.Addr() || d.SrcPort != path || d.TTL != initialTTL ||
			d.ECN != class&ecnMask || d.CE != (class&ecnMask == ecnCE) {
			t.Fatalf("%v %+v", v, d)
		}
		if b.Authenticated(0, d.Src, macA); b.Next(frame) != 0 || b.Deadline() != never || a.Stats()[Sent] != 1 || b.Stats()[Deliver] != 1 {
			t.Error("it has something to send, or did not count")
		}
	})
}

// TestDamagedFramesOfASocketAreDropped: an impairment of the uplink flips bits of headers, too. Whatever it does, what is
// delivered lies within the frame.
func TestDamagedFramesOfASocketAreDropped(t *testing.T) {
	for _, tc := range []struct {
		what     string
		from, to netip.AddrPort
		edit     func(f []byte) []byte
		want     Verdict
	}{
		{"nothing", atA, atB, func(f []byte) []byte { return f }, Deliver},
		{"nothing", at6A, at6B, func(f []byte) []byte { return f }, Deliver},
		{"shorter than a header", atA, atB, func(f []byte) []byte { return f[:ethLen-1] }, DropRunt},
		{"no IPv4 header", atA, atB, func(f []byte) []byte { return f[:ethLen+ipv4Len-1] }, DropIPHeader},
		{"no IPv6 header", at6A, at6B, func(f []byte) []byte { return f[:ethLen+ipv6Len-1] }, DropIPHeader},
		{"IPv4 address", atA, atB, func(f []byte) []byte { f[ethLen+12] ^= 1; return f }, DropIPHeader},
		{"IPv6 length", at6A, at6B, func(f []byte) []byte { f[ethLen+5]++; return f }, DropIPHeader},
		{"IPv4 for IPv6", atA, at6B, func(f []byte) []byte { return f }, DropEtherType},
		{"IPv6 for IPv4", at6A, atB, func(f []byte) []byte { return f }, DropEtherType},
		{"EtherType", atA, atB, func(f []byte) []byte { f[13] ^= 1; return f }, DropEtherType},
		{"next header", at6A, at6B, func(f []byte) []byte { f[ethLen+6]++; return f }, DropProtocol},
		{"UDP length", at6A, at6B, func(f []byte) []byte { f[ethLen+ipv6Len+5]--; return f }, DropUDPLength},
		{"port", at6A, at6B, func(f []byte) []byte { f[ethLen+ipv6Len+3]++; return f }, DropPort},
	} {
		a, b := newSocket(t, tc.from, 1500), newSocket(t, tc.to, 1500)
		to := netip.AddrPortFrom(atB.Addr(), tc.to.Port())
		if tc.from.Addr().Is6() {
			to = netip.AddrPortFrom(at6B.Addr(), tc.to.Port())
		}
		frame := append(make([]byte, a.Headroom()), "a PSP packet"...)
		if _, ok := a.Output(0, to, 1, 0, frame, 12); !ok {
			t.Fatal("not sent")
		}
		if _, v := b.Input(0, tc.edit(frame)); v != tc.want || b.Stats()[tc.want] != 1 {
			t.Errorf("%s: %s, want %s", tc.what, v, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		own, peer := atB, atA
		if rapid.Bool().Draw(t, "IPv6") {
			own, peer = at6B, at6A
		}
		a, _ := NewSocket(peer, 1500)
		b, _ := NewSocket(own, 1500)
		frame := make([]byte, a.Headroom()+20)
		a.Output(0, own, 1, 0, frame, 20)
		for range rapid.IntRange(0, 4).Draw(t, "bits") {
			at := rapid.IntRange(0, 8*len(frame)-1).Draw(t, "bit")
			frame[at/8] ^= 1 << (at % 8)
		}
		frame = frame[:rapid.IntRange(0, len(frame)).Draw(t, "length")]
		if d, v := b.Input(0, frame); v == Deliver && len(d.Payload) > max(0, len(frame)-b.Headroom()) {
			t.Fatalf("%d bytes of a frame of %d", len(d.Payload), len(frame))
		}
		if sealed, ok := b.Peek(frame); ok != (len(frame) >= b.Headroom()) || ok && len(sealed) != len(frame)-b.Headroom() {
			t.Fatalf("%d bytes of a frame of %d, %v", len(sealed), len(frame), ok)
		}
	})
}

// TestASocketSendsWhatItsMTUAndFamilyAllow, and nothing to itself.
func TestASocketSendsWhatItsMTUAndFamilyAllow(t *testing.T) {
	for _, tc := range []struct {
		own    netip.AddrPort
		to     string
		n, has int
		want   Verdict
	}{
		{atA, "10.0.0.2:1000", 1500 - 28, 1500, Sent},
		{atA, "10.0.0.2:1000", 1500 - 28 + 1, 1500, DropTooLong},
		{at6A, "[fd00::2]:1000", 1500 - 48, 1500, Sent},
		{at6A, "[fd00::2]:1000", 1500 - 48 + 1, 1500, DropTooLong},
		{atA, "10.0.0.2:1000", -1, 100, DropBuffer},
		{atA, "10.0.0.2:1000", 101, 100, DropBuffer},
		{atA, "0.0.0.0:1000", 1, 100, DropRoute},
		{atA, "[fd00::2]:1000", 1, 100, DropRoute},
		{at6A, "10.0.0.2:1000", 1, 100, DropRoute},
		{atA, "10.0.0.1:1000", 1, 100, DropRoute},
		{atA, "10.0.0.1:1001", 1, 100, Sent}, // another NIC of the host
	} {
		s := newSocket(t, tc.own, 1500)
		if _, ok := s.Output(0, netip.MustParseAddrPort(tc.to), 1, 0, make([]byte, s.Headroom()+tc.has), tc.n); ok != (tc.want == Sent) || s.Stats()[tc.want] != 1 {
			t.Errorf("%d bytes from %s to %s: want %s", tc.n, tc.own, tc.to, tc.want)
		}
	}
	s := newSocket(t, atA, 1500)
	if _, ok := s.Output(0, netip.AddrPort{}, 1, 0, make([]byte, 100), 1); ok {
		t.Error("sent to nowhere")
	}
}

// TestASocketHasAnAddressAPortAndAnMTU of its family.
func TestASocketHasAnAddressAPortAndAnMTU(t *testing.T) {
	for _, tc := range []struct {
		own string
		mtu int
		ok  bool
	}{
		{"10.0.0.1:1000", 576, true},
		{"10.0.0.1:1000", 65535, true},
		{"[fd00::1]:1", 1280, true},
		{"0.0.0.0:1000", 1500, true},
		{"10.0.0.1:0", 1500, false},
		{"224.0.0.1:1000", 1500, false},
		{"[ff02::1]:1000", 1500, false},
		{"[fe80::1%eth0]:1000", 1500, false},
		{"10.0.0.1:1000", 575, false},
		{"[fd00::1]:1", 1279, false},
		{"10.0.0.1:1000", 65536, false},
	} {
		if _, err := NewSocket(netip.MustParseAddrPort(tc.own), tc.mtu); (err == nil) != tc.ok {
			t.Errorf("%s with an MTU of %d: %v", tc.own, tc.mtu, err)
		}
	}
	if _, err := NewSocket(netip.AddrPort{}, 1500); err == nil {
		t.Error("no address is taken")
	}
}

// TestEachVerdictHasAName of its own, by which it is counted in metrics.
func TestEachVerdictHasAName(t *testing.T) {
	seen := map[string]bool{}
	for v := range NumVerdicts {
		if name := v.String(); name == "" || seen[name] {
			t.Errorf("verdict %d is %q", v, name)
		} else {
			seen[name] = true
		}
	}
}
