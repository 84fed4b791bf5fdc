package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// TestWayFollowsRoutes: a port's packets go where the present routes say, also to the last
// destination.
func TestWayFollowsRoutes(t *testing.T) {
	n := newNet(t)
	for i, up := range []bool{true, false, true, true, false} {
		configure(n.g, n.b, n.b.EndpointConfig, up)
		n.send(udp(t, gwA, macA, ipA, ipB, 10), Offload{})
		out := n.output()
		if arrived := len(out) == 1 && out[0].port == n.b; arrived != up {
			t.Errorf("turn %d: arrives at a port that is up %t: %t", i, up, arrived)
		}
	}
}

// TestTunnelWayFollowsRoutes: packets of a peer are checked by the present routes, however often
// the same addresses came before. Packets of another peer are checked separately.
func TestTunnelWayFollowsRoutes(t *testing.T) {
	n := newNet(t)
	n.g.routes.Learn(3, []Address{{7, addr("10.0.0.4"), 0x030001, 9000}})
	two, three := n.g.Tunnels.To(2, 7), n.g.Tunnels.To(3, 7)
	comes := func(what string, from *Tunnel, src, dst netip.Addr, to *Endpoint, why Reason) {
		t.Helper()
		before := n.g.Stats().Reasons[why]
		n.g.FromTunnel(from, udp(t, macA, gwA, src, dst, 10), 0)
		switch out := n.output(); {
		case to == nil && (len(out) != 0 || n.g.Stats().Reasons[why] != before+1):
			t.Errorf("%s: %d frames, %v", what, len(out), n.g.Stats().Reasons)
		case to != nil && (len(out) != 1 || out[0].port != to):
			t.Errorf("%s: %d frames, %v", what, len(out), n.g.Stats().Reasons)
		}
	}
	comes("first", two, ipC, ipA, n.a, none)
	comes("again", two, ipC, ipA, n.a, none)
	comes("the same by another peer", three, ipC, ipA, nil, DropWrongSource)
	comes("another peer's by this one", two, addr("10.0.0.4"), ipA, nil, DropWrongSource)
	comes("another peer's by itself", three, addr("10.0.0.4"), ipA, n.a, none)
	comes("to another port", two, ipC, ipB, n.b, none)
	comes("back", two, ipC, ipA, n.a, none)
	n.g.routes.Learn(2, nil)
	comes("the peer has it no more", two, ipC, ipA, nil, DropWrongSource)
	like := addr("a00:3:a00:1::7") // begins as 10.0.0.3 and 10.0.0.1
	n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, 9000}, {7, like, 0x020001, 9000}})
	comes("it is back", two, ipC, ipA, n.a, none)
	comes("IPv6 that begins with the same bytes", two, like, v6B, n.b, none)
	comes("IPv4 after it", two, ipC, ipA, n.a, none)
	configure(n.g, n.a, n.a.EndpointConfig, false)
	comes("the port is down", two, ipC, ipA, nil, DropNoPort)
}

// TestHostZero: a peer with host number 0 has only its own addresses, like any other peer, and not
// those of our ports and routers, for which Target.Peer is 0.
func TestHostZero(t *testing.T) {
	n := newNet(t)
	heard := n.hear()
	n.g.routes.Learn(0, []Address{{7, addr("10.0.0.4"), 1, 9000}})
	peer := n.g.Tunnels.To(0, 7)
	for i, from := range []netip.Addr{ipB, router4, addr("10.2.1.1")} {
		n.g.FromTunnel(peer, udp(t, macA, gwA, from, ipA, 10), 0)
		n.g.FromTunnel(peer, roce4(t, ip4(from, group4, 0), rocePort), 0)
		if got := n.g.Stats().Reasons[DropWrongSource]; got != uint64(2*i+2) || len(n.output()) != 0 {
			t.Errorf("%s: %v", from, n.g.Stats().Reasons)
		}
	}
	n.g.FromTunnel(peer, udp(t, macA, gwA, addr("10.0.0.4"), ipA, 10), 0)
	n.g.FromTunnel(peer, roce4(t, ip4(addr("10.0.0.4"), group4, 0), rocePort), 0)
	if len(n.output()) != 1 || *heard != [2]int{1, 1} {
		t.Errorf("its own address: heard %v, %v", *heard, n.g.Stats().Reasons)
	}
}

