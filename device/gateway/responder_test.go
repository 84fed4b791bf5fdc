package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// The sender of a packet that is too long gets an error with the MTU, but not about errors, and not
// too often.
func TestTheSenderOfATooLongPacketIsTold(t *testing.T) {
	n := newNet(t)
	big := udp(t, gwA, macA, ipA, ipC, 1500)
	n.send(bytes.Clone(big), Offload{})
	icmp, _ := decode(t, n.output()[0].b).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if icmp == nil || icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || icmp.Seq != tunnelMTU || !bytes.Equal(icmp.Payload, big[14:14+548]) {
		t.Errorf("%+v", icmp)
	}
	n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, 1300}, {7, v6C, 0x020001, 1300}}) // the peer's port takes less
	six := udp(t, gwA, macA, v6A, v6C, 1300)
	n.send(six, Offload{})
	p := decode(t, n.output()[0].b)
	m, _ := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if m == nil || m.TypeCode != layers.CreateICMPv6TypeCode(2, 0) || binary.BigEndian.Uint32(m.Payload) != 1300 || len(p.Data()) > 1280+14 {
		t.Errorf("%v", p)
	}
	told := n.g.Stats().Reasons[CountICMP]
	for range 1000 {
		n.send(bytes.Clone(big), Offload{})
		n.output()
	}
	if now := n.g.Stats().Reasons[CountICMP]; now != errorBurst || n.g.Stats().Reasons[DropICMPLimit] == 0 {
		t.Errorf("%d errors, %d before", now, told)
	}
	m2 := ip4(ipA, ipC, layers.IPProtocolICMPv4)
	refusal := frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), m2, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)}, gopacket.Payload(make([]byte, 1500)))
	n = newNet(t)
	if n.send(refusal, Offload{}); len(n.output()) != 0 {
		t.Error("an error about an error")
	}
}

func TestOnlyEchoRequestsToTheRouterAreAnswered(t *testing.T) {
	n := newNet(t)
	ping := frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip4(ipA, router4, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 5, Seq: 6}, gopacket.Payload("hello"))
	n.send(ping, Offload{})
	icmp, _ := decode(t, n.output()[0].b).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if icmp == nil || icmp.TypeCode.Type() != 0 || icmp.Id != 5 || icmp.Seq != 6 || string(icmp.Payload) != "hello" {
		t.Errorf("%+v", icmp)
	}

	ip := ip6(v6A, v6C, layers.IPProtocolICMPv6) // another's: it is not the gateway's to answer
	to := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}
	_ = to.SetNetworkLayerForChecksum(ip)
	ping = frame(t, eth(gwA, macA, layers.EthernetTypeIPv6), ip, to, gopacket.Payload("\x00\x05\x00\x06hello"))
	if p := n.send(bytes.Clone(ping), Offload{}); len(p) != 1 || !bytes.Equal(p[0], ping[ethLen:]) {
		t.Errorf("%x of %x to the peer", p, ping)
	}
}

var nobody4, nobody6 = addr("10.0.0.9"), addr("fd00::9")

// toNobody returns a packet of a protocol to an address that nobody has.
func toNobody(v6 bool, proto uint8, upper []byte) []byte {
	if v6 {
		b := append(make([]byte, ipv6Len), upper...)
		putIPv6(b, proto, 64, v6A, nobody6, len(upper))
		return b
	}
	b := append(make([]byte, ipv4Len), upper...)
	putIPv4(b, proto, ipA, nobody4, len(b))
	return b
}

// framed returns a frame of port a's guest that contains the packet.
func framed(packet []byte) []byte {
	f := append(make([]byte, ethLen), packet...)
	copy(f, gwA[:])
	copy(f[6:], macA[:])
	h := header{v6: packet[0]>>4 == 6}
	binary.BigEndian.PutUint16(f[12:], h.etherType())
	return f
}

// told returns the number of errors that the sender of a packet gets.
func (n *net) told(packet []byte) int {
	n.t.Helper()
	n.a.errors, n.a.Drops, n.g.stats = bucket{}, [Reasons]uint64{}, Stats{}
	n.send(framed(packet), Offload{})
	out := len(n.output())
	if n.a.Drops[DropNoRoute] != 1 || n.g.Stats().Reasons[CountICMP] != uint64(out) {
		n.t.Errorf("%x: %d told, %v", packet, out, n.g.Stats().Reasons)
	}
	return out
}

