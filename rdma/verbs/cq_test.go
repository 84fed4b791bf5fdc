package verbs

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestCompletionsAreCountedByStatus: completions are counted by their status.
func TestCompletionsAreCountedByStatus(t *testing.T) {
	g := newGuest(t, Limits{})
	cq := g.newCQ(4)
	c := g.CQ(cq.number)
	for _, st := range []abi.WCStatus{abi.WCSuccess, abi.WCWRFlushErr, abi.WCRemOpErr, abi.WCWRFlushErr} {
		c.post(0, &abi.CQE{Status: st}, false)
	}
	if s := g.Stats; s.Completed != 4 || s.Flushed != 2 || s.Errors != 1 || s.CQOverflows != 0 {
		t.Errorf("%+v", s)
	}
}

// TestAnArmedQueueSendsOneEvent: an armed queue sends one event for the requested entry: any, or
// one that is solicited or failed, also if it is there already. (DEV-707)
func TestAnArmedQueueSendsOneEvent(t *testing.T) {
	plain, failed := &abi.CQE{}, &abi.CQE{Status: abi.WCWRFlushErr}
	for _, c := range []struct {
		name      string
		before    int  // entries that are there
		solicited bool // of them is the last
		index     uint32
		only      bool // arms for solicited entries
		then      *abi.CQE
		isNow     bool // solicited
		events    [2]int
	}{
		{"next one", 0, false, 0, false, plain, false, [2]int{0, 1}},
		{"next one, solicited", 0, false, 0, false, plain, true, [2]int{0, 1}},
		{"solicited, another comes", 0, false, 0, true, plain, false, [2]int{0, 0}},
		{"solicited", 0, false, 0, true, plain, true, [2]int{0, 1}},
		{"solicited, a failure comes", 0, false, 0, true, failed, false, [2]int{0, 1}},
		{"one is there", 2, false, 1, false, plain, false, [2]int{1, 1}},
		{"all are taken", 2, false, 2, false, plain, false, [2]int{0, 1}},
		{"a solicited one is there", 2, true, 1, true, plain, true, [2]int{1, 1}},
		{"the solicited one is taken", 2, true, 2, true, plain, false, [2]int{0, 0}},
		{"another is there", 2, false, 1, true, plain, false, [2]int{0, 0}},
	} {
		g := newGuest(t, Limits{})
		cq := g.newCQ(4)
		q := g.CQ(cq.number)
		for i := range c.before {
			q.post(0, plain, c.solicited && i == c.before-1)
		}
		q.Arm(c.index, c.only)
		first := len(g.cqEvents)
		q.post(0, c.then, c.isNow)
		q.post(0, c.then, c.isNow)
		if got := [2]int{first, len(g.cqEvents)}; got != c.events {
			t.Errorf("%s: %v events, want %v", c.name, got, c.events)
		}
		if len(g.violations) != 0 {
			t.Errorf("%s: violations %+v", c.name, g.violations)
		}
	}
}

// TestArmingForAnyEntryOutranksSolicited: arming for any entry outranks arming for solicited ones,
// whichever comes first.
func TestArmingForAnyEntryOutranksSolicited(t *testing.T) {
	for _, only := range [][2]bool{{true, false}, {false, true}} {
		g := newGuest(t, Limits{})
		q := g.CQ(g.newCQ(4).number)
		for _, o := range only {
			q.Arm(0, o)
		}
		if q.post(0, &abi.CQE{}, false); len(g.cqEvents) != 1 {
			t.Errorf("%v: %d events", only, len(g.cqEvents))
		}
	}
}

// TestArmingAheadIsAViolation: arming for an entry behind the next one breaks a rule, and causes an
// event at once. After the queue was moved, it may be an old index. A queue that overflowed sends
// no events. (DRV-708, DEV-720)
func TestArmingAheadIsAViolation(t *testing.T) {
	g := newGuest(t, Limits{})
	cq := g.newCQ(4)
	q := g.CQ(cq.number)
	q.post(0, &abi.CQE{}, false)
	for _, c := range []struct {
		index         uint32
		change        func()
		events, wrong int
	}{
		{1, func() {}, 0, 0},
		{2, func() {}, 1, 1},
		{1<<31 + 1, func() {}, 2, 1}, // far behind
		{2, func() { q.resized = true }, 3, 1},
		{2, func() { q.resized, q.failed = false, true }, 3, 2},
	} {
		c.change()
		q.Arm(c.index, false)
		if len(g.cqEvents) != c.events || len(g.violations) != c.wrong {
			t.Errorf("index %d: %d events, want %d; %d violations, want %d", c.index, len(g.cqEvents), c.events, len(g.violations), c.wrong)
		}
	}
	if v := g.violations[0]; v.Clause != 708 || v.Index != 2 || v.Ring != abi.RingCQ || v.Queue != cq.number {
		t.Errorf("%+v", v)
	}
}

