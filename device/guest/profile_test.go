package guest

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func TestASumCountsAllActs(t *testing.T) {
	if n := (Acts{1, 20, 300, 4000, 50000}).Sum(); n != 54321 {
		t.Errorf("%d acts", n)
	}
}

// TestAProfileCountsWhatItDoes checks that a profile counts each of its acts once, and delays
// nothing beyond its limits.
func TestAProfileCountsWhatItDoes(t *testing.T) {
	now := falcon.Time(1e9)
	p := newProfile(HostileProfile, 1)
	x := &injection{now: &now, profile: p}
	var want Acts
	soon := func(what string, at falcon.Time, most int64) {
		t.Helper()
		if at <= now || at > now+most {
			t.Errorf("%s: until %d ns from now, at most %d", what, at-now, most)
		}
	}
	for range 1000 {
		now += 3 * mostLate
		// An event of a completion queue may be delayed, and may come a second time.
		x.late = x.late[:0]
		taken := p.event(x, lateEvent{cqn: 1})
		more := len(x.late)
		if taken {
			want.LateEvents++
			more--
		}
		want.Spurious += uint64(more)
		for _, e := range x.late {
			soon("an event", e.at, mostLate)
		}
		// Other events may be delayed, and keep their order.
		x.late = x.late[:0]
		first, second := &abi.AsyncEvent{Number: 1}, &abi.AsyncEvent{Number: 2}
		taken = p.event(x, lateEvent{async: first})
		if taken {
			want.LateEvents++
		}
		if p.event(x, lateEvent{async: second}) {
			want.LateEvents++
		} else if taken {
			t.Error("an event overtakes another that waits")
		}
		for i, e := range x.late {
			soon("an event", e.at, mostLate)
			if taken && e.async != []*abi.AsyncEvent{first, second}[i] {
				t.Error("events that wait change places")
			}
		}
		if at := p.adminDelay(now); at != 0 {
			want.LateCommands++
			soon("a command", at, mostCommand)
		}
		if p.hold(now) {
			want.Holds++
			soon("a completion", p.releaseAt, mostHold)
		}
		if at := p.releaseAt; at != 0 && (p.deadline() > at || p.releases(at-1) || !p.releases(at) || p.releases(at)) {
			t.Error("completions are not released when they are due, once")
		}
		if p.stuck(now) {
			want.Pauses++
			soon("a pause", p.pausedUntil, mostPause)
			at, next := p.pausedUntil, p.nextPause
			if !p.stuck(at-1) || p.stuck(at) || p.deadline() != at || p.stuck(next-1) || !p.stuck(next) {
				t.Error("a pause does not last until its end, or the time to the next does not")
			}
			want.Pauses++
		}
	}
	if p.did != want || want.Spurious < 100 || want.LateEvents < 100 || want.LateCommands < 100 || want.Holds < 100 || want.Pauses < 100 {
		t.Errorf("it counts %+v, want %+v", p.did, want)
	}
}
