package guest

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func TestSumOfActs(t *testing.T) {
	if n := (Acts{1, 20, 300, 4000, 50000}).Sum(); n != 54321 {
		t.Errorf("%d acts", n)
	}
}

// TestActsAreCounted: a profile counts each thing it did, once; and what it has wait does so for no
// longer than its bounds.
func TestActsAreCounted(t *testing.T) {
	now, end := falcon.Time(1e9), falcon.Time(0)
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
		now += mostLate
		// An event of a completion queue is late or not, and comes once more or not.
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
		// Another event is late or not, and keeps its place behind those before it.
		x.late = x.late[:0]
		if taken = p.event(x, lateEvent{async: &abi.AsyncEvent{}}); taken {
			want.LateEvents++
			soon("an event", x.late[0].at, mostLate)
		}
		if (len(x.late) == 1) != taken || p.lastAsync < end {
			t.Errorf("taken %t: %d events wait; the last until %d, another before until %d", taken, len(x.late), p.lastAsync, end)
		}
		end = p.lastAsync
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
			want.Dozes++
			soon("a doze", p.dozeUntil, mostDoze)
			if at := p.dozeUntil; !p.stuck(at-1) || p.stuck(at) || p.deadline() != at {
				t.Error("a doze does not last until its end, with some time to the next")
			}
		}
	}
	if p.did != want || want.Spurious < 100 || want.LateEvents < 100 || want.LateCommands < 100 || want.Holds < 100 || want.Dozes < 100 {
		t.Errorf("it counts %+v, want %+v", p.did, want)
	}
}
