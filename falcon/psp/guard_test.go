package psp

import (
	"errors"
	"testing"
)

// The SPI table of Falcon §9.2.2.3. A has phase 0, B phase 1.
func TestCase109_GuardSPI(t *testing.T) {
	const a, a2, b = 5, 6, PhaseBit | 5
	guard := func(prev, cur, gen uint32) Guard {
		return Guard{previous: prev, current: cur, generation: gen, anyPCID: true, margin: 1}
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
		err := tc.g.Check(&Header{SPI: tc.spi, IV: 1}, tc.gen)
		if tc.ok && err != nil || !tc.ok && !errors.Is(err, ErrSPI) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestGuardRekey(t *testing.T) {
	d := NewRxSADB(Master{}, 8)
	g := NewGuard(GuardConfig{SPI: 5, AnyPCID: true, Margin: 1})
	check := func(spi uint32) error { return g.Check(&Header{SPI: spi, IV: 1}, d.Generation()) }
	d.Rotate(&[32]byte{})
	if err := check(5); err != nil {
		t.Fatalf("between rotation and rekey: %v", err)
	}
	g.Rekey(PhaseBit|1, d.Generation().Current)
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
	g.DropPrevious()
	if cur, prev := g.SPI(); cur != prev || check(cur) != nil {
		t.Fatal("current lost with the previous")
	}
}

// Falcon §9.2.2.2: accept iff remote time − margin < IV, modulo 2^64.
func TestCase108_GuardReplay(t *testing.T) {
	const margin = 10                                   // ns
	for _, start := range []uint64{1e9, 3, 1<<64 - 5} { // far from, just after and just before the wrap
		g := NewGuard(GuardConfig{SPI: 1, AnyPCID: true, Margin: margin, RemoteTime: start})
		check := func(iv uint64) error { return g.Check(&Header{SPI: 1, IV: iv}, Generation{}) }
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
		g.AdvanceRemoteTime(start)
		if g.RemoteTime() != start+50000 {
			t.Errorf("start %d: the remote time went back", start)
		}
		g.AdvanceRemoteTime(start + 90000)
		if err := check(start + 50000); !errors.Is(err, ErrReplay) {
			t.Errorf("start %d: old after the remote time was moved: %v", start, err)
		}
	}
	g := NewGuard(GuardConfig{SPI: 1, AnyPCID: true, Margin: margin, RemoteTime: 7})
	if err := g.Check(&Header{SPI: 2, IV: 1e9}, Generation{}); err == nil || g.RemoteTime() != 7 {
		t.Error("a refused packet moved the remote time")
	}
}

func TestCase110_GuardPCID(t *testing.T) {
	g := NewGuard(GuardConfig{SPI: 1, PCID: 42 << 32, Margin: 1})
	for _, tc := range []struct {
		h    Header
		want error
	}{
		{Header{SPI: 1, IV: 1, HasVC: true, VC: 42 << 32}, nil},
		{Header{SPI: 1, IV: 1, HasVC: true, VC: 43 << 32}, ErrPCID},
		{Header{SPI: 1, IV: 1}, ErrPCID},
	} {
		if err := g.Check(&tc.h, Generation{}); !errors.Is(err, tc.want) {
			t.Errorf("%+v: %v", tc.h, err)
		}
	}
	var zero Guard
	if zero.Check(&Header{HasVC: true, IV: 1}, Generation{}) == nil {
		t.Error("the zero guard accepts")
	}
}
