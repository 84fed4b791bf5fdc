package underlay

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/allocs"
)

var ip6A, ip6B, ip6C = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3")

func newStack6(t testing.TB, mac MAC, addr netip.Addr) *Stack {
	t.Helper()
	s, err := New(Config{MAC: mac, Addr: netip.PrefixFrom(addr, 64), Gateway: netip.MustParseAddr("fd00::fe"), MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func payload6(text string) (frame []byte, n int) {
	return append(make([]byte, HeadroomIPv6), text...), len(text)
}

// introduce6 makes both stacks know each other.
func introduce6(t testing.TB, now int64, a, b *Stack) {
	t.Helper()
	f, n := payload6("hello")
	if _, ok := a.Output(now, sealedAt(b.addr), 0xC000, 0, f, n); ok {
		t.Fatal("sent without an address")
	}
	if _, got := pump(t, now, a, b); len(got) != 1 || got[0] != "hello" {
		t.Fatalf("b got %q", got)
	}
}

// serialize builds a frame with an independent encoder.
func serialize(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

// ndFrame returns a solicitation (target, option type 1) or advertisement (option type 2) as
// another host would send it.
func ndFrame(t testing.TB, dstMAC, srcMAC MAC, src, dst, target netip.Addr, kind uint8, flags uint8, option bool, hop uint8) []byte {
	t.Helper()
	ip := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolICMPv6, HopLimit: hop, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	var opts layers.ICMPv6Options
	var body gopacket.SerializableLayer
	if kind == ndSolicit {
		if option {
			opts = layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: srcMAC[:]}}
		}
		body = &layers.ICMPv6NeighborSolicitation{TargetAddress: target.AsSlice(), Options: opts}
	} else {
		if option {
			opts = layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: srcMAC[:]}}
		}
		body = &layers.ICMPv6NeighborAdvertisement{Flags: flags, TargetAddress: target.AsSlice(), Options: opts}
	}
	return serialize(t, &layers.Ethernet{SrcMAC: srcMAC[:], DstMAC: dstMAC[:], EthernetType: layers.EthernetTypeIPv6}, ip, icmp, body)
}

func group(a netip.Addr) netip.Addr { return netip.AddrFrom16(solicitedNode(a.As16())) }

// An independent encoder agrees with every byte of a datagram, a solicitation and both
// advertisements.
func TestIPv6MatchesGopacket(t *testing.T) {
	a, b := newStack6(t, macA, ip6A), newStack6(t, macB, ip6B)
	f, n := payload6("0123456789")
	a.Output(0, sealedAt(ip6B), 0xC007, ECT0, f, n)
	out := make([]byte, 1514)
	ask := bytes.Clone(out[:a.Next(out)])
	if want := ndFrame(t, MAC{0x33, 0x33, 0xff, 0, 0, 2}, macA, ip6A, group(ip6B), ip6B, ndSolicit, 0, true, 255); !bytes.Equal(ask, want) {
		t.Fatalf("solicitation\n%x\nwant\n%x", ask, want)
	}
	if _, v := b.Input(0, ask); v != ND {
		t.Fatal(v)
	}
	answer := bytes.Clone(out[:b.Next(out)])
	if want := ndFrame(t, macA, macB, ip6B, ip6A, ip6B, ndAdvertise, flagSolicited|flagOverride, true, 255); !bytes.Equal(answer, want) {
		t.Fatalf("advertisement\n%x\nwant\n%x", answer, want)
	}
	if _, v := a.Input(0, answer); v != ND {
		t.Fatal(v)
	}
	got := bytes.Clone(out[:a.Next(out)])
	ip := &layers.IPv6{Version: 6, TrafficClass: ECT0, FlowLabel: 0xC007, NextHeader: layers.IPProtocolUDP, HopLimit: 255, SrcIP: ip6A.AsSlice(), DstIP: ip6B.AsSlice()}
	udp := append([]byte{0xC0, 0x07, 1000 >> 8, 1000 & 0xff, 0, 18, 0, 0}, "0123456789"...)
	if want := serialize(t, &layers.Ethernet{SrcMAC: macA[:], DstMAC: macB[:], EthernetType: layers.EthernetTypeIPv6}, ip, gopacket.Payload(udp)); !bytes.Equal(got, want) {
		t.Fatalf("datagram\n%x\nwant\n%x", got, want)
	}
	d, v := b.Input(0, got)
	if v != Deliver || d.Src != ip6A || d.SrcPort != 0xC007 || d.TTL != 255 || d.CE || string(d.Payload) != "0123456789" {
		t.Fatalf("%v %+v", v, d)
	}
	got[15] |= ecnCE << 4 // a router marks it; there is no checksum to repair
	if d, v := b.Input(0, append(got, 0, 0)); v != Deliver || !d.CE || len(d.Payload) != 10 {
		t.Fatalf("marked and padded: %v %+v", v, d)
	}
	for n := range got {
		if _, v := b.Input(0, got[:n]); v < DropRunt {
			t.Fatalf("prefix of %d bytes: %v", n, v)
		}
	}
	for _, f := range [][]byte{ask, answer} {
		for n := range f {
			if _, v := b.Input(0, f[:n]); v < DropRunt {
				t.Fatalf("neighbour discovery, prefix of %d bytes: %v", n, v)
			}
		}
	}
}

