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
		a.Output(0, sealedAt(ipB), 1, 0, f, n)
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
			a.Output(0, sealedAt(netip.AddrFrom4(ip)), 1, 0, f, n)
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
func TestFramesForAResolvedNeighbourDoNotWait(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	out := make([]byte, 1514)
	a.Resolve(0, sealedAt(ipA)) // our own: no route
	a.Resolve(0, sealedAt(ipB))
	a.Resolve(0, sealedAt(ipB))
	if n := a.Next(out); n != arpFrameLen || MAC(out[:6]) != broadcast {
		t.Fatalf("a request of %d bytes", n)
	}
	if n := a.Next(out); n != 0 {
		t.Fatal("asked twice")
	}
	a.Input(1, arpFrame(macA, macB, arp{op: arpReply, senderMAC: macB, senderIP: ipB.As4(), targetMAC: macA, targetIP: ipA.As4()}))
	f, n := payload("x")
	if _, ok := a.Output(2, sealedAt(ipB), 1, 0, f, n); !ok || a.Stats()[Parked] != 0 {
		t.Fatalf("not sent at once: %v", a.Stats())
	}
	a.Resolve(2*second, sealedAt(ipB))
	if n := a.Next(out); n != 0 {
		t.Fatal("asked for a neighbour just confirmed")
	}
	a.Output(31*second, sealedAt(ipC), 1, 0, f, n) // another neighbour does not matter
	a.Next(out)
	a.Resolve(31*second, sealedAt(ipB))
	if n := a.Next(out); n != arpFrameLen || MAC(out[:6]) != macB {
		t.Fatal("an old neighbour is not re-confirmed")
	}
}

