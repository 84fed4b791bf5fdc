package falcon

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// wheelTimer is a timer that knows when it should fire.
type wheelTimer struct {
	timer
	at Time
}

func (*wheelTimer) expired(Time, timerKind) {}

func (x *wheelTimer) arm(w *wheel, at Time) {
	w.arm(&x.timer, x, timerPace, at)
	x.at = at
}

// TestWheelModel compares the wheel with a plain list.
func TestWheelModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w wheel
		now := Time(rapid.Int64Range(0, 1<<50).Draw(t, "start"))
		w.expire(now)
		timers := make([]wheelTimer, 40)
		armed := map[*wheelTimer]bool{}
		last := Time(0) // of the timers of one delay
		t.Repeat(map[string]func(*rapid.T){
			"arm": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				after := Time(rapid.Int64Range(0, 1<<rapid.IntRange(0, 45).Draw(t, "scale")).Draw(t, "after"))
				x.arm(&w, now+after)
				armed[x] = true
			},
			"queue": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				w.stop(&x.timer)
				last = max(last, now+Time(rapid.Int64Range(0, 1<<20).Draw(t, "after")))
				w.queue(&x.timer, x, timerAck, last)
				x.at, armed[x] = last, true
			},
			"stop": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				w.stop(&x.timer)
				delete(armed, x)
			},
			"advance": func(t *rapid.T) {
				now += Time(rapid.Int64Range(0, 1<<rapid.IntRange(0, 45).Draw(t, "scale")).Draw(t, "by"))
				fire(t, &w, now, armed)
			},
			"deadline": func(t *rapid.T) {
				at := w.deadline()
				if at == never {
					return
				}
				now = max(now, at)
				fire(t, &w, now, armed)
			},
			"": func(t *rapid.T) {
				next := never
				for x := range armed {
					if !x.armed() {
						t.Fatal("armed timer is not in the wheel")
					}
					next = min(next, x.at)
				}
				at := w.deadline()
				if at > next {
					t.Fatalf("deadline %d, next timer %d", at, next)
				}
				if next != never && at < next && at <= now {
					t.Fatalf("deadline %d is not ahead of %d although the next timer is at %d", at, now, next)
				}
				if (next == never) != (at == never) {
					t.Fatalf("deadline %d, next timer %d", at, next)
				}
			},
		})
	})
}

type fataler interface{ Fatalf(string, ...any) }

func fire(t fataler, w *wheel, now Time, armed map[*wheelTimer]bool) {
	for o, _ := w.expire(now); o != nil; o, _ = w.expire(now) {
		x := o.(*wheelTimer)
		if x.armed() {
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

func TestWheelOrder(t *testing.T) {
	var w wheel
	timers := make([]wheelTimer, 1000)
	for i := range timers {
		timers[i].arm(&w, Time(i*7919%100003)<<tickShift)
	}
	var got []Time
	for o, _ := w.expire(math.MaxInt64); o != nil; o, _ = w.expire(math.MaxInt64) {
		got = append(got, o.(*wheelTimer).at)
	}
	if len(got) != len(timers) || !slices.IsSortedFunc(got, cmp.Compare[Time]) {
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
