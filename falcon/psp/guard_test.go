package psp

import (
	"errors"
	"testing"
)

// The SPI table of Falcon §9.2.2.3. A has phase 0, B phase 1.
func TestCase109_GuardSPI(t *testing.T) {
	const a, a2, b = 5, 6, PhaseBit | 5
	guard := func(prev, cur, gen uint32) Guard {
		a := NewAssociation(AssociationConfig{AnyPCID: true})
		a.margin = 1
		a.terms.Store(&terms{previous: prev, current: cur, generation: gen})
		return a.Guard(0)
	}
	for _, tc := range []struct {
		name string
		g    Guard
		gen  Generation
		spi  uint32
		ok   bool
	}{
		{"current", guard(0, a, 3), Generation{3, false}, a, true},
		{"current, connection one behind, allowed", guard(0, a, 2), Generation{3, true}, a, true},
		{"current, connection one behind, not allowed", guard(0, a, 2), Generation{3, false}, a, false},
		{"current, connection two behind", guard(0, a, 1), Generation{3, true}, a, false},
		{"previous, same phase", guard(a, a2, 3), Generation{3, false}, a, true},
		{"previous, same phase, one behind, allowed", guard(a, a2, 2), Generation{3, true}, a, true},
		{"previous, same phase, one behind, not allowed", guard(a, a2, 2), Generation{3, false}, a, false},
		{"previous, other phase, allowed", guard(a, b, 3), Generation{3, true}, a, true},
		{"previous, other phase, not allowed", guard(a, b, 3), Generation{3, false}, a, false},
		{"previous, other phase, connection one behind", guard(a, b, 2), Generation{3, true}, a, false},
		{"unknown", guard(a, b, 3), Generation{3, true}, a2, false},
		{"zero with no previous", guard(0, a, 3), Generation{3, true}, 0, false},
		{"not configured", guard(0, 0, 3), Generation{3, true}, 0, false},
		{"generation wraps", guard(0, a, 1<<32-1), Generation{0, true}, a, true},
	} {
		err := tc.g.Check(&Header{SPI: tc.spi, IV: 1}, fixed{tc.gen})
		if tc.ok && err != nil || !tc.ok && !errors.Is(err, ErrSPI) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestAGuardAcceptsThePreviousKeyUntilItRetires(t *testing.T) {
	d := NewRxSADB(Master{}, 8, 1)
	a := NewAssociation(AssociationConfig{SPI: 5, AnyPCID: true, Margin: 1})
	g := a.Guard(0)
	check := func(spi uint32) error { return g.Check(&Header{SPI: spi, IV: 1}, d) }
	d.Rotate(&[32]byte{})
	if err := check(5); err != nil {
		t.Fatalf("between rotation and rekey: %v", err)
	}
	a.Rekey(PhaseBit|1, d.Generation().Current)
	if err := check(5); err != nil {
		t.Fatalf("previous: %v", err)
	}
	if err := check(PhaseBit | 1); err != nil {
		t.Fatalf("current: %v", err)
	}
	d.Retire()
	if err := check(5); !errors.Is(err, ErrSPI) {
		t.Fatalf("retired: %v", err)
	}
	a.DropPrevious()
	if cur, prev := g.SPI(); cur != prev || check(cur) != nil {
		t.Fatal("current lost with the previous")
	}
}

// Falcon §9.2.2.2: accept iff remote time − margin < IV, modulo 2^64.
func TestCase108_GuardReplay(t *testing.T) {
	const margin = 10                                   // ns
	for _, start := range []uint64{1e9, 3, 1<<64 - 5} { // far from, just after and just before the wrap
		a := NewAssociation(AssociationConfig{SPI: 1, AnyPCID: true, Margin: margin})
		g := a.Guard(start)
		check := func(iv uint64) error { return g.Check(&Header{SPI: 1, IV: iv}, fixed{}) }
		if err := check(start - margin*1000); !errors.Is(err, ErrReplay) {
			t.Errorf("start %d: at the margin: %v", start, err)
		}
		if err := check(start - margin*1000 + 1); err != nil || g.RemoteTime() != start {
			t.Errorf("start %d: inside the margin: %v, remote %d", start, err, g.RemoteTime())
		}
		if err := check(start + 50000); err != nil || g.RemoteTime() != start+50000 {
			t.Errorf("start %d: newer: %v, remote %d", start, err, g.RemoteTime())
		}
		if err := check(start); !errors.Is(err, ErrReplay) {
			t.Errorf("start %d: old after a newer one: %v", start, err)
		}
		a.AdvanceRemoteTime(start)
		if g.RemoteTime() != start+50000 {
			t.Errorf("start %d: the remote time went back", start)
		}
		a.AdvanceRemoteTime(start + 90000)
		if err := check(start + 50000); !errors.Is(err, ErrReplay) {
			t.Errorf("start %d: old after the remote time was moved: %v", start, err)
		}
	}
	g := NewAssociation(AssociationConfig{SPI: 1, AnyPCID: true, Margin: margin}).Guard(7)
	if err := g.Check(&Header{SPI: 2, IV: 1e9}, fixed{}); err == nil || g.RemoteTime() != 7 {
		t.Error("a refused packet moved the remote time")
	}
}

func TestCase110_GuardPCID(t *testing.T) {
	g := NewAssociation(AssociationConfig{SPI: 1, PCID: 42 << 32, Margin: 1}).Guard(0)
	for _, tc := range []struct {
		h    Header
		want error
	}{
		{Header{SPI: 1, IV: 1, HasVC: true, VC: 42 << 32}, nil},
		{Header{SPI: 1, IV: 1, HasVC: true, VC: 43 << 32}, ErrPCID},
		{Header{SPI: 1, IV: 1}, ErrPCID},
	} {
		if err := g.Check(&tc.h, fixed{}); !errors.Is(err, tc.want) {
			t.Errorf("%+v: %v", tc.h, err)
		}
	}
	var zero Guard
	if zero.Check(&Header{HasVC: true, IV: 1}, fixed{}) == nil {
		t.Error("the zero guard accepts")
	}
	if current, previous := zero.SPI(); zero.RemoteTime() != 0 || current != 0 || previous != 0 {
		t.Error("the zero guard knows something")
	}
}

// TestAllConnectionsOfAnAssociationFollowItsChanges: a change of an association holds for all its connections, with or without
// packets, and for those that open later.
func TestAllConnectionsOfAnAssociationFollowItsChanges(t *testing.T) {
	a := NewAssociation(AssociationConfig{SPI: 5, AnyPCID: true, Margin: 1})
	guards := []Guard{a.Guard(1e6), a.Guard(2e6)}
	check := func(what string, i int, spi uint32, iv uint64, want error) {
		t.Helper()
		if err := guards[i].Check(&Header{SPI: spi, IV: iv}, fixed{}); !errors.Is(err, want) {
			t.Errorf("%s: connection %d, SPI %d, IV %d: %v", what, i, spi, iv, err)
		}
	}
	check("own clocks", 0, 5, 1e6, nil)
	check("own clocks", 1, 5, 1e6, ErrReplay)
	a.Rekey(6, 0)
	a.AdvanceRemoteTime(3e6)
	guards = append(guards, a.Guard(4e6))
	for i := range guards {
		check("new key", i, 6, 9e6, nil)
		check("previous key", i, 5, 9e6, nil)
		check("the time that was told", i, 6, 3e6-1000, ErrReplay)
	}
	a.DropPrevious()
	for i := range guards {
		check("previous key is gone", i, 5, 9e6, ErrSPI)
		check("current key stays", i, 6, 9e6, nil)
	}
}

// TestGuardIdleForMonths: a connection without packets follows its peer's clock past half of the
// IV's range and around it, whether the clock is reported in steps or not at all (Falcon §9.2.2.2).
func TestGuardIdleForMonths(t *testing.T) {
	const day = 86_400 * 1_000_000_000_000
	for _, start := range []uint64{1, 1 << 63, 1<<64 - 5*day} {
		a := NewAssociation(AssociationConfig{SPI: 1, AnyPCID: true, Margin: 1e9})
		idle, busy := a.Guard(start), a.Guard(start)
		now := start
		for range 50 {
			now += 30 * day // wraps every 213 days
			a.AdvanceRemoteTime(now)
			if err := busy.Check(&Header{SPI: 1, IV: now + 5}, fixed{}); err != nil {
				t.Fatalf("after %d days: %v", (now-start)/day, err)
			}
			if err := busy.Check(&Header{SPI: 1, IV: now - 30*day}, fixed{}); !errors.Is(err, ErrReplay) {
				t.Fatalf("after %d days: a packet of last month: %v", (now-start)/day, err)
			}
			some := idle // which has seen nothing until now
			if err := some.Check(&Header{SPI: 1, IV: now + 5}, fixed{}); err != nil || some.RemoteTime() != now+5 {
				t.Fatalf("idle for %d days: %v, remote %d", (now-start)/day, err, some.RemoteTime())
			}
			if err := some.Check(&Header{SPI: 1, IV: now - 30*day}, fixed{}); !errors.Is(err, ErrReplay) {
				t.Fatalf("idle for %d days: a packet of last month: %v", (now-start)/day, err)
			}
		}
	}
}

// TestGuardDoesNotGoBack: a report of the peer's clock is ignored by a connection that has seen a
// later packet, and by all connections if it is older than an earlier report, however long they
// live.
func TestGuardDoesNotGoBack(t *testing.T) {
	const millisecond, day = 1_000_000_000, 86_400 * 1_000_000_000_000
	for _, start := range []uint64{millisecond, 1 << 61, 1<<64 - day} {
		a := NewAssociation(AssociationConfig{SPI: 1, AnyPCID: true, Margin: 1e9})
		g := a.Guard(start)
		now := start
		for days := range 60 {
			now += day
			seen := now + 20*millisecond
			a.AdvanceRemoteTime(now)
			if err := g.Check(&Header{SPI: 1, IV: seen}, fixed{}); err != nil {
				t.Fatalf("after %d days: %v", days, err)
			}
			a.AdvanceRemoteTime(now + 10*millisecond)
			if got := g.RemoteTime(); got != seen {
				t.Fatalf("after %d days: the clock went back by %d ms", days, int64(seen-got)/millisecond)
			}
			late := a.Guard(now - 3600*1000*millisecond) // of a connection whose peer's word took an hour
			a.AdvanceRemoteTime(now + 11*millisecond)
			if got := g.RemoteTime(); got != seen {
				t.Fatalf("after %d days: the clock went back by %d ms with a new connection", days, int64(seen-got)/millisecond)
			}
			if got := late.RemoteTime(); got != now+11*millisecond {
				t.Fatalf("after %d days: the new connection is %d ms off", days, int64(got-now)/millisecond-11)
			}
		}
	}
}

// fixed is a generation that does not change.
type fixed struct{ at Generation }

func (f fixed) Generation() Generation { return f.at }
