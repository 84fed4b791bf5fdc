package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

// TestOnlyDriverSpeaksRoCE: while a driver has the function, the port's guest cannot send RoCEv2
// from its address, neither whole nor as a first fragment that a receiver could reassemble. The
// guest may use other addresses, other UDP ports and later fragments, and without a driver
// everything.
func TestOnlyDriverSpeaksRoCE(t *testing.T) {
	fragmented := func(f []byte, offset uint16) []byte {
		binary.BigEndian.PutUint16(f[ethLen+6:], 0x2000|offset)
		finishIPv4(f[ethLen:], ipv4Len)
		return f
	}
	fragmented6 := func(f []byte, offset uint16) []byte {
		f = slices.Insert(f, ethLen+ipv6Len, protoUDP, 0, byte(offset>>5), byte(offset<<3)|1, 0, 0, 0, 9)
		f[ethLen+6] = protoFragment
		binary.BigEndian.PutUint16(f[ethLen+4:], uint16(len(f)-ethLen-ipv6Len))
		return f
	}
	to := func(port uint16, from, to netip.Addr) []byte {
		f := udp(t, gwA, macA, from, to, 64)
		at := ethLen + ipv4Len
		if from.Is6() {
			at = ethLen + ipv6Len
		}
		binary.BigEndian.PutUint16(f[at+2:], port)
		return f
	}
	second := addr("10.0.0.21")
	for name, tc := range map[string]struct {
		f     []byte
		drops bool
	}{
		"from the function's address":              {to(rocePort, ipA, ipC), true},
		"to a port of this NIC":                    {to(rocePort, ipA, ipB), true},
		"the first fragment":                       {fragmented(to(rocePort, ipA, ipC), 0), true},
		"a later fragment":                         {fragmented(to(rocePort, ipA, ipC), 8), false},
		"another UDP port":                         {to(rocePort+1, ipA, ipC), false},
		"another address of the guest":             {to(rocePort, second, ipC), false},
		"its IPv6 address, which is not the GID's": {to(rocePort, v6A, v6C), false},
	} {
		for _, driver := range []bool{true, false} {
			n := newNet(t)
			c := n.a.EndpointConfig
			c.Addresses = append(slices.Clone(c.Addresses), second)
			configure(n.g, n.a, c, true)
			if driver {
				n.a.SetFunction(roceClaim, receiving(func([]byte) {}))
			}
			sent := len(n.send(bytes.Clone(tc.f), Offload{})) + len(n.output())
			want, counted := 1, uint64(0)
			if tc.drops && driver {
				want, counted = 0, 1
			}
			if sent != want || n.a.Drops[DropForged] != counted {
				t.Errorf("%s, with a driver %t: %d packets, drops %v", name, driver, sent, n.a.Drops)
			}
		}
	}
	n := newNet(t)
	c := n.a.EndpointConfig
	slices.Reverse(c.Addresses) // the function's is the first
	configure(n.g, n.a, c, true)
	n.a.SetFunction(roceClaim, receiving(func([]byte) {}))
	for i, f := range [][]byte{to(rocePort, v6A, v6C), fragmented6(to(rocePort, v6A, v6C), 0), fragmented6(to(rocePort, v6A, v6C), 8)} {
		if n.send(f, Offload{}); n.a.Drops[DropForged] != uint64(min(i+1, 2)) {
			t.Errorf("IPv6, packet %d: drops %v", i, n.a.Drops)
		}
	}
}

// TestRoCEHeader: a packet is RoCEv2 if, and only if, it has a whole UDP header with the port of
// RoCEv2.
func TestRoCEHeader(t *testing.T) {
	for name, tc := range map[string]struct {
		proto    uint8
		port     uint16
		fragment bool
		length   int
		is       bool
	}{
		"RoCEv2":     {protoUDP, rocePort, false, udpLen, true},
		"DNS":        {protoUDP, 53, false, udpLen, false},
		"TCP":        {protoTCP, rocePort, false, udpLen, false},
		"a fragment": {protoUDP, rocePort, true, udpLen, false},
		"cut off":    {protoUDP, rocePort, false, udpLen - 1, false},
	} {
		b := make([]byte, ipv4Len+udpLen)
		binary.BigEndian.PutUint16(b[ipv4Len+2:], tc.port)
		h := header{proto: tc.proto, l4: ipv4Len, total: ipv4Len + tc.length, fragment: tc.fragment}
		if h.wholeTo(b, &roceClaim) != tc.is {
			t.Errorf("%s: RoCEv2 %t", name, !tc.is)
		}
	}
}

// ofFunction returns a frame with a RoCEv2 packet of n bytes.
func ofFunction(t *testing.T, to netip.Addr, n int) []byte {
	t.Helper()
	u, ip := &layers.UDP{SrcPort: 0xc123, DstPort: rocePort}, ip4(ipA, to, layers.IPProtocolUDP)
	_ = u.SetNetworkLayerForChecksum(ip)
	return frame(t, eth(MAC{}, MAC{}, layers.EthernetTypeIPv4), ip, u, gopacket.Payload(make([]byte, n-ipv4Len-udpLen)))
}

