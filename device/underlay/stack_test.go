package underlay

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/internal/checksum"
)

const second = int64(1_000_000_000)

var (
	macA, macB, macC = MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}, MAC{2, 0, 0, 0, 0, 3}
	ipA, ipB         = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	ipC              = netip.MustParseAddr("10.0.0.3")
)

func newStack(t testing.TB, mac MAC, prefix string) *Stack {
	t.Helper()
	s, err := New(Config{MAC: mac, Addr: netip.MustParsePrefix(prefix), Gateway: netip.MustParseAddr("10.0.0.254"), MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// payload returns a frame buffer with the payload in its place.
func payload(text string) (frame []byte, n int) {
	return append(make([]byte, Headroom), text...), len(text)
}

// pump exchanges the frames of both stacks until neither has any, and returns the PSP payloads that
// each received.
func pump(t testing.TB, now int64, a, b *Stack) (atA, atB []string) {
	t.Helper()
	buf := make([]byte, 1514)
	for range 100 {
		idle := true
		for n := a.Next(buf); n > 0; n = a.Next(buf) {
			idle = false
			if d, v := b.Input(now, buf[:n]); v == Deliver {
				atB = append(atB, string(d.Payload))
			}
		}
		for n := b.Next(buf); n > 0; n = b.Next(buf) {
			idle = false
			if d, v := a.Input(now, buf[:n]); v == Deliver {
				atA = append(atA, string(d.Payload))
			}
		}
		if idle {
			return atA, atB
		}
	}
	t.Fatal("the stacks never fall silent")
	return nil, nil
}

// introduce makes both stacks know each other.
func introduce(t testing.TB, now int64, a, b *Stack) {
	t.Helper()
	f, n := payload("hello")
	if _, ok := a.Output(now, sealedAt(ipB), 0xC000, 0, f, n); ok {
		t.Fatal("sent without an address")
	}
	if _, got := pump(t, now, a, b); len(got) != 1 {
		t.Fatalf("b got %q", got)
	}
}

func TestResolveThenSend(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	for _, ect := range []bool{false, true} {
		f, n := payload("direct")
		total, ok := a.Output(0, sealedAt(ipB), 0xC003, classOf(ect), f, n)
		if !ok || total != len(f) {
			t.Fatal(total, ok)
		}
		d, v := b.Input(0, f)
		if v != Deliver || d.Src != ipA || d.SrcPort != 0xC003 || d.TTL != 255 || d.CE || string(d.Payload) != "direct" {
			t.Fatalf("%v %+v", v, d)
		}
		f[15] |= ecnCE // a router marks it and repairs the checksum
		binary.BigEndian.PutUint16(f[24:], 0)
		binary.BigEndian.PutUint16(f[24:], ^checksum.Sum(f[14:34]))
		if d, v := b.Input(0, f); v != Deliver || !d.CE {
			t.Fatalf("marked: %v %+v", v, d)
		}
	}
	f, n := payload("back") // b learnt a from its request
	if _, ok := b.Output(0, sealedAt(ipA), 0xC000, 0, f, n); !ok {
		t.Fatal("b does not know a")
	}
}

// An independent decoder agrees with every byte.
func TestOutputMatchesGopacket(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	f, n := payload("0123456789")
	if _, ok := a.Output(0, sealedAt(ipB), 0xC007, ECT0, f, n); !ok {
		t.Fatal("not sent")
	}
	eth := layers.Ethernet{SrcMAC: macA[:], DstMAC: macB[:], EthernetType: layers.EthernetTypeIPv4}
	ip := layers.IPv4{Version: 4, TOS: 2, TTL: 255, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP, SrcIP: ipA.AsSlice(), DstIP: ipB.AsSlice()}
	udp := layers.UDP{SrcPort: 0xC007, DstPort: 1000, Length: 18}
	want := gopacket.NewSerializeBuffer()
	opt := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	body := append([]byte{0xC0, 0x07, 1000 >> 8, 1000 & 0xff, 0, 18, 0, 0}, "0123456789"...)
	if err := gopacket.SerializeLayers(want, opt, &eth, &ip, gopacket.Payload(body)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f, want.Bytes()[:len(f)]) {
		t.Errorf("got\n%x\nwant\n%x", f, want.Bytes())
	}
	p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	got, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || got.DstPort != udp.DstPort || got.SrcPort != udp.SrcPort || got.Length != udp.Length {
		t.Errorf("decoded %v", p)
	}
}

// The vector of falcon/psp/testdata/falcon.json as it arrives: IPv4 TTL 64, UDP 0xC123→1000, PSP.
func TestAGoldenPSPPacketIsDeliveredWhole(t *testing.T) {
	ip, err := hex.DecodeString("4500008c000040004011265f0a0000010a000002c12303e800780000040106019a3456780000000012345678450000500000400040fcb65ec0a80101c0a80102" +
		"1000abcdb2b992be3a0febd3408b1edac881afe038a9daed7fd40edfbef0e060f2ef205b7d061f455bc45149b0dd0d5ce9e77470ae651900548ed8716feddd79cc872dd1a36ecbbca8453daa")
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, ethLen, ethLen+len(ip))
	putEthernet(frame, macB, macA, typeIPv4)
	frame = append(frame, ip...)
	b := newStack(t, macB, "10.0.0.2/24")
	d, v := b.Input(0, frame)
	if v != Deliver || d.Src != ipA || d.SrcPort != 0xC123 || d.TTL != 64 || !bytes.Equal(d.Payload, ip[28:]) {
		t.Fatalf("%v %+v", v, d)
	}
	padded := append(bytes.Clone(frame), make([]byte, 20)...) // Ethernet padding
	if d, v := b.Input(0, padded); v != Deliver || len(d.Payload) != len(ip)-28 {
		t.Fatalf("padded: %v", v)
	}
	for n := range frame {
		if _, v := b.Input(0, frame[:n]); v < DropRunt {
			t.Fatalf("prefix of %d bytes: %v", n, v)
		}
	}
}

// TestUntagRemovesPriorityTagsOnly: Untag removes a priority tag from a frame, and leaves a frame of a VLAN
// unchanged.
func TestUntagRemovesPriorityTagsOnly(t *testing.T) {
	frame := make([]byte, 60)
	for i := range frame {
		frame[i] = byte(i)
	}
	frame[12], frame[13] = 8, 0
	for _, tci := range []uint16{0, 0xe000, 0x1000, 1, 0xe001, 0xfff} {
		tagged := append(bytes.Clone(frame[:12]), 0x81, 0, byte(tci>>8), byte(tci))
		tagged = append(tagged, frame[12:]...)
		want := frame
		if tci&0xfff != 0 {
			want = bytes.Clone(tagged)
		}
		if got := Untag(tagged); !bytes.Equal(got, want) {
			t.Errorf("tag %#x: %x, want %x", tci, got, want)
		}
	}
	for i := range frame {
		if got := Untag(frame[:i]); !bytes.Equal(got, frame[:i]) {
			t.Errorf("%d bytes without a tag: %x", i, got)
		}
	}
	short := append(bytes.Clone(frame[:12]), 0x81, 0, 0)
	for i := range short {
		if got := Untag(short[:i]); len(got) != i {
			t.Errorf("%d bytes of a tagged frame: %x", i, got)
		}
	}
}

func TestBadFramesAreDroppedForTheRightReason(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	fix := func(f []byte) {
		binary.BigEndian.PutUint16(f[24:], 0)
		binary.BigEndian.PutUint16(f[24:], ^checksum.Sum(f[14:34]))
	}
	ipByte := func(i int, v byte) func([]byte) { return func(f []byte) { f[14+i] = v; fix(f) } }
	for name, tc := range map[string]struct {
		edit func([]byte)
		want Verdict
	}{
		"other MAC":          {func(f []byte) { f[5] = 9 }, DropMAC},
		"broadcast IP":       {func(f []byte) { copy(f, broadcast[:]) }, DropMAC},
		"group source":       {func(f []byte) { f[6] |= 1 }, DropSourceMAC},
		"zero source":        {func(f []byte) { clear(f[6:12]) }, DropSourceMAC},
		"own source":         {func(f []byte) { copy(f[6:], macB[:]) }, DropSourceMAC},
		"IPv6":               {func(f []byte) { f[12], f[13] = 0x86, 0xdd }, DropEtherType},
		"checksum":           {func(f []byte) { f[24] ^= 1 }, DropIPHeader},
		"version":            {ipByte(0, 0x65), DropIPHeader},
		"header length":      {ipByte(0, 0x44), DropIPHeader},
		"options overrun":    {ipByte(0, 0x4f), DropIPHeader},
		"total too long":     {ipByte(3, 255), DropIPHeader},
		"total too short":    {ipByte(3, 19), DropIPHeader},
		"more fragments":     {ipByte(6, 0x20), DropFragment},
		"fragment offset":    {ipByte(7, 1), DropFragment},
		"TTL":                {ipByte(8, 0), DropTTL},
		"TCP":                {ipByte(9, 6), DropProtocol},
		"source unspecified": {func(f []byte) { clear(f[26:30]); fix(f) }, DropSource},
		"source multicast":   {ipByte(12, 224), DropSource},
		"source loopback":    {ipByte(12, 127), DropSource},
		"source ours":        {ipByte(15, 2), DropSource},
		"to another":         {ipByte(19, 9), DropDestination},
		"UDP length long":    {func(f []byte) { f[39]++ }, DropUDPLength},
		"UDP length short":   {func(f []byte) { f[39]-- }, DropUDPLength},
		"no UDP header":      {ipByte(3, 27), DropUDPLength},
		"port":               {func(f []byte) { f[37]++ }, DropPort},
	} {
		f, n := payload("a PSP packet")
		if _, ok := a.Output(0, sealedAt(ipB), 1, 0, f, n); !ok {
			t.Fatal("not sent")
		}
		tc.edit(f)
		before := b.Stats()[tc.want]
		if _, v := b.Input(0, f); v != tc.want || b.Stats()[tc.want] != before+1 {
			t.Errorf("%s: %v, want %v", name, v, tc.want)
		}
	}
}

func TestIPOptionsAreSkipped(t *testing.T) {
	b := newStack(t, macB, "10.0.0.2/24")
	f := make([]byte, ethLen+24+udpLen+4)
	putEthernet(f, macB, macA, typeIPv4)
	ip := ipv4{ttl: 9, protocol: protoUDP, src: ipA.As4(), dst: ipB.As4()}
	ip.put(f[ethLen:], 24+udpLen+4)
	f[ethLen] = 0x46
	f[24], f[25] = 0, 0
	binary.BigEndian.PutUint16(f[24:], ^checksum.Sum(f[14:38]))
	binary.BigEndian.PutUint16(f[ethLen+26:], 1000)
	binary.BigEndian.PutUint16(f[ethLen+28:], udpLen+4)
	if d, v := b.Input(0, f); v != Deliver || len(d.Payload) != 4 {
		t.Fatalf("%v %+v", v, d)
	}
}

func TestPacketsThatCannotBeSentAreDropped(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	big := make([]byte, 2000)
	for _, tc := range []struct {
		dst  string
		n    int
		want Verdict
	}{
		{"10.0.0.2", 1500 - 28 + 1, DropTooLong},
		{"10.0.0.2", 1990, DropBuffer},
		{"10.0.0.2", -1, DropBuffer},
		{"10.0.0.1", 1, DropRoute},
		{"10.0.0.255", 1, DropRoute},
		{"224.0.0.1", 1, DropRoute},
		{"0.0.0.0", 1, DropRoute},
		{"a00::1", 1, DropRoute},
		{"255.255.255.255", 1, DropRoute},
		{"127.0.0.1", 1, DropRoute},
		{"10.0.0.2", 1500 - 28, Parked},
	} {
		if _, ok := a.Output(0, sealedAt(netip.MustParseAddr(tc.dst)), 1, 0, big, tc.n); ok || a.Stats()[tc.want] == 0 {
			t.Errorf("%s %d: %v", tc.dst, tc.n, a.Stats())
		}
		a.stats = Stats{}
	}
	a.gateway = netip.Addr{}
	if a.Output(0, sealedAt(netip.MustParseAddr("8.8.8.8")), 1, 0, big, 1); a.Stats()[DropRoute] != 1 {
		t.Error("sent off the subnet without a gateway")
	}
}

func TestAnInvalidConfigurationIsRefused(t *testing.T) {
	good := Config{MAC: macA, Addr: netip.MustParsePrefix("10.0.0.1/24"), MTU: 1500}
	for name, edit := range map[string]func(*Config){
		"group MAC":       func(c *Config) { c.MAC[0] = 1 },
		"zero MAC":        func(c *Config) { c.MAC = MAC{} },
		"no address":      func(c *Config) { c.Addr = netip.Prefix{} },
		"mapped":          func(c *Config) { c.Addr = netip.MustParsePrefix("::ffff:10.0.0.1/120") },
		"small IPv6 MTU":  func(c *Config) { c.Addr, c.MTU = netip.MustParsePrefix("fd00::1/64"), 1279 },
		"IPv6 multicast":  func(c *Config) { c.Addr = netip.MustParsePrefix("ff02::1/64") },
		"multicast":       func(c *Config) { c.Addr = netip.MustParsePrefix("224.0.0.1/24") },
		"foreign gateway": func(c *Config) { c.Gateway = netip.MustParseAddr("10.0.1.1") },
		"own gateway":     func(c *Config) { c.Gateway = ipA },
		"small MTU":       func(c *Config) { c.MTU = 575 },
		"large MTU":       func(c *Config) { c.MTU = 65536 },
	} {
		c := good
		edit(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s accepted", name)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	f, n := payload("a PSP packet")
	ask := arpFrame(broadcast, macA, arp{op: arpRequest, senderMAC: macA, senderIP: ipA.As4(), targetIP: ipB.As4()})
	out := make([]byte, 1514)
	inner := Inner{Src: ipA, Dst: ipB}
	if n := allocs.PerRun(100, func() {
		inner.Append(f[:Headroom], n)
		if _, ok := a.Output(0, sealedAt(ipB), 1, ECT0, f, n); !ok {
			t.Fatal("not sent")
		}
		if _, v := b.Input(0, f); v != Deliver {
			t.Fatal(v)
		}
		if _, v := b.Input(0, ask); v != ARP || b.Next(out) == 0 {
			t.Fatal(v)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzInput(f *testing.F) {
	a, b := newStack(f, macA, "10.0.0.1/24"), newStack(f, macB, "10.0.0.2/24")
	introduce(f, 0, a, b)
	frame, n := payload("a PSP packet")
	a.Output(0, sealedAt(ipB), 1, ECT0, frame, n)
	f.Add(frame)
	f.Add(arpFrame(broadcast, macA, arp{op: arpRequest, senderMAC: macA, senderIP: ipA.As4(), targetIP: ipB.As4()}))
	f.Add(arpFrame(macB, macA, arp{op: arpReply, senderMAC: macA, senderIP: ipA.As4(), targetIP: ipB.As4(), targetMAC: macB}))
	out := make([]byte, 1514)
	f.Fuzz(func(t *testing.T, frame []byte) {
		b := newStack(t, macB, "10.0.0.2/24")
		d, v := b.Input(0, frame)
		if (v == Deliver) != (d.Payload != nil) && len(d.Payload) > 0 || v >= NumVerdicts || v == Sent || v == Parked {
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

// TestValuesAtTheLimitsOfAConfigurationAreAccepted: the least and the largest MTU are accepted, and any valid host address of
// the subnet is accepted as a neighbour.
func TestValuesAtTheLimitsOfAConfigurationAreAccepted(t *testing.T) {
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

// TestADatagramNeedsAWholeHeaderButNoPayload: a datagram may be empty, and a packet may end with its header. Frames for
// another host are ignored.
func TestADatagramNeedsAWholeHeaderButNoPayload(t *testing.T) {
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
			if p, ok := new(Stack).Peek(f); ok != (want == Deliver) || ok && len(p) != n-udpLen {
				t.Errorf("IPv6 %t, %d bytes behind the header: sealed %t, %d bytes", v6, n, ok, len(p))
			}
		}
		port := headroom - udpLen + 2
		for _, at := range []int{12, 13, proto, port, port + 1} {
			f := frame(20)
			f[at] ^= 1
			if _, ok := new(Stack).Peek(f); ok {
				t.Errorf("IPv6 %t, byte %d is another: sealed", v6, at)
			}
		}
	}
	b := newStack(t, macB, "10.0.0.2/24")
	reply := arp{op: arpReply, senderMAC: macA, senderIP: ipA.As4(), targetMAC: macC, targetIP: ipC.As4()}
	if _, v := b.Input(0, arpFrame(macC, macA, reply)); v != DropMAC {
		t.Errorf("ARP for another host: %v", v)
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
	if total, ok := a.Output(0, sealedAt(ipB), 1, 0, f, n); !ok || total != Headroom {
		t.Errorf("%d bytes, %t", total, ok)
	}
}

// sealedAt returns where a NIC at an address receives sealed packets.
func sealedAt(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, SealedPort) }

func classOf(ect bool) uint8 {
	if ect {
		return ECT0
	}
	return 0
}
