package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

var group4 = addr("239.1.2.3")

// roce4 is a frame with a UDP datagram to the port of RoCEv2.
func roce4(t testing.TB, ip *layers.IPv4, port layers.UDPPort) []byte {
	t.Helper()
	ip.Protocol = layers.IPProtocolUDP
	u := &layers.UDP{SrcPort: 0xc123, DstPort: port}
	if err := u.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	return frame(t, eth(MAC{}, MAC{}, layers.EthernetTypeIPv4), ip, u, gopacket.Payload("to a group, of more bytes than the shortest Ethernet frame has"))
}

// hearing is a function without queue pairs that takes packets.
func hearing(f func([]byte)) func([]byte, int, int) (int, bool) {
	return func(packet []byte, _, _ int) (int, bool) {
		f(packet)
		return 1, false
	}
}

// hear makes both ports' functions take packets, and counts them.
func (n *net) hear() (heard *[2]int) {
	heard = new([2]int)
	n.a.SetRoCE(hearing(func([]byte) { heard[0]++ }))
	n.b.SetRoCE(hearing(func([]byte) { heard[1]++ }))
	return heard
}

// TestGroupFromFunction: a function's multicast packet reaches all functions of the NIC, including
// itself, and each peer of the tenant once.
func TestGroupFromFunction(t *testing.T) {
	n := newNet(t)
	n.g.routes.Learn(3, []Address{{7, addr("10.0.0.4"), 0x030001, 9000}, {7, addr("10.0.0.5"), 0x030002, 9000}})
	n.g.routes.Learn(4, []Address{{8, addr("10.0.0.6"), 0x040001, 9000}}) // another tenant's
	heard := n.hear()
	f := roce4(t, &layers.IPv4{Version: 4, IHL: 5, TTL: 1, SrcIP: ipA.AsSlice(), DstIP: group4.AsSlice()}, rocePort)
	var peers []byte
	for more := n.g.FromFunction(n.a, f, &n.fwd); more; more = n.fwd.NextCopy() {
		peers = append(peers, n.fwd.Tunnel.Peer)
		if p := n.fwd.Next(); !bytes.Equal(p, f[ethLen:]) {
			t.Errorf("peer %d gets % x", n.fwd.Tunnel.Peer, p)
		}
	}
	if !bytes.Equal(peers, []byte{2, 3}) || *heard != [2]int{1, 1} {
		t.Errorf("peers %v, heard here %v", peers, *heard)
	}
	n.b.SetRoCE(nil) // its guest speaks for itself, and hears nothing of groups
	n.g.FromFunction(n.a, f, &n.fwd)
	if out := n.output(); len(out) != 0 || *heard != [2]int{2, 1} {
		t.Errorf("%d frames for ports, heard %v", len(out), *heard)
	}
	if n.fwd.NextCopy(); n.g.FromFunction(n.a, roce4(t, ip4(ipA, ipC, 0), rocePort), &n.fwd) && n.fwd.NextCopy() {
		t.Error("a packet to one station has copies")
	}
}

// TestGroupFollowsPorts: the audience of a group is computed again when a port is added, removed or
// goes down, also if the routes do not change.
func TestGroupFollowsPorts(t *testing.T) {
	n := newNet(t)
	heard := n.hear()
	f := roce4(t, &layers.IPv4{Version: 4, IHL: 5, TTL: 1, SrcIP: ipA.AsSlice(), DstIP: group4.AsSlice()}, rocePort)
	third := 0
	says := func(what string, a, b, c int) {
		t.Helper()
		*heard, third = [2]int{}, 0
		for more := n.g.FromFunction(n.a, f, &n.fwd); more; more = n.fwd.NextCopy() {
			n.fwd.Next()
		}
		if *heard != [2]int{a, b} || third != c {
			t.Errorf("%s: heard %v and %d", what, *heard, third)
		}
	}
	says("two ports", 1, 1, 0)
	p := n.g.AddEndpoint("c", 3, MAC{2, 0, 0, 0, 0, 0xc})
	p.SetRoCE(hearing(func([]byte) { third++ }))
	c := EndpointConfig{Tenant: 7, MAC: MAC{2, 0, 0, 0, 0, 3}, MTU: tunnelMTU}
	n.g.Configure(p, c, true)
	says("a third", 1, 1, 1)
	n.g.RemoveEndpoint(p)
	n.g.Configure(n.b, n.b.EndpointConfig, false)
	says("one is gone, one is down", 1, 0, 0)
	p = n.g.AddEndpoint("c", 3, MAC{2, 0, 0, 0, 0, 0xc})
	n.g.Configure(p, c, false)
	says("one is back, but down", 1, 0, 0)
	p.SetRoCE(hearing(func([]byte) { third++ }))
	n.g.Configure(p, c, true)
	says("it is up", 1, 0, 1)
	c.Tenant = 8
	n.g.Configure(p, c, true)
	says("it is another tenant's", 1, 0, 0)
}

