package timer

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// wheelTimer is a timer that knows when it should fire.
type wheelTimer struct {
	Handle
	at vtime.Time
}

type wheel = Wheel[*wheelTimer]

func (x *wheelTimer) arm(w *wheel, at vtime.Time) {
	w.Arm(&x.Handle, x, 1, at)
	x.at = at
}

// TestEachTimerFiresWhenItIsDue compares the wheel with a plain list.
func TestEachTimerFiresWhenItIsDue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w wheel
		now := vtime.Time(rapid.Int64Range(0, 1<<50).Draw(t, "start"))
		w.Expire(now)
		timers := make([]wheelTimer, 40)
		armed := map[*wheelTimer]bool{}
		last := vtime.Time(0) // of the timers of one delay
		t.Repeat(map[string]func(*rapid.T){
			"arm": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				after := vtime.Time(rapid.Int64Range(0, 1<<rapid.IntRange(0, 45).Draw(t, "scale")).Draw(t, "after"))
				x.arm(&w, now+after)
				armed[x] = true
			},
			"queue": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				w.Stop(&x.Handle)
				last = max(last, now+vtime.Time(rapid.Int64Range(0, 1<<20).Draw(t, "after")))
				w.Queue(&x.Handle, x, 2, last)
				x.at, armed[x] = last, true
			},
			"stop": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				w.Stop(&x.Handle)
				delete(armed, x)
			},
			"advance": func(t *rapid.T) {
				now += vtime.Time(rapid.Int64Range(0, 1<<rapid.IntRange(0, 45).Draw(t, "scale")).Draw(t, "by"))
				fire(t, &w, now, armed)
			},
			"deadline": func(t *rapid.T) {
				at := w.Deadline()
				if at == vtime.Never {
					return
				}
				now = max(now, at)
				fire(t, &w, now, armed)
			},
			"": func(t *rapid.T) {
				next := vtime.Never
				for x := range armed {
					if !x.Armed() {
						t.Fatal("armed timer is not in the wheel")
					}
					next = min(next, x.at)
				}
				at := w.Deadline()
				if at > next {
					t.Fatalf("deadline %d, next timer %d", at, next)
				}
				if next != vtime.Never && at < next && at <= now {
					t.Fatalf("deadline %d is not ahead of %d although the next timer is at %d", at, now, next)
				}
				if (next == vtime.Never) != (at == vtime.Never) {
					t.Fatalf("deadline %d, next timer %d", at, next)
				}
			},
		})
	})
}

type fataler interface{ Fatalf(string, ...any) }

func fire(t fataler, w *wheel, now vtime.Time, armed map[*wheelTimer]bool) {
	for x, kind, ok := w.Expire(now); ok; x, kind, ok = w.Expire(now) {
		if kind != 1 && kind != 2 {
			t.Fatalf("kind %d", kind)
		}
		if x.Armed() {
			t.Fatalf("armed after it fired")
		}
		if x.at > now {
			t.Fatalf("fired %d ns early", x.at-now)
		}
		if !armed[x] {
			t.Fatalf("fired although not armed")
		}
		delete(armed, x)
	}
	for x := range armed {
		if x.at <= now {
			t.Fatalf("timer of %d did not fire at %d", x.at, now)
		}
	}
}

func TestTimersFireInTheirOrder(t *testing.T) {
	var w wheel
	timers := make([]wheelTimer, 1000)
	for i := range timers {
		timers[i].arm(&w, vtime.Time(i*7919%100003)<<tickShift)
	}
	var got []vtime.Time
	for x, _, ok := w.Expire(math.MaxInt64); ok; x, _, ok = w.Expire(math.MaxInt64) {
		got = append(got, x.at)
	}
	if len(got) != len(timers) || !slices.IsSortedFunc(got, cmp.Compare[vtime.Time]) {
		t.Errorf("%d timers fired, sorted %v", len(got), slices.IsSorted(got))
	}
	if n := len(w.nodes); n != 1001 {
		t.Errorf("%d nodes for 1000 timers", n)
	}
	timers[0].arm(&w, 1)
	if len(w.nodes) != 1001 {
		t.Error("nodes are not used again")
	}
}

// TestFlushTakesOnlyQueuedTimers takes the timers that Queue armed, due or not, in order, and no others.
func TestFlushTakesOnlyQueuedTimers(t *testing.T) {
	var w wheel
	timers := make([]wheelTimer, 5)
	for i := range timers[:4] {
		w.Queue(&timers[i].Handle, &timers[i], 1, vtime.Time(100+i))
	}
	timers[4].arm(&w, 1)
	w.Stop(&timers[2].Handle)
	for _, want := range []*wheelTimer{&timers[0], &timers[1], &timers[3]} {
		if got, ok := w.Flush(); !ok || got != want || got.Armed() {
			t.Fatalf("flushed %v, %v", got, ok)
		}
	}
	if _, ok := w.Flush(); ok || !timers[4].Armed() {
		t.Error("Flush took a timer of Arm")
	}
}

// TestTimersAllocateNothing: a timer that was armed once is armed again and expires without
// allocating.
func TestTimersAllocateNothing(t *testing.T) {
	var w wheel
	timers := make([]wheelTimer, 100)
	now := vtime.Time(0)
	round := func() {
		for i := range timers {
			timers[i].arm(&w, now+vtime.Time(i)<<14)
		}
		w.Stop(&timers[7].Handle)
		now += 60 << 14
		for _, _, ok := w.Expire(now); ok; _, _, ok = w.Expire(now) {
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkArmStop(b *testing.B) {
	var w wheel
	var x wheelTimer
	for now := vtime.Time(0); b.Loop(); now += 100 {
		x.arm(&w, now+50000)
		w.Stop(&x.Handle)
	}
}
