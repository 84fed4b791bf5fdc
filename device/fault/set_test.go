package fault

import (
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// strikes returns which of n operations a rule strikes, from 1.
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

func TestWhich(t *testing.T) {
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

// A seed repeats its decisions, another has others.
func TestSeeds(t *testing.T) {
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

// What is wrong with a rule is said, with what would be right.
func TestRefused(t *testing.T) {
	for want, r := range map[string]Rule{
		`fault "bad": there are event-lost`:                     {Kind: "bad"},
		`dma: opcode send: only faults of work`:                 {Kind: DMA, Opcode: "send"},
		`cqe-error: opcode "sing": there are atomic-write`:      {Kind: CQEError, Opcode: "sing"},
		`command-fail: command "Fly": write it as in docs/abi`:  {Kind: CommandFail, Command: "Fly"},
		`event-lost: event "x": there are cq, admin`:            {Kind: EventLost, Event: "x"},
		`cqe-error: event cq: only`:                             {Kind: CQEError, Event: "cq"},
		`starve: nth, every, probability or limit`:              {Kind: Starve, Nth: 3},
		`reset: nth and every 1: give one`:                      {Kind: Reset, Nth: 1, Every: 2},
		`dma: probability 1.5: write 0 to 1`:                    {Kind: DMA, Probability: 1.5},
		`dma: delay 1s: only event-late and link-flap`:          {Kind: DMA, DelayNS: int64(time.Second)},
		`event-late: delay 2m0s: a minute`:                      {Kind: EventLate, DelayNS: int64(2 * time.Minute)},
		`dma: status x: only`:                                   {Kind: DMA, Status: "x"},
		`cqe-error: status "success": there are local-length`:   {Kind: CQEError, Status: "success"},
		`command-fail: status "ok": there are invalid-argument`: {Kind: CommandFail, Status: "ok"},
	} {
		var s Set
		if _, err := s.Add(0, r); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s…", r, err, want)
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
