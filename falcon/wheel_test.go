package falcon

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestWheelModel compares the wheel with a plain list.
func TestWheelModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w wheel
		now := Time(rapid.Int64Range(0, 1<<50).Draw(t, "start"))
		w.expire(now)
		timers := make([]timer, 40)
		armed := map[*timer]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"arm": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				after := Time(rapid.Int64Range(0, 1<<rapid.IntRange(0, 45).Draw(t, "scale")).Draw(t, "after"))
				w.arm(x, now+after)
				armed[x] = true
			},
			"stop": func(t *rapid.T) {
				x := &timers[rapid.IntRange(0, len(timers)-1).Draw(t, "timer")]
				w.stop(x)
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

func fire(t fataler, w *wheel, now Time, armed map[*timer]bool) {
	for x := w.expire(now); x != nil; x = w.expire(now) {
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
	timers := make([]timer, 1000)
	for i := range timers {
		w.arm(&timers[i], Time(i*7919%100003)<<tickShift)
	}
	var got []Time
	for x := w.expire(math.MaxInt64); x != nil; x = w.expire(math.MaxInt64) {
		got = append(got, x.at)
	}
	if len(got) != len(timers) || !slices.IsSortedFunc(got, cmp.Compare[Time]) {
		t.Errorf("%d timers fired, sorted %v", len(got), slices.IsSorted(got))
	}
}
