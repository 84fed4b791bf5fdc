package fault

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// strikes returns which of n operations a rule hits, counted from 1.
func strikes(t *testing.T, r Rule, n int, o func(i int) Operation) (hit []int) {
	t.Helper()
	var s Set
	if _, err := s.Add(0, r); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= n; i++ {
		op := o(i)
		if s.Hit(Time(i), r.Kind, &op) != nil {
			hit = append(hit, i)
		}
	}
	return hit
}

func TestARuleStrikesTheOperationsItNames(t *testing.T) {
	any1 := func(int) Operation { return Operation{QP: 7, Opcode: abi.OpSend} }
	for _, c := range []struct {
		name string
		rule Rule
		op   func(int) Operation
		want []int
	}{
		{"all", Rule{Kind: CQEError}, any1, []int{1, 2, 3, 4, 5, 6}},
		{"third", Rule{Kind: CQEError, Nth: 3}, any1, []int{3}},
		{"every second", Rule{Kind: CQEError, Every: 2}, any1, []int{2, 4, 6}},
		{"two", Rule{Kind: CQEError, Limit: 2}, any1, []int{1, 2}},
		{"for a time", Rule{Kind: CQEError, ForNS: 4}, any1, []int{1, 2, 3}},
		{"another QP", Rule{Kind: CQEError, QP: 8}, any1, nil},
		{"second of an opcode", Rule{Kind: CQEError, Opcode: "read", Nth: 2}, func(i int) Operation {
			return Operation{Opcode: map[bool]abi.Opcode{true: abi.OpRead, false: abi.OpWrite}[i%2 == 0]}
		}, []int{4}},
		{"a command", Rule{Kind: CommandFail, Command: "regmr"}, func(i int) Operation {
			return Operation{Command: abi.AdminOp(i)}
		}, []int{int(abi.AdminOpRegMR)}},
		{"an event", Rule{Kind: EventLost, Event: "admin"}, func(i int) Operation {
			return Operation{Event: []string{"cq", "admin"}[i%2]}
		}, []int{1, 3, 5}},
	} {
		got := strikes(t, c.rule, 6, c.op)
		if len(got) != len(c.want) {
			t.Errorf("%s: strikes %v, want %v", c.name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: strikes %v, want %v", c.name, got, c.want)
			}
		}
	}
}

// TestASeedRepeatsItsChoices checks that a seed repeats its choices, and another seed makes others.
func TestASeedRepeatsItsChoices(t *testing.T) {
	op := func(int) Operation { return Operation{} }
	a, b, c := strikes(t, Rule{Kind: DMA, Probability: 0.2, Seed: 1}, 1000, op), strikes(t, Rule{Kind: DMA, Probability: 0.2, Seed: 1}, 1000, op), strikes(t, Rule{Kind: DMA, Probability: 0.2, Seed: 2}, 1000, op)
	if len(a) < 150 || len(a) > 250 {
		t.Errorf("%d of 1000 strike with probability 0.2", len(a))
	}
	same := func(x, y []int) bool {
		for i := range min(len(x), len(y)) {
			if x[i] != y[i] {
				return false
			}
		}
		return len(x) == len(y)
	}
	if !same(a, b) || same(a, c) {
		t.Error("the same seed differs, or another one does not")
	}
}