// TestErrorsAboutICMP: errors are sent about ICMP queries and answers, never about errors (RFC 1122
// §3.2.2, RFC 4443 §2.4).
func TestErrorsAboutICMP(t *testing.T) {
	n := newNet(t)
	queries := map[int]bool{0: true, 8: true, 13: true, 14: true, 15: true, 16: true, 17: true, 18: true}
	for kind := range 256 {
		if got := n.told(toNobody(false, protoICMP, []byte{byte(kind), 0, 0, 0, 0, 0, 0, 0})); (got == 1) != queries[kind] {
			t.Errorf("ICMP of type %d: %d errors", kind, got)
		}
		if kind >= ndRouterSolicit && kind <= ndRedirect { // the gateway's own
			continue
		}
		if got := n.told(toNobody(true, protoICMP6, []byte{byte(kind), 0, 0, 0, 0, 0, 0, 0})); (got == 1) != (kind >= 128) {
			t.Errorf("ICMPv6 of type %d: %d errors", kind, got)
		}
	}
	for _, tc := range []struct {
		v6    bool
		proto uint8
		upper []byte
		want  int
	}{
		{false, protoICMP, nil, 0}, // nobody knows what it is
		{false, protoICMP, []byte{icmpEcho}, 1},
		{true, protoICMP6, nil, 0},
		{true, protoICMP6, []byte{icmp6Echo}, 1},
		{false, protoICMP6, []byte{icmp6TooBig}, 1}, // means nothing there
		{true, protoICMP, []byte{icmpUnreachable}, 1},
		{false, 132, nil, 1},
		{true, 132, nil, 1},
	} {
		if got := n.told(toNobody(tc.v6, tc.proto, tc.upper)); got != tc.want {
			t.Errorf("IPv6 %t, protocol %d, % x: %d errors, want %d", tc.v6, tc.proto, tc.upper, got, tc.want)
		}
	}
}

// TestErrorsAboutFragments: of a fragmented IPv4 datagram, only the first fragment causes an error.
func TestErrorsAboutFragments(t *testing.T) {
	n := newNet(t)
	for field, want := range map[uint16]int{0x4000: 1, 0x2000: 1, 0x2001: 0, 0x0001: 0, 0x1000: 0} {
		b := toNobody(false, protoUDP, make([]byte, 16))
		binary.BigEndian.PutUint16(b[6:], field)
		finishIPv4(b, ipv4Len)
		if got := n.told(b); got != want {
			t.Errorf("fragment field %#04x: %d errors, want %d", field, got, want)
		}
	}
	b := toNobody(true, protoFragment, append(fragment(protoUDP, 8), make([]byte, 8)...))
	if got := n.told(b); got != 1 {
		t.Errorf("a later fragment of IPv6: %d errors", got)
	}
}

// TestAPacketOfThePathMTUPasses: a packet of the path's MTU passes. A packet that is one byte longer does not,
// and its sender gets an error.
func TestAPacketOfThePathMTUPasses(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		from, to, there, headers := ipA, ipC, ipB, ipv4Len+udpLen
		if v6 {
			from, to, there, headers = v6A, v6C, v6B, ipv6Len+udpLen
		}
		for more := range 2 {
			n := newNet(t)
			p := n.send(udp(t, gwA, macA, from, to, tunnelMTU-headers+more), Offload{})
			if len(p) != 1-more || n.g.Stats().Reasons[CountICMP] != uint64(more) {
				t.Errorf("IPv6 %t, %d bytes more: %d packets for the peer", v6, more, len(p))
			}
			n.output()
			n.send(udp(t, gwA, macA, from, there, tunnelMTU-headers+more), Offload{})
			if out := n.output(); (out[0].port == n.b) != (more == 0) {
				t.Errorf("IPv6 %t, %d bytes more: a frame for %s", v6, more, out[0].port.Name)
			}
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, macA, gwA, to, from, tunnelMTU-headers+more), 0)
			if out := n.output(); len(out) != 1-more || n.a.Drops[DropPortTooBig] != uint64(more) {
				t.Errorf("IPv6 %t, %d bytes more: %d frames from the peer", v6, more, len(out))
			}
		}
	}
}

// echo6 is a ping of IPv6 to a router with a body of n bytes.
func echo6(t *testing.T, kind, code uint8, n int) []byte {
	t.Helper()
	ip := ip6(v6A, router6, layers.IPProtocolICMPv6)
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, code)}
	_ = icmp.SetNetworkLayerForChecksum(ip)
	return frame(t, eth(gwA, macA, layers.EthernetTypeIPv6), ip, icmp, gopacket.Payload(bytes.Repeat([]byte{7}, n)))
}