// TestRoCEOfFunctionsIsRouted: RoCEv2 packets of a function go where its guest's packets would go,
// if they fit. There is no error message if they do not fit.
func TestRoCEOfFunctionsIsRouted(t *testing.T) {
	for name, tc := range map[string]struct {
		to             netip.Addr
		n              int
		down, alone    bool
		tunnel         bool
		port, received int
		why            Reason
	}{
		"to a peer":              {to: ipC, n: tunnelMTU, tunnel: true},
		"longer than the way":    {to: ipC, n: tunnelMTU + 1, why: DropTooBig},
		"to a port":              {to: ipB, n: tunnelMTU, port: 1},
		"longer than the port":   {to: ipB, n: tunnelMTU + 1, why: DropTooBig},
		"to itself":              {to: ipA, n: 100, received: 1},
		"to nobody":              {to: nobody4, n: 100, why: DropNoRoute},
		"to a router":            {to: router4, n: 100, why: DropNoRoute},
		"while its port is down": {to: ipC, n: 100, down: true, why: DropPortDown},
		"to a group":             {to: group4, n: tunnelMTU, tunnel: true, received: 1},
		"to a group, too long":   {to: group4, n: tunnelMTU + 1, received: 1, why: DropTooBig},
		"that without peers":     {to: group4, n: tunnelMTU + 1, alone: true, received: 1},
		"to a group, while down": {to: group4, n: 100, down: true, why: DropPortDown},
	} {
		n, received := newNet(t), 0
		n.a.SetFunction(roceClaim, receiving(func([]byte) { received++ }))
		if tc.alone {
			n.g.routes.Learn(2, nil)
		}
		configure(n.g, n.a, n.a.EndpointConfig, !tc.down)
		tunnel := n.g.FromFunction(n.a, ofFunction(t, tc.to, tc.n), FunctionWork{}, &n.fwd)
		out := n.output()
		if tunnel != tc.tunnel || len(out) != tc.port || received != tc.received {
			t.Errorf("%s: tunnel %t, %d frames for ports, received %d times", name, tunnel, len(out), received)
		}
		drops := [Reasons]uint64{}
		if tc.why != none {
			drops[tc.why] = 1
		}
		if n.a.Drops != drops {
			t.Errorf("%s: %v", name, n.a.Drops)
		}
	}
	n := newNet(t)
	if n.g.FromFunction(n.a, ofFunction(t, ipA, 100), FunctionWork{}, &n.fwd); n.a.Drops[DropHairpin] != 1 {
		t.Errorf("to itself, which takes none: %v", n.g.Stats().Reasons)
	}
}

// TestFunctionGetsCompleteChecksums: a guest may leave the UDP checksum of a RoCEv2 packet
// incomplete. A function of the NIC, which checks it, gets the packet with the completed checksum.
func TestFunctionGetsCompleteChecksums(t *testing.T) {
	n := newNet(t)
	var received []byte
	n.b.SetFunction(roceClaim, receiving(func(p []byte) { received = bytes.Clone(p) }))
	f := udp(t, gwA, macA, ipA, ipB, 1000)
	ip := f[ethLen:]
	binary.BigEndian.PutUint16(ip[ipv4Len+2:], rocePort)
	pseudo := append(bytes.Clone(ip[12:20]), 0, protoUDP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(ip)-ipv4Len))
	binary.BigEndian.PutUint16(ip[ipv4Len+6:], checksum.Sum(pseudo))
	n.send(f, Offload{NeedsCsum: true, CsumStart: ethLen + ipv4Len, CsumOffset: udpCheckAt})
	if len(received) != len(ip) {
		t.Fatalf("the function got %d bytes", len(received))
	}
	if got := checksum.Sum(append(pseudo, received[ipv4Len:]...)); got != 0xffff {
		t.Errorf("the checksum is wrong: the sum is %#x", got)
	}
}

// TestFunctionTakesRoCEAtItsFirstAddress: RoCEv2 packets to the first address of a function go to
// the function. Those to its other addresses, or to a function without addresses, go to the guest.
func TestFunctionTakesRoCEAtItsFirstAddress(t *testing.T) {
	for _, tc := range []struct {
		addresses []netip.Addr
		received  int
	}{{addrs("10.0.0.3", "10.0.0.8"), 1}, {addrs("10.0.0.8", "10.0.0.3"), 0}, {nil, 0}} {
		n, received := newNet(t), 0
		n.b.SetFunction(roceClaim, receiving(func([]byte) { received++ }))
		c := n.b.EndpointConfig
		c.Addresses = tc.addresses
		n.g.Configure(n.b, c, true)
		n.g.FromShard(n.b.Function, ofFunction(t, ipC, 100), Offload{})
		if out := n.output(); received != tc.received || len(out) != 1-tc.received {
			t.Errorf("addresses %v: received %d times, %d frames, %v", tc.addresses, received, len(out), n.g.Stats().Reasons)
		}
	}
}

