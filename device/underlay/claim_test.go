package underlay

import (
	"net/netip"
	"testing"
)

// Who is believed for a neighbour's address.
func TestClaims(t *testing.T) {
	const start = 10 * second
	claim := func(a *Stack, now int64, mac MAC) Verdict {
		_, v := a.Input(now, arpFrame(macA, mac, arp{op: arpReply, senderMAC: mac, senderIP: ipB.As4(), targetMAC: macA, targetIP: ipA.As4()}))
		return v
	}
	to := func(t *testing.T, a *Stack, now int64) MAC {
		t.Helper()
		a.Advance(now)
		f, n := payload("x")
		if _, ok := a.Output(now, ipB, 1, false, f, n); !ok {
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
			a.Authenticated(now, &Datagram{Src: ipB, From: macB})
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
		a.Authenticated(start, &Datagram{Src: ipB, From: macB})
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
		a.Authenticated(start+provedFor+second, &Datagram{Src: ipB, From: macB})
		for now := int64(start + provedFor + second); now < start+provedFor+4*second; now += second / 10 {
			if m := to(t, a, now); m != macB {
				t.Fatalf("sends to %x", m)
			}
		}
	})
	t.Run("its packets are an answer", func(t *testing.T) {
		a := met(t)
		a.Authenticated(start, &Datagram{Src: ipB, From: macB})
		for now := int64(start + refreshAfter); now < start+refreshAfter+10*second; now += second / 2 {
			if m := to(t, a, now); m != macB { // it is asked, and does not answer
				t.Fatalf("after %d s: sends to %x", (now-start)/second, m)
			}
			a.Authenticated(now, &Datagram{Src: ipB, From: macB})
		}
	})
	t.Run("it moves", func(t *testing.T) {
		for _, claimed := range []bool{false, true} {
			a := met(t)
			a.Authenticated(start, &Datagram{Src: ipB, From: macB})
			now := int64(start)
			if claimed {
				now += provedFor
				claim(a, now, macC)
				to(t, a, now)
			}
			a.Authenticated(now, &Datagram{Src: ipB, From: macC})
			for end := now + second; now < end; now += second / 10 {
				if m := to(t, a, now); m != macC {
					t.Fatalf("claimed before: %t, sends to %x", claimed, m)
				}
			}
		}
	})
	t.Run("its packets say where it is, of two", func(t *testing.T) {
		a := met(t)
		a.Authenticated(start, &Datagram{Src: ipB, From: macB})
		now := int64(start + provedFor)
		claim(a, now, macC)
		a.Authenticated(now, &Datagram{Src: ipB, From: macB}) // while it is tried
		for end := now + second; now < end; now += second / 10 {
			if m := to(t, a, now); m != macB {
				t.Fatalf("sends to %x", m)
			}
		}
	})
	t.Run("a station with two addresses", func(t *testing.T) {
		a := met(t)
		a.Authenticated(start, &Datagram{Src: ipB, From: macB})
		f, n := payload("x")
		a.Output(start, ipC, 1, false, f, n)
		a.Input(start, arpFrame(macA, macC, arp{op: arpReply, senderMAC: macC, senderIP: ipC.As4(), targetMAC: macA, targetIP: ipA.As4()}))
		a.Authenticated(start, &Datagram{Src: ipC, From: macB})
		if _, ok := a.Output(start, ipC, 1, false, f, n); !ok || MAC(f[:6]) != macB {
			t.Fatalf("sends to %x, %t", f[:6], ok)
		}
		a.Authenticated(start, &Datagram{Src: ipA, From: macB})                             // of no use: our own
		a.Authenticated(start, &Datagram{Src: netip.MustParseAddr("10.0.0.9"), From: macB}) // nor one that is not known
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
		s.Output(start, far, 1, false, f, n)
		claim(s, start, macB)
		out, asked := make([]byte, 1514), 0
		for now := int64(start); now < start+50*second; now += second {
			s.Authenticated(now, &Datagram{Src: far, From: macC}) // a router's packets may come from another address than it answers with
			claim(s, now, macC)
			s.Advance(now)
			for k := s.Next(out); k > 0; k = s.Next(out) {
				if a, ok := parseARP(out[ethLen:k]); ok && a.op == arpRequest && MAC(out[:6]) == macB {
					asked++
					claim(s, now, macB)
				}
			}
			if _, ok := s.Output(now, far, 1, false, f, n); !ok || MAC(f[:6]) != macB {
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
func TestStaticNeighbour(t *testing.T) {
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
		a.Resolve(0, c.to)
		for now := int64(0); now < 200*second; now += second / 2 {
			a.Advance(now)
			if _, v := a.Input(now, c.says(macC)); v != Claim {
				t.Fatalf("another's word: %v", v)
			}
			if _, v := a.Input(now, c.says(macB)); v != c.by {
				t.Fatalf("its own word: %v", v)
			}
			a.Authenticated(now, &Datagram{Src: c.to, From: macC})
			if now > 100*second && now < 190*second {
				continue // not used for long
			}
			f, n := payload("x")
			if c.to.Is6() {
				f, n = payload6("x")
			}
			if _, ok := a.Output(now, c.to, 1, false, f, n); !ok || MAC(f[:6]) != macB {
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