// TestGroupOfAnotherPeer: a multicast packet must come from its sender's peer.
func TestGroupOfAnotherPeer(t *testing.T) {
	n := newNet(t)
	heard := n.hear()
	n.g.routes.Learn(3, []Address{{7, addr("10.0.0.4"), 0x030001, 9000}})
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), roce4(t, ip4(addr("10.0.0.4"), group4, 0), rocePort), 0)
	if *heard != [2]int{} || n.g.Stats().Reasons[DropWrongSource] != 1 {
		t.Errorf("heard %v, %v", *heard, n.g.Stats().Reasons)
	}
}

// TestGroupOnOtherShards: each other shard with functions of the tenant gets one copy, which it
// distributes; shards without get none.
func TestGroupOnOtherShards(t *testing.T) {
	n, _, r := twoShards(t)
	n.g.routes.SetPort(5, Place{Shard: 1, Tenant: 7, Addresses: addrs("10.0.0.5"), MTU: tunnelMTU, Up: true})
	n.g.routes.SetPort(6, Place{Shard: 1, Tenant: 8, Addresses: addrs("10.0.0.6"), MTU: tunnelMTU, Up: true})
	n.g.routes.SetPort(7, Place{Shard: 2, Tenant: 8, Addresses: addrs("10.0.0.7"), MTU: tunnelMTU, Up: true})
	f := roce4(t, ip4(ipA, group4, 0), rocePort)
	n.g.FromFunction(n.a, f, &n.fwd)
	if len(r.frames) != 1 || r.frames[0].shard != 1 || r.frames[0].function != 0 || !bytes.Equal(r.frames[0].frame[ethLen:], f[ethLen:]) {
		t.Errorf("%d frames for other shards, %v", len(r.frames), n.g.Stats().Reasons)
	}
}

// ofFunction returns a frame with a RoCEv2 packet of n bytes.
func ofFunction(t *testing.T, to netip.Addr, n int) []byte {
	t.Helper()
	u, ip := &layers.UDP{SrcPort: 0xc123, DstPort: rocePort}, ip4(ipA, to, layers.IPProtocolUDP)
	_ = u.SetNetworkLayerForChecksum(ip)
	return frame(t, eth(MAC{}, MAC{}, layers.EthernetTypeIPv4), ip, u, gopacket.Payload(make([]byte, n-ipv4Len-udpLen)))
}

