package fault

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// given returns a new set with rules added at time 100.
func given(t *testing.T, rules ...Rule) *Set {
	t.Helper()
	s := &Set{}
	for _, r := range rules {
		if _, err := s.Add(100, r); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestRuleLastsItsTime checks that a rule applies from when it was added until its time is over, to
// the nanosecond, and reports the time left.
func TestRuleLastsItsTime(t *testing.T) {
	s := given(t, Rule{Kind: DMA, ForNS: 10})
	a := s.Rules()[0]
	for _, c := range []struct {
		now     Time
		strikes bool
		remains Time
	}{{100, true, 10}, {109, true, 1}, {110, false, 0}, {111, false, 0}} {
		if is := s.InForce(c.now, DMA); is != c.strikes || a.Over(c.now) == c.strikes || a.Remains(c.now) != c.remains {
			t.Errorf("at %d: in force %v, over %v, %d ns are left", c.now, is, a.Over(c.now), a.Remains(c.now))
		}
		if s.InForce(c.now, Starve) {
			t.Error("another kind is in force")
		}
		if hit := s.Hit(c.now, DMA, &Operation{}); (hit != nil) != c.strikes {
			t.Errorf("at %d: strikes %v", c.now, hit != nil)
		}
	}
	if a.Seen != 2 || a.Hits != 2 || a.Since() != 100 {
		t.Errorf("%d seen, %d hit, since %d", a.Seen, a.Hits, a.Since())
	}
	if a := given(t, Rule{Kind: DMA}).Rules()[0]; a.Remains(1<<60) != 0 || a.Over(math.MaxInt64-1) {
		t.Error("a rule without a time ends")
	}
}

// TestEndsTellsWhenTheNextRuleEnds checks that Ends returns when the next rule ends by time.
func TestEndsTellsWhenTheNextRuleEnds(t *testing.T) {
	s := given(t, Rule{Kind: DMA}, Rule{Kind: DMA, ForNS: 20}, Rule{Kind: Starve, ForNS: 10}, Rule{Kind: Starve, ForNS: 30})
	for _, c := range []struct{ now, at Time }{{100, 110}, {109, 110}, {110, 120}, {119, 120}, {120, 130}, {129, 130}, {130, math.MaxInt64}} {
		if at := s.Ends(c.now); at != c.at {
			t.Errorf("at %d: the next ends at %d, want %d", c.now, at, c.at)
		}
	}
}

// TestFirstRuleStrikes checks that of several matching rules the oldest one that hits is returned,
// and that all of them count the operation. A rule that is over counts nothing.
func TestFirstRuleStrikes(t *testing.T) {
	s := given(t, Rule{Kind: CQEError, Every: 2}, Rule{Kind: CQEError, Limit: 2}, Rule{Kind: CQEError, Nth: 4}, Rule{Kind: Reset})
	var hits []uint32
	for range 6 {
		id := uint32(0)
		if a := s.Hit(200, CQEError, &Operation{Opcode: abi.OpSend}); a != nil {
			id = a.ID
		}
		hits = append(hits, id)
	}
	if !slices.Equal(hits, []uint32{2, 1, 2, 1, 0, 1}) {
		t.Errorf("rules %v strike", hits)
	}
	for i, want := range []struct{ seen, hits uint64 }{{6, 3}, {3, 2}, {4, 0}, {0, 0}} {
		if a := s.Rules()[i]; a.Seen != want.seen || a.Hits != want.hits {
			t.Errorf("rule %d: %d seen, %d hit, want %+v", a.ID, a.Seen, a.Hits, want)
		}
	}
}

// TestWhatRulesMatch checks that a rule matches operations that have everything it names, whatever
// else they have.
func TestWhatRulesMatch(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		hit  []Operation
		miss []Operation
	}{
		{Rule{Kind: CQEError}, []Operation{{}, {QP: 1, Opcode: abi.OpSend}}, nil},
		{
			Rule{Kind: CQEError, QP: 1, Opcode: "send"},
			[]Operation{{QP: 1, Opcode: abi.OpSend}},
			[]Operation{{}, {QP: 1, Opcode: abi.OpWrite}, {QP: 2, Opcode: abi.OpSend}, {QP: 1}},
		},
		{Rule{Kind: EventLost, CQ: 3}, []Operation{{CQ: 3, Event: "cq"}, {CQ: 3}}, []Operation{{}, {CQ: 4, Event: "cq"}, {QP: 3}}},
		{Rule{Kind: EventLost, QP: 3, Event: "QP-fatal"}, []Operation{{QP: 3, Event: "QP-fatal"}}, []Operation{{QP: 3, Event: "cq"}, {QP: 4, Event: "QP-fatal"}}},
		{Rule{Kind: CommandFail, Command: "RegMR"}, []Operation{{Command: abi.AdminOpRegMR}}, []Operation{{}, {Command: abi.AdminOpAllocPD}}},
	} {
		for want, list := range map[bool][]Operation{true: c.hit, false: c.miss} {
			for _, o := range list {
				if hit := given(t, c.rule).Hit(200, c.rule.Kind, &o); (hit != nil) != want {
					t.Errorf("%+v and %+v: strikes %v", c.rule, o, !want)
				}
			}
		}
	}
}

// TestStatusOfRules checks that a command or a work request ends with the rule's status, or with
// the default.
func TestStatusOfRules(t *testing.T) {
	for _, c := range []struct {
		kind   Kind
		status string
		want   uint32
	}{
		{CommandFail, "", uint32(abi.StatusNoResources)},
		{CommandFail, "BUSY", uint32(abi.StatusBusy)},
		{CQEError, "", uint32(abi.WCGeneralErr)},
		{CQEError, "remote-access-error", uint32(abi.WCRemAccessErr)},
		{DMA, "", 0},
	} {
		if st := given(t, Rule{Kind: c.kind, Status: c.status}).Rules()[0].Status(); st != c.want {
			t.Errorf("%s with %q: %d, want %d", c.kind, c.status, st, c.want)
		}
	}
}

// TestNoStatusOfNoError checks that the statuses offered to operators are exactly those that a rule
// may name.
func TestNoStatusOfNoError(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		lists []string
		no    []string
	}{
		{CommandFail, statusNames(), []string{"ok"}},
		{CQEError, completionNames(), []string{"success", name(abi.WCWRFlushErr.String())}},
	} {
		for _, status := range c.lists {
			if _, err := (&Set{}).Add(0, Rule{Kind: c.kind, Status: status}); err != nil {
				t.Errorf("%s offers %s: %v", c.kind, status, err)
			}
		}
		for _, status := range c.no {
			_, err := (&Set{}).Add(0, Rule{Kind: c.kind, Status: status})
			if err == nil || slices.Contains(c.lists, status) {
				t.Errorf("%s takes or offers %s", c.kind, status)
			}
			for _, offered := range c.lists {
				if !strings.Contains(err.Error(), offered) {
					t.Errorf("%s: %v does not offer %s", c.kind, err, offered)
				}
			}
		}
	}
	for _, want := range []string{EventName(abi.EventQPFatal), EventName(abi.EventLinkState), EventName(abi.EventLastWQE)} {
		if !slices.Contains(eventNames(), want) {
			t.Errorf("event %s is not offered", want)
		}
	}
	for _, n := range slices.Concat(statusNames(), completionNames(), eventNames()) {
		if n == "" || strings.ContainsAny(n, "( ") {
			t.Errorf("%q is no name", n)
		}
	}
}

