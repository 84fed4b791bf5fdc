package psp

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// The cases of the anti-replay algorithm (RFC 6479 §2, RFC 4303 §3.4.3): in order, again, reordered
// inside the window, at its edges, left of it, and jumps of every size.
func TestReplayWindowCases(t *testing.T) {
	type step struct {
		counter uint64
		ok      bool
	}
	for name, steps := range map[string][]step{
		"in order":              {{1, true}, {2, true}, {3, true}},
		"zero is a counter":     {{0, true}, {0, false}, {1, true}},
		"again":                 {{7, true}, {7, false}, {8, true}, {7, false}, {8, false}},
		"reordered":             {{9, true}, {3, true}, {5, true}, {3, false}, {4, true}, {9, false}},
		"left edge":             {{ReplaySpan + 1, true}, {1, true}, {1, false}, {0, false}},
		"left edge moves":       {{ReplaySpan, true}, {0, true}, {ReplaySpan + 1, true}, {0, false}, {1, true}},
		"across blocks":         {{63, true}, {64, true}, {63, false}, {64, false}, {65, true}},
		"jump of the window":    {{5, true}, {5 + ReplaySpan, true}, {5, false}, {6, true}, {6, false}},
		"jump beyond":           {{5, true}, {5 + 10*ReplaySpan, true}, {5, false}, {5 + 9*ReplaySpan, true}, {5 + 9*ReplaySpan - 1, false}},
		"same place in ring":    {{1, true}, {1 + replayBlocks*replayBits, true}, {1, false}, {2 + replayBits, true}},
		"far jump":              {{1, true}, {1 << 60, true}, {1<<60 - 1, true}, {1, false}},
		"the largest there are": {{math.MaxUint64 - 1, true}, {math.MaxUint64, true}, {math.MaxUint64, false}, {math.MaxUint64 - ReplaySpan, true}, {math.MaxUint64 - ReplaySpan - 1, false}},
	} {
		var w ReplayWindow
		for i, s := range steps {
			if ok := w.Accept(s.counter); ok != s.ok {
				t.Errorf("%s: step %d: Accept(%d) = %v", name, i, s.counter, ok)
			}
		}
	}
}

// TestReplayWindowModel compares with a set of everything ever accepted.
func TestReplayWindowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w ReplayWindow
		seen := map[uint64]bool{}
		newest := rapid.SampledFrom([]uint64{0, 1 << 40, math.MaxUint64 - 20*ReplaySpan}).Draw(t, "start")
		if newest > 0 {
			w.Accept(newest)
			seen[newest] = true
		}
		for range rapid.IntRange(1, 300).Draw(t, "packets") {
			c := newest
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				c++
			case 1:
				c += rapid.Uint64Range(0, 100).Draw(t, "ahead")
			case 2:
				c -= min(c, rapid.Uint64Range(0, ReplaySpan+70).Draw(t, "behind"))
			default:
				c += rapid.Uint64Range(ReplaySpan-70, ReplaySpan+140).Draw(t, "jump")
				if c < newest {
					c = newest
				}
			}
			want := !seen[c] && (c >= newest || newest-c <= ReplaySpan)
			if got := w.Accept(c); got != want {
				t.Fatalf("Accept(%d) with newest %d: %v", c, newest, got)
			}
			if want {
				seen[c] = true
				newest = max(newest, c)
			}
		}
	})
}

// The gateway class: counter IVs from 1 whatever the clock says, each accepted once, in any order
// inside the window.
func TestEachCounterIVOfAGatewayIsAcceptedOnce(t *testing.T) {
	d := NewRxSADB(testMaster(t), 8, 1)
	spi, key, err := d.Issue(0, ClassGateway)
	if err != nil {
		t.Fatal(err)
	}
	open := d.Opener(0)
	tx, err := NewGatewayTxSA(0, spi, key, 7<<32, 2)
	if err != nil {
		t.Fatal(err)
	}
	var packets [][]byte
	for i := range 5 {
		b := make([]byte, tx.Overhead()+40)
		if _, err := tx.Seal(int64(1000-i), NextHeaderIPv4, b, 40); err != nil || tx.LastIV() != uint64(i+1) {
			t.Fatalf("packet %d: IV %d, %v", i, tx.LastIV(), err)
		}
		packets = append(packets, b)
	}
	for _, i := range []int{0, 3, 1, 4, 2} {
		b := append([]byte(nil), packets[i]...)
		hdr, _, _, err := open.Open(b)
		if err != nil || hdr.Class != ClassGateway || hdr.VC != 7<<32 {
			t.Fatalf("packet %d: %+v, %v", i, hdr, err)
		}
	}
	for i := range packets {
		if _, _, _, err := open.Open(packets[i]); err != ErrReplay {
			t.Fatalf("packet %d again: %v", i, err)
		}
	}
	// A forged packet must not move the window.
	forged := make([]byte, tx.Overhead()+40)
	if _, err := tx.Seal(0, NextHeaderIPv4, forged, 40); err != nil {
		t.Fatal(err)
	}
	good := append([]byte(nil), forged...)
	forged[len(forged)-1] ^= 1
	if _, _, _, err := open.Open(forged); err != ErrAuth {
		t.Fatal(err)
	}
	if _, _, _, err := open.Open(good); err != nil {
		t.Fatalf("after a forged packet with the same IV: %v", err)
	}
}