func TestRefreshExpiryAndMove(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	send := func(now int64) (MAC, bool) {
		f, n := payload("x")
		_, ok := a.Output(now, sealedAt(ipB), 1, 0, f, n)
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
	a.Authenticated(31*second, ipB, macC)
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
	a.Output(0, sealedAt(netip.MustParseAddr("192.0.2.7")), 1, 0, f, n)
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
func TestFloodsFromOutsideStayWithinTheirBounds(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/8")
	addr := func(i int) [4]byte { return [4]byte{10, 9, byte(i >> 8), byte(i)} }
	for i := range 3 * maxNeighbours {
		a.Input(0, arpFrame(broadcast, macC, arp{op: arpRequest, senderMAC: macC, senderIP: addr(i), targetIP: ipA.As4()}))
	}
	if len(a.neighbours) != maxNeighbours-solicitedSpared || a.queue.Len() != maxQueued || a.Stats()[DropQueueFull] == 0 {
		t.Fatalf("%d entries, %d queued", len(a.neighbours), a.queue.Len())
	}
	f, n := payload("x")
	for i := range 3 * maxNeighbours {
		a.Output(0, sealedAt(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})), 1, 0, f, n)
	}
	a.Output(0, sealedAt(netip.AddrFrom4([4]byte{10, 1, 0, 1})), 1, 0, f, n)
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

// TestAnUnusedNeighbourStaysWhileItWasConfirmedRecently: an unused neighbour stays as long as its address was confirmed recently.
func TestAnUnusedNeighbourStaysWhileItWasConfirmedRecently(t *testing.T) {
	a := newStack(t, macA, "10.0.0.1/24")
	const now = 3600 * second
	a.Resolve(now, sealedAt(ipB))
	a.Input(now, arpFrame(macA, macB, arp{op: arpReply, senderMAC: macB, senderIP: ipB.As4(), targetMAC: macA, targetIP: ipA.As4()}))
	a.Input(now+50*second, arpFrame(macA, macB, arp{op: arpRequest, senderMAC: macB, senderIP: ipB.As4(), targetIP: ipA.As4()}))
	for _, c := range []struct{ after, want int }{{51, 1}, {61, 1}, {109, 1}, {111, 0}} {
		if a.Advance(now + int64(c.after)*second); len(a.neighbours) != c.want {
			t.Errorf("%d s after it was learnt, and was heard of after 50 s: %d neighbours", c.after, len(a.neighbours))
		}
	}
}

// Who is believed for a neighbour's address.
func TestAClaimAloneDoesNotTakeOverAnAddress(t *testing.T) {
	const start = 10 * second
	claim := func(a *Stack, now int64, mac MAC) Verdict {
		_, v := a.Input(now, arpFrame(macA, mac, arp{op: arpReply, senderMAC: mac, senderIP: ipB.As4(), targetMAC: macA, targetIP: ipA.As4()}))
		return v
	}
	to := func(t *testing.T, a *Stack, now int64) MAC {
		t.Helper()
		a.Advance(now)
		f, n := payload("x")
		if _, ok := a.Output(now, sealedAt(ipB), 1, 0, f, n); !ok {
			return MAC{}
		}
		return MAC(f[:6])
	}
	met := func(t *testing.T) *Stack {
		a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
		introduce(t, start, a, b)
		return a
	}
	t.Run("packets authenticate from the neighbour", func(t *testing.T) {
		a := met(t)
		for now := int64(start); now < start+100*second; now += second {
			a.Authenticated(now, ipB, macB)
			if v := claim(a, now, macC); v != Claim {
				t.Fatal(v)
			}
			for d := int64(0); d < second; d += second / 10 {
				if m := to(t, a, now+d); m != macB {
					t.Fatalf("sends to %x", m)
				}
			}
		}
	})
	t.Run("and then no more", func(t *testing.T) {
		a := met(t)
		a.Authenticated(start, ipB, macB)
		claim(a, start+provedFor, macC)
		if m := to(t, a, start+provedFor+rivalEvery-1); m != macB {
			t.Errorf("tries %x at once", m)
		}
		seen := map[MAC]int{}
		for now := int64(start + provedFor); now < start+provedFor+second; now += second / 10 {
			seen[to(t, a, now)]++
		}
		if seen[macB] < 4 || seen[macC] < 4 {
			t.Errorf("not both are tried in turn: %v", seen)
		}
		a.Authenticated(start+provedFor+second, ipB, macB)
		for now := int64(start + provedFor + second); now < start+provedFor+4*second; now += second / 10 {
			if m := to(t, a, now); m != macB {
				t.Fatalf("sends to %x", m)
			}
		}
	})
	t.Run("its packets are an answer", func(t *testing.T) {
		a := met(t)
		a.Authenticated(start, ipB, macB)
		for now := int64(start + refreshAfter); now < start+refreshAfter+10*second; now += second / 2 {
			if m := to(t, a, now); m != macB { // it is asked, and does not answer
				t.Fatalf("after %d s: sends to %x", (now-start)/second, m)
			}
			a.Authenticated(now, ipB, macB)
		}
	})
	t.Run("it moves", func(t *testing.T) {
		for _, claimed := range []bool{false, true} {
			a := met(t)
			a.Authenticated(start, ipB, macB)
			now := int64(start)
			if claimed {
				now += provedFor
				claim(a, now, macC)
				to(t, a, now)
			}
			a.Authenticated(now, ipB, macC)
			for end := now + second; now < end; now += second / 10 {
				if m := to(t, a, now); m != macC {
					t.Fatalf("claimed before: %t, sends to %x", claimed, m)
				}
			}
		}
	})
	t.Run("its packets say where it is, of two", func(t *testing.T) {
		a := met(t)
		a.Authenticated(start, ipB, macB)
		now := int64(start + provedFor)
		claim(a, now, macC)
		a.Authenticated(now, ipB, macB) // while it is tried
		for end := now + second; now < end; now += second / 10 {
			if m := to(t, a, now); m != macB {
				t.Fatalf("sends to %x", m)
			}
		}
	})
	t.Run("a host with two addresses", func(t *testing.T) {
		a := met(t)
		a.Authenticated(start, ipB, macB)
		f, n := payload("x")
		a.Output(start, sealedAt(ipC), 1, 0, f, n)
		a.Input(start, arpFrame(macA, macC, arp{op: arpReply, senderMAC: macC, senderIP: ipC.As4(), targetMAC: macA, targetIP: ipA.As4()}))
		a.Authenticated(start, ipC, macB)
		if _, ok := a.Output(start, sealedAt(ipC), 1, 0, f, n); !ok || MAC(f[:6]) != macB {
			t.Fatalf("sends to %x, %t", f[:6], ok)
		}
		a.Authenticated(start, ipA, macB)                             // of no use: our own
		a.Authenticated(start, netip.MustParseAddr("10.0.0.9"), macB) // nor one that is not known
		if len(a.neighbours) != 2 {
			t.Errorf("%d neighbours", len(a.neighbours))
		}
	})
	t.Run("none of two", func(t *testing.T) {
		a := met(t)
		claim(a, start, macC)
		for now := int64(start); to(t, a, now) != (MAC{}); now += second / 10 {
			if now > start+5*second {
				t.Fatal("all are never asked again")
			}
		}
	})
	t.Run("the router", func(t *testing.T) {
		s, err := New(Config{MAC: macA, Addr: netip.MustParsePrefix("10.0.0.1/24"), Gateway: ipB, MTU: 1500})
		if err != nil {
			t.Fatal(err)
		}
		far := netip.MustParseAddr("192.0.2.1")
		f, n := payload("x")
		s.Output(start, sealedAt(far), 1, 0, f, n)
		claim(s, start, macB)
		out, asked := make([]byte, 1514), 0
		for now := int64(start); now < start+50*second; now += second {
			s.Authenticated(now, far, macC) // a router's packets may come from another address than it answers with
			claim(s, now, macC)
			s.Advance(now)
			for k := s.Next(out); k > 0; k = s.Next(out) {
				if a, ok := parseARP(out[ethLen:k]); ok && a.op == arpRequest && MAC(out[:6]) == macB {
					asked++
					claim(s, now, macB)
				}
			}
			if _, ok := s.Output(now, sealedAt(far), 1, 0, f, n); !ok || MAC(f[:6]) != macB {
				t.Fatalf("sends to %x", f[:6])
			}
		}
		if asked != 50 {
			t.Errorf("asked %d times, want once for each time that another claims its address", asked)
		}
		for now := int64(start + 50*second); ; now += second / 2 { // it answers no more
			claim(s, now, macC)
			if s.Advance(now); len(s.neighbours) == 0 {
				break
			}
			if now > start+60*second {
				t.Fatal("it stays for ever")
			}
		}
	})
}

// A configured neighbour keeps its MAC, whatever is claimed, and is never asked for it.
func TestAConfiguredNeighbourKeepsItsMAC(t *testing.T) {
	for _, c := range []struct {
		own  string
		to   netip.Addr
		by   Verdict
		says func(mac MAC) []byte // that it has the address
	}{
		{"10.0.0.1/24", ipB, ARP, func(mac MAC) []byte {
			return arpFrame(macA, mac, arp{op: arpReply, senderMAC: mac, senderIP: ipB.As4(), targetMAC: macA, targetIP: ipA.As4()})
		}},
		{netip.PrefixFrom(ip6A, 64).String(), ip6B, ND, func(mac MAC) []byte {
			return ndFrame(t, macA, mac, ip6B, ip6A, ip6B, ndAdvertise, flagSolicited|flagOverride, true, 255)
		}},
	} {
		a, err := New(Config{MAC: macA, Addr: netip.MustParsePrefix(c.own), MTU: 1500, Neighbours: []Neighbour{{Addr: c.to, MAC: macB}}})
		if err != nil {
			t.Fatal(err)
		}
		a.Resolve(0, sealedAt(c.to))
		for now := int64(0); now < 200*second; now += second / 2 {
			a.Advance(now)
			if _, v := a.Input(now, c.says(macC)); v != Claim {
				t.Fatalf("another's word: %v", v)
			}
			if _, v := a.Input(now, c.says(macB)); v != c.by {
				t.Fatalf("its own word: %v", v)
			}
			a.Authenticated(now, c.to, macC)
			if now > 100*second && now < 190*second {
				continue // not used for long
			}
			f, n := payload("x")
			if c.to.Is6() {
				f, n = payload6("x")
			}
			if _, ok := a.Output(now, sealedAt(c.to), 1, 0, f, n); !ok || MAC(f[:6]) != macB {
				t.Fatalf("at %d s to %x, %v", now/second, f[:6], ok)
			}
			if n := a.Next(make([]byte, 1600)); n != 0 {
				t.Fatal("it is asked for")
			}
		}
		if a.Deadline() != never {
			t.Errorf("a timer runs: %d", a.Deadline())
		}
	}
	for _, n := range []Neighbour{{ipA, macB}, {ipB, MAC{1}}, {netip.MustParseAddr("10.1.0.2"), macB}, {netip.Addr{}, macB}} {
		if _, err := New(Config{MAC: macA, Addr: netip.MustParsePrefix("10.0.0.1/24"), MTU: 1500, Neighbours: []Neighbour{n}}); err == nil {
			t.Errorf("%v is taken", n)
		}
	}
}

// TestTwoRivalsForAnAddressAreTriedAlternately: two hosts that claim one address are tried alternately, ten times in all, and
// then the address is requested from all again.
func TestTwoRivalsForAnAddressAreTriedAlternately(t *testing.T) {
	const start = 10 * second
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, start, a, b)
	a.Input(start, answers(ipB.As4()))
	nb := a.neighbours[ipB]
	for try := range maxTries + 1 {
		at := start + int64(try)*rivalEvery
		a.Advance(at + rivalEvery - 1)
		want := []MAC{macB, macC}[try%2]
		if a.neighbours[ipB] != nb || nb.mac != want {
			t.Fatalf("try %d: at %x, want %x", try, nb.mac, want)
		}
		if a.Deadline() != at+rivalEvery {
			t.Fatalf("try %d: the next is at %d", try, a.Deadline()-at)
		}
		a.Advance(at + rivalEvery)
	}
	if len(a.neighbours) != 0 {
		t.Error("it is believed in for ever")
	}
}