// TestRulesMakeRoom checks that ended rules stay visible until their room is needed.
func TestRulesMakeRoom(t *testing.T) {
	add := func(s *Set, now Time, r Rule) int {
		t.Helper()
		if _, err := s.Add(now, r); err != nil {
			t.Fatal(err)
		}
		return len(s.Rules())
	}
	s := &Set{}
	add(s, 0, Rule{Kind: DMA, ForNS: 10})
	for i := 1; i < MaxRules; i++ {
		if n := add(s, 20, Rule{Kind: DMA}); n != i+1 {
			t.Fatalf("%d rules, want %d", n, i+1)
		}
	}
	if n := add(s, 20, Rule{Kind: DMA}); n != MaxRules || s.Rules()[0].ID != 2 {
		t.Errorf("%d rules, the oldest is %d", n, s.Rules()[0].ID)
	}
	if _, err := s.Add(20, Rule{Kind: DMA}); err == nil {
		t.Error("one rule too many")
	}
	if !s.Remove(5) || s.Remove(5) || len(s.Rules()) != MaxRules-1 {
		t.Errorf("%d rules after one was taken back", len(s.Rules()))
	}
	if n := add(s, 20, Rule{Kind: DMA}); n != MaxRules || s.Rules()[n-1].ID != MaxRules+2 {
		t.Errorf("%d rules, the newest is %d", n, s.Rules()[n-1].ID)
	}
}