// TestAKindTakesOnlyItsFields checks that each kind of fault takes the fields that apply to it, up to their limits,
// and refuses the others by name.
func TestAKindTakesOnlyItsFields(t *testing.T) {
	work := []Kind{CQEError, Reset, FunctionFault, LinkFlap}
	events := []Kind{EventLost, EventDuplicate, EventLate}
	strike := slices.DeleteFunc(Kinds(), func(k Kind) bool { return k == StuckQueue || k == Starve }) // the others are states
	for _, c := range []struct {
		rule  Rule
		field string
		of    []Kind
	}{
		{Rule{}, "", Kinds()},
		{Rule{ForNS: 1}, "for", Kinds()},
		{Rule{Seed: 1}, "seed", Kinds()},
		{Rule{Opcode: "send"}, "opcode", work},
		{Rule{Command: "RegMR"}, "command", []Kind{CommandFail}},
		{Rule{Event: "cq"}, "event", events},
		{Rule{Event: "admin"}, "event", events},
		{Rule{Event: "QP-fatal"}, "event", events},
		{Rule{CQ: 1}, "cq", slices.Concat(events, []Kind{CQOverrun})},
		{Rule{QP: 1}, "qp", slices.Concat(work, events, []Kind{WrongKey, StuckQueue})},
		{Rule{Nth: 1}, "nth", strike},
		{Rule{Every: 1}, "every", strike},
		{Rule{Probability: 1}, "probability", strike},
		{Rule{Limit: 1}, "limit", strike},
		{Rule{DelayNS: 1}, "delay", []Kind{EventLate, RegisterLate, LinkFlap}},
		{Rule{DelayNS: int64(time.Minute)}, "delay", []Kind{EventLate, RegisterLate, LinkFlap}},
		{Rule{Status: "no-resources"}, "status", []Kind{CommandFail}},
		{Rule{Status: "remote-access-error"}, "status", []Kind{CQEError}},
	} {
		for _, k := range Kinds() {
			r := c.rule
			r.Kind = k
			var s Set
			_, err := s.Add(0, r)
			switch takes := slices.Contains(c.of, k); {
			case takes && err != nil:
				t.Errorf("%+v: %v", r, err)
			case !takes && (err == nil || !strings.HasPrefix(err.Error(), string(k)+": ") || !strings.Contains(err.Error(), c.field)):
				t.Errorf("%+v: %v, want that %s has no %s", r, err, k, c.field)
			}
		}
	}
}

// TestARefusedRuleSaysWhatIsRight checks that the error for a wrong rule says what is wrong and what would be right.
func TestARefusedRuleSaysWhatIsRight(t *testing.T) {
	for want, rules := range map[string][]Rule{
		`unknown fault "bad"; use one of event-lost`:                          {{Kind: "bad"}},
		`dma: opcode send: only faults of work`:                               {{Kind: DMA, Opcode: "send"}},
		`cqe-error: unknown opcode "sing"; use one of atomic-write`:           {{Kind: CQEError, Opcode: "sing"}},
		`command-fail: unknown command "Fly"; write an admin command of docs`: {{Kind: CommandFail, Command: "Fly"}},
		`event-lost: unknown event "x"; use one of cq, admin`:                 {{Kind: EventLost, Event: "x"}},
		`cqe-error: event cq: only`:                                           {{Kind: CQEError, Event: "cq"}},
		`starve: nth, every, probability or limit`: {
			{Kind: Starve, Nth: 3}, {Kind: Starve, Every: 3}, {Kind: Starve, Probability: 0.5}, {Kind: Starve, Limit: 3},
		},
		`reset: nth and every 1: give one`: {{Kind: Reset, Nth: 1, Every: 2}},
		`dma: probability 1.5: write 0 to`: {{Kind: DMA, Probability: 1.5}},
		`dma: probability -1: write 0 to`:  {{Kind: DMA, Probability: -1}},
		`event-late: for or delay -1s: it is negative`: {
			{Kind: EventLate, ForNS: -int64(time.Second)},
			{Kind: EventLate, DelayNS: -int64(time.Second)},
			{Kind: EventLate, ForNS: 1, DelayNS: -int64(time.Second)},
		},
		`event-late: delay 1m0.000000001s: a minute`:                                {{Kind: EventLate, DelayNS: int64(time.Minute) + 1}},
		`cqe-error: status "success" cannot be injected; use one of local-length`:   {{Kind: CQEError, Status: "success"}},
		`command-fail: status "ok" cannot be injected; use one of invalid-argument`: {{Kind: CommandFail, Status: "ok"}},
	} {
		for _, r := range rules {
			var s Set
			if _, err := s.Add(0, r); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%+v: %v, want %s…", r, err, want)
			}
		}
	}
	var s Set
	for range MaxRules {
		if _, err := s.Add(0, Rule{Kind: DMA, ForNS: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Add(5, Rule{Kind: DMA}); err == nil || !strings.Contains(err.Error(), "clear some") {
		t.Errorf("one rule too many: %v", err)
	}
	if _, err := s.Add(11, Rule{Kind: DMA}); err != nil || len(s.Rules()) != 1 {
		t.Errorf("those that are over make no room: %v, %d", err, len(s.Rules()))
	}
	if !s.Remove(0) || s.Remove(0) {
		t.Error("clear")
	}
}