// rocePort is the UDP port of the functions' packets in tests.
const rocePort = 4791

var roceClaim = Claim{Protocol: protoUDP, Port: rocePort}

// TestASetOfPortsIsTheFunctionsOwn: of a claim with a set of ports, the function takes TCP to those of its
// ends and its guest gets the rest; the guest may not send as if it were one of the ends.
func TestASetOfPortsIsTheFunctionsOwn(t *testing.T) {
	tcp := func(src, dst netip.Addr, from, to layers.TCPPort) []byte {
		ip := ip4(src, dst, layers.IPProtocolTCP)
		seg := &layers.TCP{SrcPort: from, DstPort: to, SYN: true, Window: 100}
		_ = seg.SetNetworkLayerForChecksum(ip)
		return frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip, seg)
	}
	n := newNet(t)
	taken := 0
	ports := new(PortSet)
	n.b.SetFunction(Claim{Protocol: protoTCP, Ports: ports}, receiving(func([]byte) { taken++ }))
	n.a.SetFunction(Claim{Protocol: protoTCP, Ports: ports}, receiving(func([]byte) {}))
	for _, own := range []bool{false, true, false} {
		if ports.Remove(5000); own {
			ports.Add(5000)
		}
		before, forged := taken, n.a.Drops[DropForgedPort]
		n.send(tcp(ipA, ipB, 6000, 5000), Offload{})
		if taken-before != map[bool]int{true: 1}[own] {
			t.Errorf("own %t: taken %d", own, taken-before)
		}
		n.send(tcp(ipA, ipB, 5000, 6000), Offload{})
		if (n.a.Drops[DropForgedPort] > forged) != own {
			t.Errorf("own %t: %d forged", own, n.a.Drops[DropForgedPort]-forged)
		}
	}
}

// TestPacketsOfAFunctionMayStandForSeveral: a packet that a function's TCP left uncut, with its checksum open, goes to a
// peer as packets that fit the path, to a port with its offload, and to a function whole with a right checksum. One
// whose segments cannot fit is dropped.
func TestPacketsOfAFunctionMayStandForSeveral(t *testing.T) {
	const data, size = 60_000, 1300
	for _, v6 := range []bool{false, true} {
		from, peer, port := ipA, ipC, ipB
		if v6 {
			from, peer, port = v6A, v6C, v6B
		}
		n, work := newNet(t), FunctionWork{Unsummed: true, Segment: size}
		f, _ := whole(t, from, peer, layers.IPProtocolTCP, 0, data, size, 0)
		sent := bytes.Clone(f)
		if !n.g.FromFunction(n.a, f, work, &n.fwd) {
			t.Fatalf("not for the tunnel: %v", n.a.Drops)
		}
		var got []byte
		for n.fwd.Left() {
			b := n.fwd.Next()
			if len(b) > tunnelMTU {
				t.Errorf("%d bytes", len(b))
			}
			p := decode(t, append(bytes.Clone(f[:ethLen]), b...))
			got = append(got, p.Layer(layers.LayerTypeTCP).LayerPayload()...)
		}
		if !bytes.Equal(got, sent[len(sent)-data:]) {
			t.Errorf("%d bytes, which are others than were sent", len(got))
		}
		f, off := whole(t, from, port, layers.IPProtocolTCP, 0, data, size, 0)
		n.g.FromFunction(n.a, f, work, &n.fwd)
		if out := n.output(); len(out) != 1 || out[0].off != off {
			t.Errorf("to a port: %+v, want %+v", out, off)
		}
		received := 0
		c := n.b.EndpointConfig
		if v6 {
			slices.Reverse(c.Addresses)
		}
		configure(n.g, n.b, c, true)
		n.b.SetFunction(Claim{Protocol: protoTCP, Port: 443}, receiving(func(p []byte) {
			decode(t, append(bytes.Clone(f[:ethLen]), p...))
			received = len(p)
		}))
		f, _ = whole(t, from, port, layers.IPProtocolTCP, 0, data, size, 0)
		if n.g.FromFunction(n.a, f, work, &n.fwd); received != len(f)-ethLen {
			t.Errorf("to a function: %d bytes, want %d", received, len(f)-ethLen)
		}
		f, _ = whole(t, from, peer, layers.IPProtocolTCP, 0, data, size, 0)
		if n.g.FromFunction(n.a, f, FunctionWork{Unsummed: true, Segment: 1}, &n.fwd) || n.a.Drops[DropOffload] != 1 {
			t.Errorf("segments of a byte: %v", n.a.Drops)
		}
	}
}