// TestParkedAreBounded: the number of frames that wait for an answer or to be sent is bounded.
// Resolve adds nothing to a full table.
func TestParkedAreBounded(t *testing.T) {
	a, out := newStack(t, macA, "10.0.0.1/8"), make([]byte, 1514)
	at := func(i int) [4]byte { return [4]byte{10, 1, byte(i >> 8), byte(i)} }
	f, n := payload("x")
	const peers = maxParked / parkedPerPeer
	for i := range peers {
		for range parkedPerPeer {
			a.Output(0, sealedAt(netip.AddrFrom4(at(i))), 1, 0, f, n)
		}
	}
	for range peers {
		a.Next(out) // the requests
	}
	for i := range peers { // half of them answer
		if i%2 == 0 {
			a.Input(0, answers(at(i)))
		}
	}
	for i := range 3 { // each that goes makes room for one
		if a.Output(0, sealedAt(netip.AddrFrom4(at(1000+i))), 1, 0, f, n); a.Stats()[DropParkFull] != uint64(i+1) {
			t.Fatalf("turn %d: %v", i, a.Stats())
		}
		for a.Stats()[Sent] == uint64(i) {
			if a.Next(out) == 0 {
				t.Fatal("nothing to send")
			}
		}
		if a.Output(0, sealedAt(netip.AddrFrom4(at(1000+i))), 1, 0, f, n); a.Stats()[Parked] != uint64(maxParked+i+1) {
			t.Fatalf("turn %d: %v", i, a.Stats())
		}
	}
	for i := range 2 * maxNeighbours {
		a.Resolve(0, sealedAt(netip.AddrFrom4(at(2000+i))))
	}
	if len(a.neighbours) != maxNeighbours {
		t.Errorf("%d neighbours", len(a.neighbours))
	}
}

// TestTheNewestRivalIsTried: of two hosts that claim an address after the one that has it, the later one is tried, and it
// is reached there as soon as it answers under a seal.
func TestTheNewestRivalIsTried(t *testing.T) {
	const start = 10 * second
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, start, a, b)
	a.Input(start, answers(ipB.As4()))
	claim := answers(ipB.As4())
	macD := MAC{2, 0, 0, 0, 0, 4}
	copy(claim[6:], macD[:])
	copy(claim[ethLen+8:], macD[:])
	a.Input(start, claim)
	if a.Advance(start + rivalEvery); a.neighbours[ipB].mac != macD {
		t.Errorf("%x is tried, want %x", a.neighbours[ipB].mac, macD)
	}
	a.Authenticated(start+rivalEvery, ipB, macD)
	if a.Advance(start + 3*rivalEvery); a.neighbours[ipB].mac != macD {
		t.Errorf("%x is tried, although %x was proved", a.neighbours[ipB].mac, macD)
	}
}
