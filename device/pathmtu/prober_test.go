package pathmtu

import (
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
}

// run lets time pass until the given moment.
func (w *path) run(until vtime.Time) {
	for {
		w.now = max(w.now, w.p.Deadline())
		if w.now > until {
			w.now = until
			return
		}
		sizes, round := w.p.Due(w.now)
		for _, size := range append([]int(nil), sizes...) {
			w.sent++
			if size <= w.mtu && (w.lost == nil || !w.lost()) {
				w.p.Answered(w.now+50_000, size, round)
			}
		}
	}
}

func TestEveryPathMTUIsFoundWithinTwentySeconds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v6 := rapid.Bool().Draw(t, "v6")
		most := rapid.IntRange(1300, 65521).Draw(t, "uplink.mtu")
		w := &path{p: New(most, v6), mtu: rapid.IntRange(Least(v6), most+100).Draw(t, "mtu")}
		w.run(20e9)
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
	w.run(1)
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
		w.run(10e9)
		if w.p.MTU() != mtu {
			t.Errorf("after ten seconds: %d, the path carries %d", w.p.MTU(), mtu)
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
