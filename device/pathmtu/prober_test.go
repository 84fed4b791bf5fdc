package pathmtu

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// path answers the probes that it carries.
type path struct {
	p    *Prober
	mtu  int
	now  vtime.Time
	sent int
	lost func() bool
	rtt  vtime.Time // 0: 50 µs
	used bool       // long packets are being sent all the time

	answers []answer // under way, in the order of their arrival
}

type answer struct {
	at    vtime.Time
	size  int
	round uint32
}

// run lets time pass until the given moment.
func (w *path) run(until vtime.Time) {
	for {
		next := w.p.Deadline()
		if w.used {
			next = min(next, w.now+50e6)
		}
		if len(w.answers) > 0 {
			next = min(next, w.answers[0].at)
		}
		w.now = max(w.now, next)
		if w.now > until {
			w.now = until
			return
		}
		for len(w.answers) > 0 && w.answers[0].at <= w.now {
			a := w.answers[0]
			w.answers = w.answers[1:]
			w.p.Answered(w.now, a.size, a.round)
		}
		if w.used {
			w.p.Used(w.now)
		}
		sizes, round := w.p.Due(w.now)
		for _, size := range sizes {
			w.sent++
			if size <= w.mtu && (w.lost == nil || !w.lost()) {
				w.answers = append(w.answers, answer{w.now + max(w.rtt, 50_000), size, round})
			}
		}
		slices.SortStableFunc(w.answers, func(a, b answer) int { return cmp.Compare(a.at, b.at) })
	}
}

func TestEveryPathMTUIsFoundWithinFiveSeconds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v6 := rapid.Bool().Draw(t, "v6")
		most := rapid.IntRange(1300, 65521).Draw(t, "uplink.mtu")
		w := &path{p: New(most, v6), mtu: rapid.IntRange(Least(v6), most+100).Draw(t, "mtu")}
		w.run(5e9)
		if got, want := w.p.MTU(), min(w.mtu, most); got != want {
			t.Fatalf("found %d, the path carries %d", got, want)
		}
		if w.sent > 200 {
			t.Errorf("%d probes", w.sent)
		}
	})
}

func TestAPathThatCarriesEverythingIsKnownByOneProbe(t *testing.T) {
	w := &path{p: New(9000, false), mtu: 9000}
	w.run(100_000)
	if w.p.MTU() != 9000 || w.sent != 2 {
		t.Errorf("MTU %d after %d probes", w.p.MTU(), w.sent)
	}
	w.run(3600e9)
	if perHour := w.sent; perHour > 2*121 {
		t.Errorf("%d probes in an hour of a path that does not change", perHour)
	}
}

func TestUsualMTUsAreFoundSoon(t *testing.T) {
	for _, mtu := range usual {
		w := &path{p: New(9000, false), mtu: mtu}
		w.run(2e9)
		if w.p.MTU() != mtu {
			t.Errorf("after two seconds: %d, the path carries %d", w.p.MTU(), mtu)
		}
	}
}

func TestAChangeOfThePathIsFoundWithinAMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &path{p: New(9000, false)}
		mtus := rapid.SliceOfN(rapid.IntRange(1200, 9000), 1, 6).Draw(t, "mtus")
		for i, mtu := range mtus {
			w.mtu = mtu
			w.run(vtime.Time(i+1) * 60e9)
			if w.p.MTU() != mtu {
				t.Fatalf("change %d: %d, the path carries %d", i, w.p.MTU(), mtu)
			}
		}
	})
}

func TestAnMTUThatBecomesSmallerInUseIsFoundWithinTwoSeconds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rtt := vtime.Time(rapid.IntRange(1e5, 25e6).Draw(t, "rtt"))
		w := &path{p: New(9000, false), mtu: rapid.IntRange(1201, 9000).Draw(t, "before"), rtt: rtt, used: true}
		w.run(20e9 + vtime.Time(rapid.IntRange(0, 30e9).Draw(t, "when")))
		if w.p.MTU() != w.mtu {
			t.Fatalf("%d, the path carries %d", w.p.MTU(), w.mtu)
		}
		w.mtu = rapid.IntRange(1200, w.mtu-1).Draw(t, "after")
		w.run(w.now + 1.5e9) // half a second is for the traffic to go on
		usable := w.p.least
		for _, u := range usual {
			if u <= w.mtu {
				usable = u
			}
		}
		if got := w.p.MTU(); got > w.mtu || got < usable {
			t.Fatalf("%d after 1.5 s, the path carries %d", got, w.mtu)
		}
		w.run(w.now + 20e9)
		if w.p.MTU() != w.mtu {
			t.Fatalf("%d in the end, the path carries %d", w.p.MTU(), w.mtu)
		}
	})
}

