package gateway

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// Packets from a peer are checked like packets from a guest.
func TestDropsFromTunnel(t *testing.T) {
	for _, tc := range []struct {
		name  string
		why   Reason
		f     func(t testing.TB) []byte
		outer uint8
	}{
		{"another's address", DropWrongSource, func(t testing.TB) []byte { return udp(t, macA, gwA, ipB, ipA, 10) }, 0},
		{"nobody's address", DropWrongSource, func(t testing.TB) []byte { return udp(t, macA, gwA, addr("10.0.0.9"), ipA, 10) }, 0},
		{"to nobody", DropNoPort, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, addr("10.0.0.9"), 10) }, 0},
		{"to itself", DropNoPort, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, ipC, 10) }, 0},
		{"to a router", DropNoPort, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, router4, 10) }, 0},
		{"Falcon", DropFalcon, func(t testing.TB) []byte {
			f := udp(t, macA, gwA, ipC, ipA, 10)
			f[23] = 252
			finishIPv4(f[14:], 20)
			return f
		}, 0},
		{"something behind", DropTruncated, func(t testing.TB) []byte { return append(udp(t, macA, gwA, ipC, ipA, 10), 0) }, 0},
		{"cut", DropTruncated, func(t testing.TB) []byte { f := udp(t, macA, gwA, ipC, ipA, 10); return f[:len(f)-1] }, 0},
		{"no packet", DropTruncated, func(t testing.TB) []byte { return make([]byte, 14) }, 0},
		{"too big", DropPortTooBig, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, ipA, 1500) }, 0},
		{"congestion untold", DropECN, func(t testing.TB) []byte { return udp(t, macA, gwA, ipC, ipA, 10) }, ecnCE},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNet(t)
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), tc.f(t), tc.outer)
			if out := n.output(); len(out) != 0 || n.g.Stats().Reasons[tc.why] != 1 {
				t.Errorf("%+v %v", out, n.g.Stats().Reasons)
			}
		})
	}
	n := newNet(t)
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, macA, gwA, addr("10.3.1.1"), ipA, 10), 0) // behind the peer's function
	if len(n.output()) != 1 {
		t.Error(n.g.Stats().Reasons)
	}
}

// TestOuterClassIsTheInnerClass: the outer header has the DSCP and ECN of the inner packet, for
// plain IP and for RoCEv2 (RFC 2983 §3.1, RFC 6040 §4.1, Annex A17.9.2). A received packet has the
// DSCP that its sender wrote.
func TestOuterClassIsTheInnerClass(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for class := range 256 {
			n := newNet(t)
			there, back := udp(t, gwA, macA, ipA, ipC, 10), udp(t, macA, gwA, ipC, ipA, 10)
			if v6 {
				there, back = udp(t, gwA, macA, v6A, v6C, 10), udp(t, macA, gwA, v6C, v6A, 10)
			}
			for _, f := range [][]byte{there, back} {
				setClass(f[14:], uint8(class))
			}
			roce := bytes.Clone(there)
			if n.send(there, Offload{}); n.fwd.Class != uint8(class) {
				t.Errorf("plain IP, IPv6 %t, class %#x: %#x outside", v6, class, n.fwd.Class)
			}
			var f Forward
			if !n.g.FromFunction(n.a, roce, FunctionWork{}, &f) || f.Class != uint8(class) {
				t.Errorf("RoCEv2, IPv6 %t, class %#x: %#x outside", v6, class, f.Class)
			}
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), back, uint8(class)&ecnMask)
			if h, why := parseIP(n.output()[0].b[14:]); why != none || h.class != uint8(class) {
				t.Errorf("IPv6 %t, class %#x: arrived as %#x, %v", v6, class, h.class, why)
			}
		}
	}
}

// setClass writes the TOS or traffic class of an IP packet.
func setClass(b []byte, class uint8) {
	if b[0]>>4 == 6 {
		b[0], b[1] = 0x60|class>>4, class<<4|b[1]&0xf
		return
	}
	b[1] = class
	finishIPv4(b, int(b[0]&0xf)*4)
}