// TestFunctionsPackets: RoCEv2 packets of a function go where its guest's packets would go, if they
// fit. There is no error message if they do not fit.
func TestFunctionsPackets(t *testing.T) {
	for name, tc := range map[string]struct {
		to          netip.Addr
		n           int
		down, alone bool
		tunnel      bool
		port, heard int
		why         Reason
	}{
		"to a peer":              {to: ipC, n: tunnelMTU, tunnel: true},
		"longer than the way":    {to: ipC, n: tunnelMTU + 1, why: DropTooBig},
		"to a port":              {to: ipB, n: tunnelMTU, port: 1},
		"longer than the port":   {to: ipB, n: tunnelMTU + 1, why: DropTooBig},
		"to itself":              {to: ipA, n: 100, heard: 1},
		"to nobody":              {to: nobody4, n: 100, why: DropNoRoute},
		"to a router":            {to: router4, n: 100, why: DropNoRoute},
		"while its port is down": {to: ipC, n: 100, down: true, why: DropPortDown},
		"to a group":             {to: group4, n: tunnelMTU, tunnel: true, heard: 1},
		"to a group, too long":   {to: group4, n: tunnelMTU + 1, heard: 1, why: DropTooBig},
		"that without peers":     {to: group4, n: tunnelMTU + 1, alone: true, heard: 1},
		"to a group, while down": {to: group4, n: 100, down: true, why: DropPortDown},
	} {
		n, heard := newNet(t), 0
		n.a.SetRoCE(hearing(func([]byte) { heard++ }))
		if tc.alone {
			n.g.routes.Learn(2, nil)
		}
		configure(n.g, n.a, n.a.EndpointConfig, !tc.down)
		tunnel := n.g.FromFunction(n.a, ofFunction(t, tc.to, tc.n), &n.fwd)
		out := n.output()
		if tunnel != tc.tunnel || len(out) != tc.port || heard != tc.heard {
			t.Errorf("%s: tunnel %t, %d frames for ports, heard %d times", name, tunnel, len(out), heard)
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
	if n.g.FromFunction(n.a, ofFunction(t, ipA, 100), &n.fwd); n.a.Drops[DropHairpin] != 1 {
		t.Errorf("to itself, which takes none: %v", n.g.Stats().Reasons)
	}
}

// TestPathMTU: the path MTU is limited by the route and by the port. There is none to a router or
// an unknown address, or while the port is down.
func TestPathMTU(t *testing.T) {
	n := newNet(t)
	c := n.a.EndpointConfig
	for _, tc := range []struct {
		to   netip.Addr
		mtu  int // of the port
		up   bool
		want int
	}{
		{ipC, 9000, true, tunnelMTU},
		{ipC, 1000, true, 1000},
		{ipB, 9000, true, tunnelMTU},
		{addr("10.3.1.1"), 9000, true, tunnelMTU},
		{router4, 9000, true, 0},
		{nobody4, 9000, true, 0},
		{ipC, 9000, false, 0},
	} {
		c.MTU = tc.mtu
		configure(n.g, n.a, c, tc.up)
		if got := n.g.PathMTU(n.a, tc.to); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
}

// TestAFunctionGetsWholeChecksums: a guest may leave the UDP checksum of a RoCEv2 packet
// incomplete. A function of the NIC, which checks it, gets the packet with the completed checksum.
func TestAFunctionGetsWholeChecksums(t *testing.T) {
	n := newNet(t)
	var heard []byte
	n.b.SetRoCE(hearing(func(p []byte) { heard = bytes.Clone(p) }))
	f := udp(t, gwA, macA, ipA, ipB, 1000)
	ip := f[ethLen:]
	binary.BigEndian.PutUint16(ip[ipv4Len+2:], rocePort)
	pseudo := append(bytes.Clone(ip[12:20]), 0, protoUDP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(ip)-ipv4Len))
	binary.BigEndian.PutUint16(ip[ipv4Len+6:], sum(pseudo))
	n.send(f, Offload{NeedsCsum: true, CsumStart: ethLen + ipv4Len, CsumOffset: udpCheckAt})
	if len(heard) != len(ip) {
		t.Fatalf("the function got %d bytes", len(heard))
	}
	if got := sum(append(pseudo, heard[ipv4Len:]...)); got != 0xffff {
		t.Errorf("the checksum is wrong: the sum is %#x", got)
	}
}

// TestFunctionsAddress: RoCEv2 packets to the first address of a function go to the function. Those
// to its other addresses, or to a function without addresses, go to the guest.
func TestFunctionsAddress(t *testing.T) {
	for _, tc := range []struct {
		addresses []netip.Addr
		heard     int
	}{{addrs("10.0.0.3", "10.0.0.8"), 1}, {addrs("10.0.0.8", "10.0.0.3"), 0}, {nil, 0}} {
		n, heard := newNet(t), 0
		n.b.SetRoCE(hearing(func([]byte) { heard++ }))
		c := n.b.EndpointConfig
		c.Addresses = tc.addresses
		n.g.Configure(n.b, c, true)
		n.g.FromShard(n.b.Function, ofFunction(t, ipC, 100), Offload{})
		if out := n.output(); heard != tc.heard || len(out) != 1-tc.heard {
			t.Errorf("addresses %v: heard %d times, %d frames, %v", tc.addresses, heard, len(out), n.g.Stats().Reasons)
		}
	}
}

// TestFramesInTurn: taken frames are sent in order, and taking an empty list does not drop them.
func TestFramesInTurn(t *testing.T) {
	n := newNet(t)
	var in []PortInput
	for i := range 3 {
		f, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 0, 1000*(i+1), 1000, 0)
		in = append(in, PortInput{From: n.a, Frame: f, Offload: off})
	}
	n.g.Take(in)
	for i := range in {
		n.g.Take(nil)
		packets := 0
		f := n.g.Outgoing(second)
		if f == nil || n.g.Outgoing(second) != f {
			t.Fatalf("frame %d is not at hand", i)
		}
		for f.Next() != nil {
			packets++
		}
		if packets != i+1 || !n.g.Busy() {
			t.Errorf("frame %d: %d packets", i, packets)
		}
		n.g.EndFrame()
		if n.g.Busy() != (i < len(in)-1) {
			t.Errorf("after frame %d: busy %t", i, n.g.Busy())
		}
	}
	if n.g.Outgoing(second) != nil {
		t.Error("one more frame")
	}
}

// TestKeyOfATunnel: a key is accepted if it was requested, is not requested again while there is
// one, and is dropped with its peer.
func TestKeyOfATunnel(t *testing.T) {
	n := newNet(t)
	ts, tunnel, got := &n.g.Tunnels, n.g.Tunnels.To(2, 7), asked{}
	keys := security.NewTxSAs(security.Tunnel{}, &got)
	give := func(peer uint8) {
		t.Helper()
		u := security.Use{Peer: peer, Tenant: 7, Class: cm.ClassGateway}
		if err := ts.TakeKey(keys, u, cm.SA{SPI: 5, Key: make([]byte, 16)}); err != nil {
			t.Error(err)
		}
	}
	has := func(what string, want bool, times int) {
		t.Helper()
		before := n.g.Stats().Reasons[DropNoKey]
		is := ts.HasKey(tunnel)
		counted := n.g.Stats().Reasons[DropNoKey] != before
		if is != want || tunnel.Sealed() != want || counted == want || len(got) != times {
			t.Errorf("%s: has a key: %t; asked %d times", what, tunnel.Sealed(), len(got))
		}
	}
	give(2)
	give(9) // to which no tunnel leads
	has("not asked for", false, 0)
	ts.AskForKeys(n.a, &got)
	has("asked for", false, 1)
	give(2)
	has("given", true, 1)
	ts.AskForKeys(n.a, &got)
	has("asked for again", true, 1)
	b, packet := make([]byte, 200), udp(t, gwA, macA, ipA, ipC, 60)[ethLen:]
	if sealed, err := ts.Seal(second, tunnel, b, packet); err != nil || sealed <= len(packet) {
		t.Errorf("%d bytes sealed, %v", sealed, err)
	}
	if s := n.g.Stats(); s.TunnelPackets != 1 || s.TunnelBytes != uint64(len(packet)) {
		t.Errorf("%d packets of %d bytes", s.TunnelPackets, s.TunnelBytes)
	}
	ts.ForgetKeys(3)
	has("another peer's are gone", true, 1)
	ts.ForgetKeys(2)
	has("gone", false, 1)
	ts.AskForKeys(n.a, &got)
	has("asked for once more", false, 2)
}

// TestHowMuchStays: the payload stays in the guest's memory if 60 bytes of the upper layer were
// copied, which is the length of the longest header.
func TestHowMuchStays(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		from, to, l4 := ipA, ipB, ethLen+ipv4Len
		if v6 {
			from, to, l4 = v6A, v6B, ethLen+ipv6Len
		}
		for copied, stays := range map[int]bool{l4 + 59: false, l4 + 60: true, l4 + 61: true} {
			n := newNet(t)
			in, l := inTwo(n.a, udp(t, gwA, macA, from, to, 500), copied, Offload{})
			if n.put(in); l.fetched == stays || len(n.output()) != 1 {
				t.Errorf("IPv6 %t, %d bytes were copied: fetched %t", v6, copied, l.fetched)
			}
		}
	}
}