func TestAPathInUseIsCheckedByTwoProbesInHalfASecond(t *testing.T) {
	w := &path{p: New(9000, false), mtu: 9000, used: true}
	w.run(300e9)
	if most := 2*300*2 + 2*11; w.sent > most {
		t.Errorf("%d probes in 300 s of a path in use, want at most %d", w.sent, most)
	}
	if w.sent < 2*290*2 {
		t.Errorf("%d probes in 300 s of a path in use", w.sent)
	}
}

// A peer that is away for a while, or slower than its answers were, does not lower the MTU.
func TestSilenceAndDelayDoNotLowerTheMTU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &path{p: New(9000, false), mtu: 9000, used: true}
		w.run(5e9)
		for range rapid.IntRange(1, 5).Draw(t, "times") {
			if rapid.Bool().Draw(t, "away") {
				w.mtu = 0
			} else {
				w.rtt = vtime.Time(rapid.IntRange(1e6, 900e6).Draw(t, "rtt"))
			}
			w.run(w.now + vtime.Time(rapid.IntRange(1e8, 9e9).Draw(t, "for")))
			w.mtu, w.rtt = 9000, 0
			w.run(w.now + vtime.Time(rapid.IntRange(0, 3e9).Draw(t, "good")))
			if w.p.MTU() != 9000 {
				t.Fatalf("MTU %d", w.p.MTU())
			}
		}
	})
}

func TestALostCheckDoesNotLowerTheMTU(t *testing.T) {
	lose := 0
	w := &path{p: New(9000, false), mtu: 9000, used: true}
	w.lost = func() bool { lose--; return lose >= 0 }
	w.run(5e9)
	for n := range 3 {
		lose = n + 1
		w.run(w.now + 3e9)
		if w.p.MTU() != 9000 {
			t.Errorf("MTU %d after %d lost probes", w.p.MTU(), n+1)
		}
	}
}

func TestAPeerThatAnswersNothingChangesNothing(t *testing.T) {
	w := &path{p: New(4500, false)}
	w.run(100e9)
	if w.p.MTU() != 0 {
		t.Fatalf("an MTU of %d from nowhere", w.p.MTU())
	}
	if w.sent > 100 {
		t.Errorf("%d probes to a peer that does not answer", w.sent)
	}
	w.mtu = 1500
	w.run(140e9)
	if w.p.MTU() != 1500 {
		t.Fatalf("%d when it does answer, the path carries 1500", w.p.MTU())
	}
	w.mtu = 0 // the peer went away
	w.run(400e9)
	if w.p.MTU() != 1500 {
		t.Errorf("a peer that went away made it %d", w.p.MTU())
	}
}

// A lost probe may make the result smaller for half a minute, never larger.
func TestLossNeverMakesThePathLonger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.IntRange(0, 60).Draw(t, "loss")
		dice := rapid.Custom(func(t *rapid.T) bool { return rapid.IntRange(0, 99).Draw(t, "die") < percent })
		w := &path{p: New(4500, false), mtu: rapid.IntRange(1200, 4500).Draw(t, "mtu")}
		w.lost = func() bool { return dice.Draw(t, "lost") }
		for i := range 4 {
			w.run(vtime.Time(i+1) * 10e9)
			if w.p.MTU() > w.mtu {
				t.Fatalf("%d, the path carries %d", w.p.MTU(), w.mtu)
			}
		}
		w.lost = nil
		w.run(150e9)
		if w.p.MTU() != w.mtu {
			t.Fatalf("%d without further loss, the path carries %d", w.p.MTU(), w.mtu)
		}
	})
}

func TestAnswersOfAnotherRoundOrSizeAreIgnored(t *testing.T) {
	p := New(9000, false)
	p.Answered(0, 9000, 1) // before anything was sent
	_, round := p.Due(0)
	p.Answered(1, 9000, round+1)
	p.Answered(1, 9000, round-1)
	p.Answered(1, 8999, round)
	p.Answered(1, 65535, round)
	if p.MTU() != 0 {
		t.Errorf("MTU %d by an answer to no probe", p.MTU())
	}
}