// Another host's duplicate address detection gets an answer that our address is taken, and is
// not learnt.
func TestDuplicateAddressDetection(t *testing.T) {
	b := newStack6(t, macB, ip6B)
	unspecified := netip.IPv6Unspecified()
	groupMAC := MAC{0x33, 0x33, 0xff, 0, 0, 2}
	if _, v := b.Input(0, ndFrame(t, groupMAC, macC, unspecified, group(ip6B), ip6B, ndSolicit, 0, false, 255)); v != ND {
		t.Fatal(v)
	}
	out := make([]byte, 1514)
	got := out[:b.Next(out)]
	all := netip.MustParseAddr("ff02::1")
	if want := ndFrame(t, MAC{0x33, 0x33, 0, 0, 0, 1}, macB, ip6B, all, ip6B, ndAdvertise, flagOverride, true, 255); !bytes.Equal(got, want) {
		t.Fatalf("answer\n%x\nwant\n%x", got, want)
	}
	if len(b.neighbours) != 0 {
		t.Error("learnt a host without an address")
	}
	for name, f := range map[string][]byte{
		"source option":      ndFrame(t, groupMAC, macC, unspecified, group(ip6B), ip6B, ndSolicit, 0, true, 255),
		"to us alone":        ndFrame(t, macB, macC, unspecified, ip6B, ip6B, ndSolicit, 0, false, 255),
		"hop limit":          ndFrame(t, groupMAC, macC, ip6C, group(ip6B), ip6B, ndSolicit, 0, true, 254),
		"multicast target":   ndFrame(t, groupMAC, macC, ip6C, group(ip6B), all, ndSolicit, 0, true, 255),
		"solicited to all":   ndFrame(t, MAC{0x33, 0x33, 0, 0, 0, 1}, macC, ip6C, all, ip6C, ndAdvertise, flagSolicited, true, 255),
		"no source of an NA": ndFrame(t, macB, macC, unspecified, ip6B, ip6C, ndAdvertise, 0, true, 255),
	} {
		if _, v := b.Input(0, f); v != DropND {
			t.Errorf("%s: %v", name, v)
		}
	}
	bad := ndFrame(t, groupMAC, macC, ip6C, group(ip6B), ip6B, ndSolicit, 0, true, 255)
	bad[ethLen+ipv6Len+2] ^= 1
	if _, v := b.Input(0, bad); v != DropND {
		t.Errorf("checksum: %v", v)
	}
	bad = ndFrame(t, groupMAC, macC, ip6C, group(ip6B), ip6B, ndSolicit, 0, true, 255)
	bad[ethLen+ipv6Len+ndLen+1] = 0 // an option of no length
	if _, v := b.Input(0, bad); v != DropND {
		t.Errorf("option: %v", v)
	}
	if _, v := b.Input(0, ndFrame(t, MAC{0x33, 0x33, 0, 0, 0, 1}, macC, ip6B, all, ip6B, ndAdvertise, flagOverride, true, 255)); v != DropConflict {
		t.Errorf("our address advertised by another: %v", v)
	}
	if b.Next(out) != 0 {
		t.Error("answered nonsense")
	}
}

