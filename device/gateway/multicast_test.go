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

	"github.com/falcon-vnic/vnic/falcon/cm"
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

// receiving is a function without queue pairs that takes packets.
func receiving(f func([]byte)) func([]byte, int, int) (int, bool) {
	return func(packet []byte, _, _ int) (int, bool) {
		f(packet)
		return 1, false
	}
}

// receive makes both ports' functions take packets, and counts them.
func (n *net) receive() (received *[2]int) {
	received = new([2]int)
	n.a.SetFunction(roceClaim, receiving(func([]byte) { received[0]++ }))
	n.b.SetFunction(roceClaim, receiving(func([]byte) { received[1]++ }))
	return received
}

// TestGroupFromFunction: a function's multicast packet reaches all functions of the NIC, including
// itself, and each peer of the tenant once.
func TestGroupFromFunction(t *testing.T) {
	n := newNet(t)
	n.g.routes.Learn(3, []Address{{7, addr("10.0.0.4"), 0x030001, 9000}, {7, addr("10.0.0.5"), 0x030002, 9000}})
	n.g.routes.Learn(4, []Address{{8, addr("10.0.0.6"), 0x040001, 9000}}) // another tenant's
	received := n.receive()
	f := roce4(t, &layers.IPv4{Version: 4, IHL: 5, TTL: 1, SrcIP: ipA.AsSlice(), DstIP: group4.AsSlice()}, rocePort)
	var peers []cm.PeerID
	for more := n.g.FromFunction(n.a, f, FunctionWork{}, &n.fwd); more; more = n.fwd.NextCopy() {
		peers = append(peers, n.fwd.Tunnel.Peer)
		if p := n.fwd.Next(); !bytes.Equal(p, f[ethLen:]) {
			t.Errorf("peer %d gets % x", n.fwd.Tunnel.Peer, p)
		}
	}
	if !slices.Equal(peers, []cm.PeerID{2, 3}) || *received != [2]int{1, 1} {
		t.Errorf("peers %v, received here %v", peers, *received)
	}
	n.b.SetFunction(roceClaim, nil) // its guest speaks for itself, and hears nothing of groups
	n.g.FromFunction(n.a, f, FunctionWork{}, &n.fwd)
	if out := n.output(); len(out) != 0 || *received != [2]int{2, 1} {
		t.Errorf("%d frames for ports, received %v", len(out), *received)
	}
	if n.fwd.NextCopy(); n.g.FromFunction(n.a, roce4(t, ip4(ipA, ipC, 0), rocePort), FunctionWork{}, &n.fwd) && n.fwd.NextCopy() {
		t.Error("a packet to one host has copies")
	}
}

// TestGroupKeepsToThePathOfEachPeer: a packet that the path to a peer does not carry goes to the
// other peers, and is counted as too big once for each that misses it.
func TestGroupKeepsToThePathOfEachPeer(t *testing.T) {
	n := newNet(t)
	f := roce4(t, &layers.IPv4{Version: 4, IHL: 5, TTL: 1, SrcIP: ipA.AsSlice(), DstIP: group4.AsSlice()}, rocePort)
	length := len(f) - ethLen
	n.receive()
	for _, c := range []struct {
		mtu   [2]int // of the paths to the peers 3 and 4
		peers []cm.PeerID
	}{{[2]int{length, length}, []cm.PeerID{2, 3, 4}}, {[2]int{length - 1, length}, []cm.PeerID{2, 4}}, {[2]int{length - 1, length - 1}, []cm.PeerID{2}}} {
		n.g.routes.Learn(3, []Address{{7, addr("10.0.0.4"), 0x030001, 9000}, {7, addr("10.0.0.5"), 0x030002, c.mtu[0]}})
		n.g.routes.Learn(4, []Address{{7, addr("10.0.0.6"), 0x040001, c.mtu[1]}})
		before := n.g.Stats().Reasons[DropTooBig]
		var peers []cm.PeerID
		for more := n.g.FromFunction(n.a, f, FunctionWork{}, &n.fwd); more; more = n.fwd.NextCopy() {
			peers = append(peers, n.fwd.Tunnel.Peer)
		}
		if missed := n.g.Stats().Reasons[DropTooBig] - before; !slices.Equal(peers, c.peers) || missed != uint64(3-len(c.peers)) {
			t.Errorf("paths of %v for %d bytes: to %v, %d too big", c.mtu, length, peers, missed)
		}
	}
}