// TestGroupFromTunnel: a peer's multicast packet goes to the functions of its tenant if it is
// RoCEv2 from one of the peer's addresses. Guests do not receive it.
func TestGroupFromTunnel(t *testing.T) {
	for name, x := range map[string]struct {
		frame func(t *testing.T) []byte
		outer uint8
		heard [2]int
		why   Reason
	}{
		"RoCEv2":              {func(t *testing.T) []byte { return roce4(t, ip4(ipC, group4, 0), rocePort) }, 0, [2]int{1, 1}, none},
		"of another":          {func(t *testing.T) []byte { return roce4(t, ip4(ipB, group4, 0), rocePort) }, 0, [2]int{}, DropWrongSource},
		"of nobody":           {func(t *testing.T) []byte { return roce4(t, ip4(addr("10.0.0.9"), group4, 0), rocePort) }, 0, [2]int{}, DropWrongSource},
		"another port":        {func(t *testing.T) []byte { return roce4(t, ip4(ipC, group4, 0), 5353) }, 0, [2]int{}, DropMulticast},
		"marked, and unaware": {func(t *testing.T) []byte { return roce4(t, ip4(ipC, group4, 0), rocePort) }, ecnCE, [2]int{}, DropECN},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNet(t)
			heard := n.hear()
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), x.frame(t), x.outer)
			if out := n.output(); len(out) != 0 || *heard != x.heard {
				t.Errorf("%d frames for ports, heard %v, want %v", len(out), *heard, x.heard)
			}
			if x.why != none && n.g.Stats().Reasons[x.why] != 1 {
				t.Errorf("not dropped for its reason: %v", n.g.Stats().Reasons)
			}
		})
	}
}

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
				n.a.SetRoCE(hearing(func([]byte) {}))
			}
			sent := len(n.send(bytes.Clone(tc.f), Offload{})) + len(n.output())
			want, counted := 1, uint64(0)
			if tc.drops && driver {
				want, counted = 0, 1
			}
			if sent != want || n.a.Drops[DropRoCE] != counted {
				t.Errorf("%s, with a driver %t: %d packets, drops %v", name, driver, sent, n.a.Drops)
			}
		}
	}
	n := newNet(t)
	c := n.a.EndpointConfig
	slices.Reverse(c.Addresses) // the function's is the first
	configure(n.g, n.a, c, true)
	n.a.SetRoCE(hearing(func([]byte) {}))
	for i, f := range [][]byte{to(rocePort, v6A, v6C), fragmented6(to(rocePort, v6A, v6C), 0), fragmented6(to(rocePort, v6A, v6C), 8)} {
		if n.send(f, Offload{}); n.a.Drops[DropRoCE] != uint64(min(i+1, 2)) {
			t.Errorf("IPv6, packet %d: drops %v", i, n.a.Drops)
		}
	}
}

// TestCopiesAreCharged: a Step makes no more copies than its bound, for any number of queue pairs
// that a multicast packet is for. Each copy is made once, in order. Senders that always have more
// get equal shares. A sender of few packets is served soon, however much others send. What exceeds
// the bound is dropped and counted for its sender.
func TestCopiesAreCharged(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNet(t)
		members := rapid.IntRange(1, 300).Draw(rt, "queue pairs of the first function")
		few := rapid.IntRange(0, 3).Draw(rt, "of the second")
		made := 0
		got := [2]map[uint16][]int{{}, {}} // by function and packet: queue pairs, as they got it
		take := func(f, members int) func(packet []byte, first, most int) (int, bool) {
			return func(packet []byte, first, most int) (int, bool) {
				c := min(most, members-first)
				id := binary.BigEndian.Uint16(packet[4:])
				for q := first; q < first+c; q++ {
					got[f][id] = append(got[f][id], q)
				}
				made += max(c, 1)
				return c, first+c < members
			}
		}
		n.a.SetRoCE(take(0, members))
		n.b.SetRoCE(take(1, few))
		n.g.routes.Learn(3, []Address{{7, addr("10.0.0.4"), 0x030001, 9000}})
		senders := []*Tunnel{n.g.Tunnels.To(2, 7), n.g.Tunnels.To(3, 7)}
		from := []netip.Addr{ipC, addr("10.0.0.4")}
		id, sent := uint16(0), [2][]uint16{}
		send := func(i int) bool {
			id++
			ip := ip4(from[i], group4, 0)
			ip.Id = id
			before := n.g.Stats().Reasons[DropGroupFull]
			n.g.FromTunnel(senders[i], roce4(t, ip, rocePort), 0)
			if n.g.Stats().Reasons[DropGroupFull] != before {
				return false
			}
			sent[i] = append(sent[i], id)
			return true
		}
		whole := func(id uint16) bool { return len(got[0][id]) == members && len(got[1][id]) == few }
		flood := rapid.IntRange(1, 40).Draw(rt, "packets a Step")
		quiet, since := uint16(0), 0
		step := func(sending bool) {
			made = 0
			n.g.Cast()
			for range flood {
				if sending {
					send(0)
				}
			}
			if sending && quiet == 0 && send(1) {
				quiet, since = id, 0
			}
			if most := castBudget + 2*castTurn; made > most {
				rt.Fatalf("%d copies in a Step", made)
			}
			if since++; quiet != 0 && whole(quiet) {
				quiet = 0
			} else if quiet != 0 && since > 2+(members+few+castTurn)*2/castTurn {
				rt.Fatalf("a packet is not with all of %d after %d Steps", members+few, since)
			}
		}
		for range 60 {
			step(true)
		}
		for n.g.Casting(0) {
			step(false)
		}
		for i := range sent {
			for _, id := range sent[i] {
				if !whole(id) || !slices.IsSorted(got[0][id]) {
					rt.Fatalf("packet %d of sender %d: %d and %d queue pairs", id, i, len(got[0][id]), len(got[1][id]))
				}
			}
		}
		if len(got[0]) != len(sent[0])+len(sent[1]) {
			rt.Fatalf("%d packets came, %d were taken", len(got[0]), len(sent[0])+len(sent[1]))
		}
	})
}