// Solicitations for other addresses are not answered, hosts that did not ask for us are not
// learnt, and an answer changes an entry only as RFC 4861 §7.2.5 says.
func TestNeighbourDiscoveryLearns(t *testing.T) {
	a, b := newStack6(t, macA, ip6A), newStack6(t, macB, ip6B)
	out := make([]byte, 1514)
	b.Input(0, ndFrame(t, macB, macC, ip6C, ip6B, ip6C, ndAdvertise, flagSolicited|flagOverride, true, 255))
	b.Input(0, ndFrame(t, macB, macC, netip.MustParseAddr("fe80::7"), ip6B, ip6B, ndSolicit, 0, true, 255))
	if len(b.neighbours) != 0 || b.Next(out) == 0 || MAC(out[:6]) != macC {
		t.Fatal("learnt a stranger, or did not answer one")
	}
	b.Input(0, ndFrame(t, MAC{0x33, 0x33, 0xff, 0, 0, 2}, macC, ip6C, group(ip6B), netip.MustParseAddr("fd00::1:0:2"), ndSolicit, 0, true, 255))
	if b.Next(out) != 0 || len(b.neighbours) != 0 {
		t.Fatal("answered for another member of the group")
	}
	introduce6(t, 0, a, b)
	to := func(now int64) MAC {
		f, n := payload6("x")
		if _, ok := a.Output(now, sealedAt(ip6B), 1, 0, f, n); !ok {
			t.Fatal("not sent")
		}
		return MAC(f[:6])
	}
	advert := func(flags uint8, option bool) {
		a.Input(second, ndFrame(t, macA, macC, ip6B, ip6A, ip6B, ndAdvertise, flags, option, 255))
	}
	if advert(flagSolicited, true); to(second) != macB {
		t.Error("moved without override")
	}
	if advert(flagSolicited|flagOverride, true); to(second) != macB {
		t.Error("another is believed at once")
	}
	if a.Advance(second + rivalEvery); to(2*second) != macC {
		t.Error("not tried with override")
	}
	a.Authenticated(2*second, ip6B, macC)
	if m := to(40 * second); m != macC || a.Next(out) != ndFrameLen || MAC(out[:6]) != macC {
		t.Error("no unicast solicitation to refresh")
	}
	if advert(flagSolicited, false); a.neighbours[ip6B].state != reachable {
		t.Error("a solicited answer without an option does not confirm")
	}
	f, n := payload6("far")
	a.Output(0, sealedAt(netip.MustParseAddr("2001:db8::1")), 1, 0, f, n)
	if n := a.Next(out); n == 0 || [16]byte(out[ethLen+ipv6Len+8:n]) != netip.MustParseAddr("fd00::fe").As16() {
		t.Error("did not ask for the gateway")
	}
	if a.Output(0, sealedAt(ipB), 1, 0, f, n); a.Stats()[DropRoute] != 1 {
		t.Error("sent to an IPv4 address")
	}
}

func TestIPv6InputDrops(t *testing.T) {
	a, b := newStack6(t, macA, ip6A), newStack6(t, macB, ip6B)
	introduce6(t, 0, a, b)
	at := func(i int, v byte) func([]byte) { return func(f []byte) { f[14+i] = v } }
	for name, tc := range map[string]struct {
		edit func([]byte)
		want Verdict
	}{
		"other MAC":          {func(f []byte) { f[5] = 9 }, DropMAC},
		"datagram to group":  {func(f []byte) { copy(f, []byte{0x33, 0x33, 0xff, 0, 0, 2}) }, DropMAC},
		"broadcast":          {func(f []byte) { copy(f, broadcast[:]) }, DropMAC},
		"own source":         {func(f []byte) { copy(f[6:], macB[:]) }, DropSourceMAC},
		"IPv4":               {func(f []byte) { f[12], f[13] = 8, 0 }, DropEtherType},
		"ARP":                {func(f []byte) { f[12], f[13] = 8, 6 }, DropEtherType},
		"version":            {at(0, 0x40), DropIPHeader},
		"payload too long":   {at(5, 255), DropIPHeader},
		"fragment":           {at(6, protoFrag6), DropFragment},
		"hop-by-hop":         {at(6, 0), DropProtocol},
		"TCP":                {at(6, 6), DropProtocol},
		"echo request":       {func(f []byte) { f[20] = protoICMP6; f[54] = 128 }, DropProtocol},
		"router advert":      {func(f []byte) { f[20] = protoICMP6; f[54] = 134 }, DropProtocol},
		"hop limit":          {at(7, 0), DropTTL},
		"source unspecified": {func(f []byte) { clear(f[22:38]) }, DropSource},
		"source multicast":   {at(8, 0xff), DropSource},
		"source ours":        {at(23, 2), DropSource},
		"to another":         {at(39, 9), DropDestination},
		"UDP length":         {func(f []byte) { f[59]++ }, DropUDPLength},
		"port":               {func(f []byte) { f[57]++ }, DropPort},
	} {
		f, n := payload6("a PSP packet")
		if _, ok := a.Output(0, sealedAt(ip6B), 1, 0, f, n); !ok {
			t.Fatal("not sent")
		}
		tc.edit(f)
		if _, v := b.Input(0, f); v != tc.want {
			t.Errorf("%s: %v, want %v", name, v, tc.want)
		}
	}
}

