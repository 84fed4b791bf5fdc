package underlay

import (
	"net/netip"
	"testing"
)

func arpFrame(dst, src MAC, a arp) []byte {
	f := make([]byte, 60)
	putEthernet(f, dst, src, typeARP)
	a.put(f[ethLen:])
	return f
}

func TestARPAnsweredForOwnAddressOnly(t *testing.T) {
	b := newStack(t, macB, "10.0.0.2/24")
	out := make([]byte, 1514)
	ask := func(sender, target string) []byte {
		return arpFrame(broadcast, macC, arp{op: arpRequest, senderMAC: macC, senderIP: netip.MustParseAddr(sender).As4(), targetIP: netip.MustParseAddr(target).As4()})
	}
	for _, tc := range []struct {
		sender, target string
		reply          bool
	}{
		{"10.0.0.3", "10.0.0.2", true},
		{"0.0.0.0", "10.0.0.2", true}, // address probe: our address is taken
		{"10.0.0.3", "10.0.0.9", false},
		{"10.0.0.3", "10.0.0.3", false}, // gratuitous
	} {
		if _, v := b.Input(0, ask(tc.sender, tc.target)); v != ARP {
			t.Fatalf("%+v: %v", tc, v)
		}
		n := b.Next(out)
		if (n > 0) != tc.reply {
			t.Fatalf("%+v: reply of %d bytes", tc, n)
		}
		if n == 0 {
			continue
		}
		a, ok := parseARP(out[ethLen:n])
		want := arp{op: arpReply, senderMAC: macB, senderIP: ipB.As4(), targetMAC: macC, targetIP: netip.MustParseAddr(tc.sender).As4()}
		if !ok || a != want || MAC(out[:6]) != macC {
			t.Fatalf("%+v: %+v", tc, a)
		}
	}
	bad := ask("10.0.0.3", "10.0.0.2")
	bad[ethLen+1] = 6
	if _, v := b.Input(0, bad); v != DropARP {
		t.Errorf("token ring: %v", v)
	}
	if _, v := b.Input(0, ask("10.0.0.2", "10.0.0.2")); v != DropConflict {
		t.Errorf("our address used by another: %v", v)
	}
	group := ask("10.0.0.3", "10.0.0.2")
	group[ethLen+8] |= 1
	if _, v := b.Input(0, group); v != DropARP {
		t.Errorf("group sender: %v", v)
	}
	if n := b.Next(out); n != 0 {
		t.Errorf("answered nonsense with %d bytes", n)
	}
}

func TestUnsolicitedRepliesAreNotLearnt(t *testing.T) {
	b := newStack(t, macB, "10.0.0.2/24")
	b.Input(0, arpFrame(macB, macC, arp{op: arpReply, senderMAC: macC, senderIP: ipC.As4(), targetMAC: macB, targetIP: ipB.As4()}))
	b.Input(0, arpFrame(macB, macC, arp{op: arpRequest, senderMAC: macC, senderIP: [4]byte{192, 168, 7, 7}, targetIP: ipB.As4()}))
	if len(b.neighbours) != 0 {
		t.Errorf("%d entries", len(b.neighbours))
	}
}

// A neighbour that does not answer is asked three times, a second apart. Then it is forgotten, and
// the frames that wait for it are dropped.
func TestRetryAndGiveUp(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	out := make([]byte, 1514)
	f, n := payload("x")
	for range parkedPerPeer + 2 {
		a.Output(0, ipB, 1, false, f, n)
	}
	if a.Stats()[Parked] != parkedPerPeer || a.Stats()[DropParkFull] != 2 {
		t.Fatalf("%v", a.Stats())
	}
	for i := range maxRequests {
		if n := a.Next(out); n != arpFrameLen || MAC(out[:6]) != broadcast {
			t.Fatalf("request %d: %d bytes", i, n)
		}
		if n := a.Next(out); n != 0 {
			t.Fatalf("request %d: another frame", i)
		}
		if a.Deadline() != int64(i+1)*second {
			t.Fatalf("deadline %d", a.Deadline())
		}
		a.Advance(a.Deadline() - 1)
		a.Advance(a.Deadline())
	}
	if a.Stats()[DropUnresolved] != parkedPerPeer || len(a.neighbours) != 0 || len(a.table) != 0 || a.parked != 0 || a.Deadline() != never {
		t.Fatalf("after giving up: %v, %d entries, %d parked", a.Stats(), len(a.neighbours), a.parked)
	}
}