// RFC 6040, figure 4, and the marking at the entrance.
func TestMarksOfCongestionAreCarried(t *testing.T) {
	const not, ect1, ect0, ce = 0, ecnECT1, ecnECT0, ecnCE
	for _, tc := range []struct{ inner, outer, want uint8 }{
		{not, not, not},
		{not, ect0, not},
		{not, ect1, not},
		{ect0, not, ect0},
		{ect0, ect0, ect0},
		{ect0, ect1, ect1},
		{ect0, ce, ce},
		{ect1, not, ect1},
		{ect1, ect0, ect1},
		{ect1, ect1, ect1},
		{ect1, ce, ce},
		{ce, not, ce},
		{ce, ect0, ce},
		{ce, ect1, ce},
		{ce, ce, ce},
	} {
		for _, v6 := range []bool{false, true} {
			n := newNet(t)
			back, there := udp(t, macA, gwA, ipC, ipA, 10), udp(t, gwA, macA, ipA, ipC, 10)
			if v6 {
				back, there = udp(t, macA, gwA, v6C, v6A, 10), udp(t, gwA, macA, v6A, v6C, 10)
			}
			for _, f := range [][]byte{back, there} {
				h, _ := parseIP(f[14:])
				h.setECN(f[14:], tc.inner)
			}
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), back, tc.outer)
			h, why := parseIP(n.output()[0].b[14:])
			if why != none || h.ecn() != tc.want {
				t.Errorf("%+v, IPv6 %v: %d %v", tc, v6, h.ecn(), why)
			}
			if n.send(there, Offload{}); n.fwd.Class != tc.inner {
				t.Errorf("outer %d for inner %d", n.fwd.Class, tc.inner)
			}
		}
	}
}

// asked records the keys that were requested from peers. It is a security.Requester.
type asked []security.Use

func (a *asked) RequestRekey(u security.Use, _ uint32) error {
	*a = append(*a, u)
	return nil
}

// TestAsksChangedPeer: the gateway requests a peer's key for each tenant in which the peer has
// addresses and this NIC has ports, once, for any number of ports.
func TestAsksChangedPeer(t *testing.T) {
	n := newNet(t) // two ports of tenant 7
	for tenant, id := range map[uint32]uint32{8: 3, 9: 4} {
		p := n.g.AddEndpoint("c", id, gwA)
		configure(n.g, p, EndpointConfig{Tenant: tenant, MAC: macA, Addresses: addrs("10.0.0.1"), MTU: tunnelMTU}, true)
	}
	n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, 9000}, {8, ipC, 0x020002, 9000}})
	var got asked
	n.g.PeerChanged(2, &got)
	slices.SortFunc(got, func(a, b security.Use) int { return int(a.Tenant) - int(b.Tenant) })
	if want := (asked{{Peer: 2, Tenant: 7, Class: cm.ClassGateway}, {Peer: 2, Tenant: 8, Class: cm.ClassGateway}}); !slices.Equal(got, want) {
		t.Errorf("asked for %+v, want %+v", got, want)
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

// TestHostZeroHasOnlyItsOwnAddresses: a peer with host number 0 has only its own addresses, like any other peer, and not
// those of our ports and routers, for which Target.Peer is 0.
func TestHostZeroHasOnlyItsOwnAddresses(t *testing.T) {
	n := newNet(t)
	received := n.receive()
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
	if len(n.output()) != 1 || *received != [2]int{1, 1} {
		t.Errorf("its own address: received %v, %v", *received, n.g.Stats().Reasons)
	}
}

// TestKeyOfATunnel: a key is accepted if it was requested, is not requested again while there is
// one, and is dropped with its peer.
func TestKeyOfATunnel(t *testing.T) {
	n := newNet(t)
	ts, tunnel, got := &n.g.Tunnels, n.g.Tunnels.To(2, 7), asked{}
	keys := security.NewTxSAs(security.Tunnel{}, &got)
	give := func(peer cm.PeerID) {
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