// TestGroupFollowsPorts: who gets a multicast packet is computed again when a port is added,
// removed or goes down, also if the routes do not change.
func TestGroupFollowsPorts(t *testing.T) {
	n := newNet(t)
	received := n.receive()
	f := roce4(t, &layers.IPv4{Version: 4, IHL: 5, TTL: 1, SrcIP: ipA.AsSlice(), DstIP: group4.AsSlice()}, rocePort)
	third := 0
	says := func(what string, a, b, c int) {
		t.Helper()
		*received, third = [2]int{}, 0
		for more := n.g.FromFunction(n.a, f, FunctionWork{}, &n.fwd); more; more = n.fwd.NextCopy() {
			n.fwd.Next()
		}
		if *received != [2]int{a, b} || third != c {
			t.Errorf("%s: received %v and %d", what, *received, third)
		}
	}
	says("two ports", 1, 1, 0)
	p := n.g.AddEndpoint("c", 3, MAC{2, 0, 0, 0, 0, 0xc})
	p.SetFunction(roceClaim, receiving(func([]byte) { third++ }))
	c := EndpointConfig{Tenant: 7, MAC: MAC{2, 0, 0, 0, 0, 3}, MTU: tunnelMTU}
	n.g.Configure(p, c, true)
	says("a third", 1, 1, 1)
	n.g.RemoveEndpoint(p)
	n.g.Configure(n.b, n.b.EndpointConfig, false)
	says("one is gone, one is down", 1, 0, 0)
	p = n.g.AddEndpoint("c", 3, MAC{2, 0, 0, 0, 0, 0xc})
	n.g.Configure(p, c, false)
	says("one is back, but down", 1, 0, 0)
	p.SetFunction(roceClaim, receiving(func([]byte) { third++ }))
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
		frame    func(t *testing.T) []byte
		outer    uint8
		received [2]int
		why      Reason
	}{
		"RoCEv2":              {func(t *testing.T) []byte { return roce4(t, ip4(ipC, group4, 0), rocePort) }, 0, [2]int{1, 1}, none},
		"of another":          {func(t *testing.T) []byte { return roce4(t, ip4(ipB, group4, 0), rocePort) }, 0, [2]int{}, DropWrongSource},
		"of nobody":           {func(t *testing.T) []byte { return roce4(t, ip4(addr("10.0.0.9"), group4, 0), rocePort) }, 0, [2]int{}, DropWrongSource},
		"another port":        {func(t *testing.T) []byte { return roce4(t, ip4(ipC, group4, 0), 5353) }, 0, [2]int{}, DropMulticast},
		"marked, and unaware": {func(t *testing.T) []byte { return roce4(t, ip4(ipC, group4, 0), rocePort) }, ecnCE, [2]int{}, DropECN},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNet(t)
			received := n.receive()
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), x.frame(t), x.outer)
			if out := n.output(); len(out) != 0 || *received != x.received {
				t.Errorf("%d frames for ports, received %v, want %v", len(out), *received, x.received)
			}
			if x.why != none && n.g.Stats().Reasons[x.why] != 1 {
				t.Errorf("not dropped for its reason: %v", n.g.Stats().Reasons)
			}
		})
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
		n.a.SetFunction(roceClaim, take(0, members))
		n.b.SetFunction(roceClaim, take(1, few))
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

// TestGroupOfAnotherPeer: a multicast packet must come from its sender's peer.
func TestGroupOfAnotherPeer(t *testing.T) {
	n := newNet(t)
	received := n.receive()
	n.g.routes.Learn(3, []Address{{7, addr("10.0.0.4"), 0x030001, 9000}})
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), roce4(t, ip4(addr("10.0.0.4"), group4, 0), rocePort), 0)
	if *received != [2]int{} || n.g.Stats().Reasons[DropWrongSource] != 1 {
		t.Errorf("received %v, %v", *received, n.g.Stats().Reasons)
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
	n.g.FromFunction(n.a, f, FunctionWork{}, &n.fwd)
	if len(r.frames) != 1 || r.frames[0].shard != 1 || r.frames[0].function != 0 || !bytes.Equal(r.frames[0].frame[ethLen:], f[ethLen:]) {
		t.Errorf("%d frames for other shards, %v", len(r.frames), n.g.Stats().Reasons)
	}
}