// Floods from outside stay within the bounds, and their effects end after a while.
func TestIPv6Bounds(t *testing.T) {
	a := newStack6(t, macA, ip6A)
	addr := func(hi byte, i int) netip.Addr {
		return netip.AddrFrom16([16]byte{0xfd, 13: hi, 14: byte(i >> 8), 15: byte(i)})
	}
	for i := range 3 * maxNeighbours {
		a.Input(0, ndFrame(t, MAC{0x33, 0x33, 0xff, 0, 0, 1}, macC, addr(1, i), group(ip6A), ip6A, ndSolicit, 0, true, 255))
	}
	if len(a.neighbours) != maxNeighbours-solicitedSpared || a.queue.Len() != maxQueued || a.Stats()[DropQueueFull] == 0 {
		t.Fatalf("%d entries, %d queued", len(a.neighbours), a.queue.Len())
	}
	f, n := payload6("x")
	for i := range 3 * maxNeighbours {
		a.Output(0, sealedAt(addr(2, i)), 1, 0, f, n)
	}
	if len(a.neighbours) != maxNeighbours || a.parked != maxParked {
		t.Fatalf("%d entries, %d parked", len(a.neighbours), a.parked)
	}
	for now := second; now < 70*second; now += second {
		a.Advance(now)
	}
	if len(a.neighbours) != 0 || a.parked != 0 {
		t.Fatalf("left: %d entries, %d parked", len(a.neighbours), a.parked)
	}
}

func TestIPv6HeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		h := ipv6{class: uint8(r.Uint32()), flow: r.Uint32() & maskFlow, next: protoUDP, hopLimit: uint8(r.Uint32())}
		for i := range 16 {
			h.src[i], h.dst[i] = uint8(r.Uint32()), uint8(r.Uint32())
		}
		b := make([]byte, ipv6Len+rapid.IntRange(0, 50).Draw(t, "payload"))
		h.put(b, len(b)-ipv6Len)
		if back, payload, err := parseIPv6(b); err != nil || back != h || len(payload) != len(b)-ipv6Len {
			t.Fatal(back, err)
		}
	})
}

func TestIPv6NoAllocations(t *testing.T) {
	a, b := newStack6(t, macA, ip6A), newStack6(t, macB, ip6B)
	introduce6(t, 0, a, b)
	f, n := payload6("a PSP packet")
	ask := ndFrame(t, macB, macA, ip6A, ip6B, ip6B, ndSolicit, 0, true, 255)
	out := make([]byte, 1514)
	inner := Inner{Src: ip6A, Dst: ip6B}
	if n := allocs.PerRun(100, func() {
		inner.Append(f[:HeadroomIPv6-40], n)
		if _, ok := a.Output(0, sealedAt(ip6B), 1, ECT0, f, n); !ok {
			t.Fatal("not sent")
		}
		if _, v := b.Input(0, f); v != Deliver {
			t.Fatal(v)
		}
		if _, v := b.Input(0, ask); v != ND || b.Next(out) == 0 {
			t.Fatal(v)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzInput6(f *testing.F) {
	a, b := newStack6(f, macA, ip6A), newStack6(f, macB, ip6B)
	introduce6(f, 0, a, b)
	frame, n := payload6("a PSP packet")
	a.Output(0, sealedAt(ip6B), 1, ECT0, frame, n)
	f.Add(frame)
	f.Add(ndFrame(f, macB, macA, ip6A, ip6B, ip6B, ndSolicit, 0, true, 255))
	f.Add(ndFrame(f, macB, macA, ip6A, ip6B, ip6A, ndAdvertise, 0x60, true, 255))
	out := make([]byte, 1514)
	f.Fuzz(func(t *testing.T, frame []byte) {
		b := newStack6(t, macB, ip6B)
		d, v := b.Input(0, frame)
		if (v == Deliver) != (d.Payload != nil) && len(d.Payload) > 0 || v >= NumVerdicts || v == Sent || v == Parked || v == ARP {
			t.Fatalf("%v %+v", v, d)
		}
		for b.Next(out) > 0 {
		}
		b.Advance(100 * second)
		if len(b.neighbours) != len(b.table) {
			t.Fatal("table and index differ")
		}
	})
}

func FuzzParseInner(f *testing.F) {
	for _, h := range []Inner{{Src: ipA, Dst: ipB}, {Src: ip6A, Dst: ip6B, ECN: 1}} {
		f.Add(append(h.Append(nil, 4), "data"...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, packet, err := ParseInner(b)
		if err != nil {
			return
		}
		back, again, err := ParseInner(append(h.Append(nil, len(packet)), packet...))
		if err != nil || back != h || !bytes.Equal(again, packet) {
			t.Fatalf("%+v %x: %+v %x %v", h, packet, back, again, err)
		}
	})
}