// Frames that wait for a neighbour are sent in order when the answer comes, however many have
// waited before.
func TestParkedGoInOrder(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	out := make([]byte, 1514)
	for i := range byte(maxParked/parkedPerPeer + 1) {
		ip := [4]byte{10, 0, 0, 10 + i}
		for k := range byte(parkedPerPeer) {
			f, n := payload(string([]byte{i, k}))
			a.Output(0, netip.AddrFrom4(ip), 1, false, f, n)
		}
		a.Next(out) // the request
		a.Input(0, arpFrame(macA, macC, arp{op: arpReply, senderMAC: macC, senderIP: ip, targetMAC: macA, targetIP: ipA.As4()}))
		for k := range byte(parkedPerPeer) {
			if n := a.Next(out); n < Headroom || MAC(out[:6]) != macC || string(out[Headroom:n]) != string([]byte{i, k}) {
				t.Fatalf("frame %d for neighbour %d: %x", k, i, out[:n])
			}
		}
		if n := a.Next(out); n != 0 {
			t.Fatalf("one more: %x", out[:n])
		}
	}
}

// Resolve sends one request, and frames sent after the answer do not wait.
func TestResolveAhead(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	out := make([]byte, 1514)
	a.Resolve(0, ipA) // our own: no route
	a.Resolve(0, ipB)
	a.Resolve(0, ipB)
	if n := a.Next(out); n != arpFrameLen || MAC(out[:6]) != broadcast {
		t.Fatalf("a request of %d bytes", n)
	}
	if n := a.Next(out); n != 0 {
		t.Fatal("asked twice")
	}
	a.Input(1, arpFrame(macA, macB, arp{op: arpReply, senderMAC: macB, senderIP: ipB.As4(), targetMAC: macA, targetIP: ipA.As4()}))
	f, n := payload("x")
	if _, ok := a.Output(2, ipB, 1, false, f, n); !ok || a.Stats()[Parked] != 0 {
		t.Fatalf("not sent at once: %v", a.Stats())
	}
	a.Resolve(2*second, ipB)
	if n := a.Next(out); n != 0 {
		t.Fatal("asked for a neighbour just confirmed")
	}
	a.Output(31*second, ipC, 1, false, f, n) // another neighbour does not matter
	a.Next(out)
	a.Resolve(31*second, ipB)
	if n := a.Next(out); n != arpFrameLen || MAC(out[:6]) != macB {
		t.Fatal("an old neighbour is not re-confirmed")
	}
}

func TestRefreshExpiryAndMove(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	send := func(now int64) (MAC, bool) {
		f, n := payload("x")
		_, ok := a.Output(now, ipB, 1, false, f, n)
		return MAC(f[:6]), ok
	}
	out := make([]byte, 1514)
	if _, ok := send(29 * second); !ok || a.Next(out) != 0 {
		t.Fatal("refreshed too early")
	}
	if _, ok := send(30 * second); !ok || a.Next(out) != arpFrameLen || MAC(out[:6]) != macB {
		t.Fatal("no unicast refresh of a used entry")
	}
	// The peer moved to another Ethernet address and says so.
	a.Input(30*second, arpFrame(broadcast, macC, arp{op: arpRequest, senderMAC: macC, senderIP: ipB.As4(), targetIP: ipB.As4()}))
	if m, ok := send(30 * second); !ok || m != macB { // anybody can say that
		t.Fatalf("another is believed at once: %x %v", m, ok)
	}
	a.Advance(30*second + rivalEvery)
	if m, ok := send(31 * second); !ok || m != macC {
		t.Fatalf("after the move: %x %v", m, ok)
	}
	a.Authenticated(31*second, &Datagram{Src: ipB, From: macC})
	a.Advance(32 * second)
	if m, _ := send(32 * second); m != macC || a.Deadline() < 60*second {
		t.Fatalf("after its packets came from there: %x", m)
	}
	// A refresh nobody answers ends the entry while frames still go until then.
	if _, ok := send(61 * second); !ok {
		t.Fatal("lost while probing")
	}
	for now := 61 * second; now <= 64*second; now += second {
		a.Advance(now)
	}
	if _, ok := send(64 * second); ok {
		t.Fatal("still sends to a silent neighbour")
	}
	// An unused entry is forgotten.
	b.Advance(59 * second)
	if len(b.neighbours) != 1 {
		t.Fatal("forgotten too early")
	}
	b.Advance(b.Deadline())
	if len(b.neighbours) != 0 {
		t.Fatal("not forgotten")
	}
}