// TestModerationWaitsForCountOrPeriod: an event waits for the number of completions that the driver
// set, but not longer than the period that it set. If one of the two is missing, it does not wait.
// (DEV-721)
func TestModerationWaitsForCountOrPeriod(t *testing.T) {
	for _, c := range []struct {
		count, period uint16
		after         int // completions, or
		at            vtime.Time
	}{{0, 0, 1, 0}, {1, 50, 1, 0}, {3, 0, 1, 0}, {2, 50, 2, 50e3}, {3, 50, 3, 50e3}} {
		g := newGuest(t, Limits{})
		q := g.CQ(g.newCQ(4).number)
		g.good(g.ModifyCQ(&abi.ModifyCQ{CQN: q.number, Count: c.count, Period: c.period}))
		for range 2 { // and once more
			g.cqEvents = nil
			q.Arm(q.ring.Next(), false)
			for i := range c.after {
				if len(g.cqEvents) != 0 {
					t.Errorf("%d of %d µs: an event after %d completions", c.count, c.period, i)
				}
				q.post(0, &abi.CQE{}, false)
			}
			if q.post(0, &abi.CQE{}, false); len(g.cqEvents) != 1 || g.shared.Timers.Deadline() != vtime.Never {
				t.Errorf("%d of %d µs: %d events after %d completions, timer %d", c.count, c.period, len(g.cqEvents), c.after, g.shared.Timers.Deadline())
			}
		}
		if c.at == 0 {
			continue
		}
		g.cqEvents = nil
		q.Arm(q.ring.Next(), false)
		const begin = 1000e6
		q.post(begin, &abi.CQE{}, false)
		if g.shared.Timers.Run(begin + c.at - 1); len(g.cqEvents) != 0 {
			t.Errorf("%d of %d µs: an event before its time", c.count, c.period)
		}
		if g.shared.Timers.Run(begin + c.at); len(g.cqEvents) != 1 {
			t.Errorf("%d of %d µs: no event in time", c.count, c.period)
		}
	}
	g := newGuest(t, Limits{})
	q := g.CQ(g.newCQ(4).number)
	moderate := &abi.ModifyCQ{CQN: q.number, Count: 3, Period: 50}
	g.good(g.ModifyCQ(moderate))
	if g.ModifyCQ(moderate); len(g.cqEvents) != 0 {
		t.Error("an event that nobody waits for")
	}
	q.Arm(0, false)
	q.post(0, &abi.CQE{}, false)
	if g.ModifyCQ(moderate); len(g.cqEvents) != 1 {
		t.Error("no event for what was held back by other rules")
	}
}

// TestAWordInMemoryArmsLikeADoorbell: a word in memory arms like a doorbell. A word for an entry
// that no driver can have reached is reported by a strict function. (DEV-709, DRV-709)
func TestAWordInMemoryArmsLikeADoorbell(t *testing.T) {
	for _, c := range []struct {
		index  uint64 // that is asked for, where one entry will be there
		strict bool
		events int
		wrong  bool
	}{{0, true, 1, false}, {1, true, 0, false}, {2, true, 0, true}, {2, false, 0, false}} {
		g := newGuest(t, Limits{})
		g.UseFeatures(abi.FeatureArmWord)
		cq := g.newCQ(4)
		q := g.CQ(cq.number)
		g.UseStrict(c.strict)
		if err := q.area.Store64Release(abi.CQHeaderArm, 1<<33|c.index); err != nil {
			t.Fatal(err)
		}
		q.post(0, &abi.CQE{}, true)
		if v := g.violations; len(g.cqEvents) != c.events || (len(v) == 1) != c.wrong || c.wrong && (v[0].Clause != 709 || v[0].Index != 2) {
			t.Errorf("%+v: %d events, violations %+v", c, len(g.cqEvents), v)
		}
		if got := cq.poll(); len(got) != 1 || got[0].Flags != abi.WCFlagSolicited {
			t.Errorf("%+v: completions %+v", c, got)
		}
	}
}