// TestEchoOfIPv6: a router answers pings of IPv6 up to a size, and nothing that looks like one.
func TestEchoOfIPv6(t *testing.T) {
	const most = maxEchoing - ipv6Len - 4 // body of the longest
	like := func(v6 bool, proto, first uint8) []byte {
		b := toNobody(v6, proto, []byte{first, 0, 0, 0, 0, 0, 0, 0})
		if v6 {
			copy(b[24:], router6.AsSlice())
		} else {
			copy(b[16:], router4.AsSlice())
			finishIPv4(b, ipv4Len)
		}
		return framed(b)
	}
	for name, tc := range map[string]struct {
		f       []byte
		answers bool
		why     Reason
	}{
		"ping":                       {echo6(t, icmp6Echo, 0, 30), true, none},
		"shortest":                   {echo6(t, icmp6Echo, 0, 4), true, none},
		"half a header":              {echo6(t, icmp6Echo, 0, 3), false, DropDestination},
		"largest":                    {echo6(t, icmp6Echo, 0, most), true, none},
		"too large":                  {echo6(t, icmp6Echo, 0, most+1), false, DropTooBig},
		"a reply":                    {echo6(t, icmp6EchoReply, 0, 30), false, DropDestination},
		"a code":                     {echo6(t, icmp6Echo, 1, 30), false, DropDestination},
		"IPv4's shortest":            {like(false, protoICMP, icmpEcho), true, none},
		"ICMP in IPv6":               {like(true, protoICMP, icmp6Echo), false, DropDestination},
		"ICMPv6 in IPv4":             {like(false, protoICMP6, icmpEcho), false, DropDestination},
		"UDP from port 2048":         {like(false, protoUDP, icmpEcho), false, DropDestination},
		"UDP from port 32768":        {like(true, protoUDP, icmp6Echo), false, DropDestination},
		"IPv4's kind in IPv6's ICMP": {like(true, protoICMP6, icmpEcho), false, DropDestination},
	} {
		n := newNet(t)
		want := bytes.Clone(tc.f)
		n.send(tc.f, Offload{})
		out := n.output()
		if len(out) != 0 != tc.answers || tc.why != none && n.a.Drops[tc.why] != 1 {
			t.Errorf("%s: %d answers, %v", name, len(out), n.g.Stats().Reasons)
		}
		if len(out) == 0 || want[ethLen]>>4 == 4 {
			continue
		}
		decode(t, out[0].b)
		b, asked := out[0].b[ethLen:], want[ethLen:]
		if len(b) != len(asked) || b[ipv6Len] != icmp6EchoReply || !bytes.Equal(b[ipv6Len+4:], asked[ipv6Len+4:]) ||
			!bytes.Equal(b[8:24], router6.AsSlice()) || !bytes.Equal(b[24:40], v6A.AsSlice()) {
			t.Errorf("%s: %x", name, b)
		}
	}
}

// TestICMPErrorsRefillUpToABurst: ICMP errors stop after a burst, then one is allowed every errorEvery. A quiet
// hour saves up no more than a burst.
func TestICMPErrorsRefillUpToABurst(t *testing.T) {
	var b bucket
	now := int64(second)
	taken := func() (n int) {
		for b.take(now) {
			n++
		}
		return n
	}
	for _, tc := range []struct{ pause, want int64 }{
		{0, errorBurst},
		{errorEvery - 1, 0},
		{1, 1},
		{3*errorEvery + errorEvery/2, 3},
		{errorEvery / 2, 1},
		{errorEvery * errorBurst * 100, errorBurst},
		{errorEvery, 1},
	} {
		now += tc.pause
		if n := taken(); int64(n) != tc.want {
			t.Errorf("%d after %d ns, want %d", n, tc.pause, tc.want)
		}
	}
}

// TestGatewayAnswersForItsOwnAddresses: the gateway answers for its own link-local address, as a
// router. If the tenant has no router, it answers for its address as a DHCP server.
func TestGatewayAnswersForItsOwnAddresses(t *testing.T) {
	n := newNet(t)
	own := n.a.linkLocal()
	n.send(ndFrame(t, macA, v6A, own, ndSolicit, own), Offload{})
	out := n.output()
	if len(out) != 1 {
		t.Fatalf("%d answers, %v", len(out), n.g.Stats().Reasons)
	}
	na, _ := decode(t, out[0].b).Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
	if na == nil || na.Flags != flagSolicited|flagOverride|flagRouter {
		t.Errorf("%+v", na)
	}
	for _, c := range []struct {
		routers []netip.Addr
		answers int
	}{{addrs("10.0.0.254"), 0}, {nil, 1}} {
		n.g.routes.SetTenant(TenantConfig{Tenant: 7, Routers: c.routers})
		n.send(arpFrame(macA, ipA, anyServer), Offload{})
		if out := n.output(); len(out) != c.answers {
			t.Errorf("with %d routers: %d answers for %s", len(c.routers), len(out), anyServer)
		}
	}
}

// TestReplyNeedsNoOtherOutput: a reply of the gateway goes to the port that asked, also when there
// is no other output.
func TestReplyNeedsNoOtherOutput(t *testing.T) {
	n := newNet(t)
	device := &taking{}
	n.a.Device = device
	if n.g.Waiting() {
		t.Error("output without input")
	}
	n.send(arpFrame(macA, ipA, ipC), Offload{})
	if !n.g.Waiting() {
		t.Error("an answer does not wait")
	}
	took := 0
	n.g.Deliver(func(*PortFrame) { took++ })
	if took != 1 || len(device.frames) != 1 || n.g.Waiting() {
		t.Errorf("%d taken, waiting %t", took, n.g.Waiting())
	}
	n.a.Lost = true
	n.send(arpFrame(macA, ipA, ipC), Offload{})
	n.g.Deliver(func(*PortFrame) { took++ })
	if took != 1 || len(device.frames) != 1 || n.a.Drops[DropPortFull] != 1 {
		t.Errorf("a device that is gone took %d, %d dropped", took-1, n.a.Drops[DropPortFull])
	}
}

// TestRouterAnswersWholeEchoRequestsOnly: a router answers whole echo requests of both IP versions,
// and nothing else.
func TestRouterAnswersWholeEchoRequestsOnly(t *testing.T) {
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