func TestGatewayIsTheNextHop(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	f, n := payload("far")
	a.Output(0, netip.MustParseAddr("192.0.2.7"), 1, false, f, n)
	out := make([]byte, 1514)
	if a.Next(out) == 0 {
		t.Fatal("no request")
	}
	if q, _ := parseARP(out[ethLen:]); q.targetIP != [4]byte{10, 0, 0, 254} {
		t.Fatalf("asked for %v", q.targetIP)
	}
	a.Input(0, arpFrame(macA, macC, arp{op: arpReply, senderMAC: macC, senderIP: [4]byte{10, 0, 0, 254}, targetMAC: macA, targetIP: ipA.As4()}))
	if n := a.Next(out); n == 0 || MAC(out[:6]) != macC || [4]byte(out[30:34]) != [4]byte{192, 0, 2, 7} {
		t.Fatalf("%x", out[:n])
	}
}

// Floods from outside stay within their bounds.
func TestBounds(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/8")
	addr := func(i int) [4]byte { return [4]byte{10, 9, byte(i >> 8), byte(i)} }
	for i := range 3 * maxNeighbours {
		a.Input(0, arpFrame(broadcast, macC, arp{op: arpRequest, senderMAC: macC, senderIP: addr(i), targetIP: ipA.As4()}))
	}
	if len(a.neighbours) != maxNeighbours-solicitedSpared || a.queue.count != maxQueued || a.Stats()[DropQueueFull] == 0 {
		t.Fatalf("%d entries, %d queued", len(a.neighbours), a.queue.count)
	}
	f, n := payload("x")
	for i := range 3 * maxNeighbours {
		a.Output(0, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1, false, f, n)
	}
	a.Output(0, netip.AddrFrom4([4]byte{10, 1, 0, 1}), 1, false, f, n)
	if len(a.neighbours) != maxNeighbours || a.parked != maxParked || a.Stats()[DropNeighbours] == 0 || a.Stats()[DropParkFull] == 0 {
		t.Fatalf("%d entries, %d parked, %v", len(a.neighbours), a.parked, a.Stats())
	}
	for now := second; now < 70*second; now += second {
		a.Advance(now)
	}
	if len(a.neighbours) != 0 || a.parked != 0 || len(a.free) != maxParked {
		t.Fatalf("left: %d entries, %d parked, %d buffers", len(a.neighbours), a.parked, len(a.free))
	}
}

// TestUnusedNeighbour: an unused neighbour stays as long as its address was confirmed recently.
func TestUnusedNeighbour(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	const now = 3600 * second
	a.Resolve(now, ipB)
	a.Input(now, arpFrame(macA, macB, arp{op: arpReply, senderMAC: macB, senderIP: ipB.As4(), targetMAC: macA, targetIP: ipA.As4()}))
	a.Input(now+50*second, arpFrame(macA, macB, arp{op: arpRequest, senderMAC: macB, senderIP: ipB.As4(), targetIP: ipA.As4()}))
	for _, c := range []struct{ after, want int }{{51, 1}, {61, 1}, {109, 1}, {111, 0}} {
		if a.Advance(now + int64(c.after)*second); len(a.neighbours) != c.want {
			t.Errorf("%d s after it was learnt, and was heard of after 50 s: %d neighbours", c.after, len(a.neighbours))
		}
	}
}