// TestAFailedCompletionQueueFailsItsQueuePairs: a queue without room fails, and so do the queue
// pairs that complete there. Each gets an event, and no entry is written any more. Impossible
// indices and missing memory end the queue too, each with its clause. (DRV-402, DRV-704, DRV-705)
func TestAFailedCompletionQueueFailsItsQueuePairs(t *testing.T) {
	for name, c := range map[string]struct {
		spoil    func(g *guest, q *CQ)
		clause   uint16
		status   abi.Status
		overflow uint64
	}{
		"no room": {func(_ *guest, q *CQ) { q.post(0, &abi.CQE{}, false) }, 705, abi.StatusNoResources, 1},
		"an index that cannot be": {func(g *guest, q *CQ) {
			if err := q.area.Store32(abi.CQHeaderConsumer, 33); err != nil {
				g.t.Fatal(err)
			}
			q.post(0, &abi.CQE{}, false)
		}, 704, abi.StatusInvalidArgument, 0},
		"memory gone": {func(g *guest, q *CQ) {
			g.Owner.mem.SetRegions(nil)
			q.post(0, &abi.CQE{}, false)
		}, 402, abi.StatusMemoryFault, 0},
	} {
		g := newGuest(t, Limits{})
		s, other := g.newRC(nil), g.newRC(nil)
		q := g.CQ(s.received.number)
		for range 32 {
			q.post(0, &abi.CQE{}, false)
		}
		if q.Broken() {
			t.Fatalf("%s: it is broken while there is room", name)
		}
		c.spoil(g, q)
		q.post(0, &abi.CQE{}, false)
		g.Settle(0)
		if v := g.violations; len(v) != 1 || v[0].Clause != c.clause || v[0].Ring != abi.RingCQ || v[0].Queue != q.number {
			t.Errorf("%s: violations %+v", name, v)
		}
		want := []event{{abi.EventCQError, q.number, abi.WCStatus(c.status)}, {abi.EventQPFatal, s.number, abi.WCGeneralErr}}
		if !slices.Equal(g.events, want) || !q.Broken() || g.Stats.CQOverflows != c.overflow || g.Stats.Completed != 32 {
			t.Errorf("%s: events %+v, want %+v; %+v", name, g.events, want, g.Stats)
		}
		if s.State() != abi.QPStateErr || other.State() != abi.QPStateRTS {
			t.Errorf("%s: QPs in %v and %v", name, s.State(), other.State())
		}
	}
}

// TestResizeNeedsRoomForWaitingEntries: the new area must have room for the entries that wait in
// the old one. A queue that failed, or whose driver broke its index, cannot be resized. (DEV-720)
func TestResizeNeedsRoomForWaitingEntries(t *testing.T) {
	for _, c := range []struct {
		name    string
		waiting int
		change  func(g *guest, q *CQ, r *abi.ResizeCQ)
		want    abi.Status
	}{
		{"as many", 4, nil, abi.StatusOK},
		{"one more", 5, nil, abi.StatusInvalidArgument},
		{"none", 0, nil, abi.StatusOK},
		{"one entry", 0, func(_ *guest, _ *CQ, r *abi.ResizeCQ) { r.Log2Entries = 0 }, abi.StatusInvalidArgument},
		{"too many", 0, func(_ *guest, _ *CQ, r *abi.ResizeCQ) { r.Log2Entries = 5 }, abi.StatusTooLarge},
		{"no list", 0, func(_ *guest, _ *CQ, r *abi.ResizeCQ) { r.Pages = 1 << 50 }, abi.StatusMemoryFault},
		{"no queue", 0, func(_ *guest, _ *CQ, r *abi.ResizeCQ) { r.CQN = 0x777 }, abi.StatusNotFound},
		{"it failed", 0, func(_ *guest, q *CQ, _ *abi.ResizeCQ) { q.failed = true }, abi.StatusBadState},
		{"an index that cannot be", 0, func(g *guest, q *CQ, _ *abi.ResizeCQ) {
			if err := q.area.Store32(abi.CQHeaderConsumer, 17); err != nil {
				g.t.Fatal(err)
			}
		}, abi.StatusBadState},
		{"the end of the function", 0, func(g *guest, _ *CQ, _ *abi.ResizeCQ) { g.closed = true }, abi.StatusBadState},
	} {
		g := newGuest(t, Limits{CQEntries: 16})
		q := g.CQ(g.newCQ(4).number)
		for range c.waiting {
			q.post(0, &abi.CQE{}, false)
		}
		r := &abi.ResizeCQ{CQN: q.number, Log2Entries: 2, Levels: 1, Pages: g.run(g.pages(1), 1)}
		if c.change != nil {
			c.change(g, q, r)
		}
		if st := g.ResizeCQ(r); st != c.want || (len(g.cqEvents) == 1) != (st == abi.StatusOK) || q.resized != (st == abi.StatusOK) {
			t.Errorf("%s: %v, want %v; %d events", c.name, st, c.want, len(g.cqEvents))
		}
	}
	for _, strict := range []bool{false, true} { // the new area has to be zero
		g := newGuest(t, Limits{})
		q := g.CQ(g.newCQ(4).number)
		g.UseStrict(strict)
		at := g.pages(1)
		binary.LittleEndian.PutUint32(g.mem(at+200, 4), 1)
		g.good(g.ResizeCQ(&abi.ResizeCQ{CQN: q.number, Log2Entries: 2, Levels: 1, Pages: g.run(at, 1)}))
		if (len(g.violations) == 1) != strict {
			t.Errorf("strict %t: violations %+v", strict, g.violations)
		}
	}
}
