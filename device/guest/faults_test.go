package guest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
)

// patient is a function with faults, which records what happens to it.
type patient struct {
	Faults
	at    falcon.Time
	said  []string
	links []bool // calls of Faults.changed
}

func newPatient(t *testing.T, rules ...fault.Rule) *patient {
	t.Helper()
	p := &patient{at: 1e9}
	p.Faults.f, p.Faults.now, p.Faults.changed = p, &p.at, func(on bool) { p.links = append(p.links, on) }
	for _, r := range rules {
		if err := p.Inject(p.at, r); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *patient) say(format string, args ...any) {
	p.said = append(p.said, fmt.Sprintf(format, args...))
}
func (p *patient) Verbs() *rdma.Function          { return nil }
func (p *patient) resumeAdmin(falcon.Time)        { p.say("commands") }
func (p *patient) resetByFault(falcon.Time)       { p.say("reset") }
func (p *patient) linkChanged(falcon.Time)        { p.say("link down %v", p.LinkDown()) }
func (p *patient) starve(on bool)                 { p.say("starve %v", on) }
func (p *patient) Fault(code abi.Fault, _ string) { p.say("fault %v", code) }

func (p *patient) deliver(e *lateEvent) {
	if e.async != nil {
		p.say("event %d", e.async.Number)
		return
	}
	p.say("CQ %d", e.cqn)
}

// says returns what happened since the last call.
func (p *patient) says() (said []string) {
	said, p.said = p.said, nil
	return said
}

// advance runs what is due at a time after the beginning.
func (p *patient) advance(after falcon.Time) []string {
	p.at = 1e9 + after
	if p.in != nil {
		p.in.advance(p.at)
	}
	return p.says()
}

// due returns the deadline, relative to the beginning.
func (p *patient) due() falcon.Time { return p.in.deadline(p.at) - 1e9 }

const noDeadline = math.MaxInt64 - 1e9

// TestLateEventsKeepTheirOrder checks that delayed events are sent when they are due, to the
// nanosecond, and those with the same time in their original order. When there is no room, an event
// is sent at once.
func TestLateEventsKeepTheirOrder(t *testing.T) {
	p := newPatient(t, fault.Rule{Kind: fault.EventLate, DelayNS: 100, QP: 1, Event: "QP-fatal"}, fault.Rule{Kind: fault.EventLate})
	if p.due() != noDeadline {
		t.Errorf("something is due in %d ns", p.due())
	}
	late := func(at falcon.Time, e *abi.AsyncEvent, cqn uint32) {
		t.Helper()
		if p.at = 1e9 + at; e != nil && !p.in.asyncEvent(e) || e == nil && !p.in.cqEvent(cqn) {
			t.Error("the event is not taken care of")
		}
	}
	late(0, nil, 1)                                                   // at 5e6, the default
	late(0, &abi.AsyncEvent{Type: abi.EventQPFatal, Number: 1}, 0)    // at 100
	late(1, &abi.AsyncEvent{Type: abi.EventQPFatal, Number: 1}, 0)    // at 101
	late(1, &abi.AsyncEvent{Type: abi.EventQPFatal, Number: 2}, 0)    // the other rule: at 5e6+1
	late(0, nil, 3)                                                   // at 5e6, behind the first
	late(0, &abi.AsyncEvent{Type: abi.EventLinkState, Number: 77}, 0) // the same
	for _, c := range []struct {
		at   falcon.Time
		want string
		next falcon.Time
	}{
		{99, "", 100},
		{100, "event 1", 101},
		{101, "event 1", 5e6},
		{5e6 - 1, "", 5e6},
		{5e6 + 1, "CQ 1, CQ 3, event 77, event 2", noDeadline},
	} {
		if said := strings.Join(p.advance(c.at), ", "); said != c.want || p.due() != c.next {
			t.Errorf("at %d: %q, want %q; the next at %d, want %d", c.at, said, c.want, p.due(), c.next)
		}
	}
	for n := range uint32(maxLate) {
		late(6e6, nil, n)
	}
	if p.said != nil || len(p.in.late) != maxLate {
		t.Errorf("%d events wait, %q went out", len(p.in.late), p.said)
	}
	if late(6e6, nil, 999); !slices.Equal(p.says(), []string{"CQ 999"}) {
		t.Error("an event for which there is no room does not go out at once")
	}
	p.End(p.at)
	if said := p.says(); len(said) != maxLate || said[0] != "CQ 0" ||
		said[maxLate-1] != fmt.Sprintf("CQ %d", maxLate-1) {
		t.Errorf("%d events go out at the end", len(said))
	}
	if !slices.Equal(p.links, []bool{true, false}) {
		t.Errorf("things go wrong: %v", p.links)
	}
}

// TestALostEventNeverComesAndARepeatedOneComesTwice checks that a lost event is never sent, and
// that a repeated event comes once at once and once later, so that the two are not merged.
func TestALostEventNeverComesAndARepeatedOneComesTwice(t *testing.T) {
	p := newPatient(t, fault.Rule{Kind: fault.EventLost, CQ: 1}, fault.Rule{Kind: fault.EventDuplicate, Event: "cq"}, fault.Rule{Kind: fault.EventLost, Event: "admin"})
	for _, c := range []struct {
		cqn   uint32
		taken bool
		waits int
	}{{1, true, 0}, {2, false, 1}, {abi.AdminCQ, true, 1}} {
		if taken := p.in.cqEvent(c.cqn); taken != c.taken || len(p.in.late) != c.waits {
			t.Errorf("CQ %#x: taken %v, %d wait", c.cqn, taken, len(p.in.late))
		}
	}
	if p.due() != duplicateGap || p.advance(duplicateGap-1) != nil ||
		!slices.Equal(p.advance(duplicateGap), []string{"CQ 2"}) {
		t.Errorf("due at %d, %q", p.due(), p.said)
	}
	p.in.cqEvent(2)
	p.in.forget() // a reset: no event from before may follow
	if said := p.advance(1e9); said != nil || p.due() != noDeadline {
		t.Errorf("%q after a reset, due %d", said, p.due())
	}
}

// TestARuleAppliesToTheEventsOfItsObject checks that a rule for a queue pair or a completion queue
// applies to events about it, and not to events about other objects with the same number.
func TestARuleAppliesToTheEventsOfItsObject(t *testing.T) {
	events := []abi.EventType{
		abi.EventQPFatal, abi.EventQPReqErr, abi.EventQPAccessErr, abi.EventCommEst, abi.EventSQDrained, abi.EventLastWQE,
		abi.EventCQError, abi.EventSRQLimit, abi.EventLinkState, abi.EventConnectRequest,
	}
	const qps = 6 // the first six are about queue pairs
	for i, typ := range events {
		for _, c := range []struct {
			rule fault.Rule
			want bool
		}{
			{fault.Rule{Kind: fault.EventLost, QP: 5}, i < qps},
			{fault.Rule{Kind: fault.EventLost, QP: 6}, false},
			{fault.Rule{Kind: fault.EventLost, CQ: 5}, typ == abi.EventCQError},
			{fault.Rule{Kind: fault.EventLost, Event: fault.EventName(typ)}, true},
			{fault.Rule{Kind: fault.EventLost, Event: "cq"}, false},
		} {
			if taken := newPatient(t, c.rule).in.asyncEvent(&abi.AsyncEvent{Type: typ, Number: 5}); taken != c.want {
				t.Errorf("%v by %+v: %v", typ, c.rule, taken)
			}
		}
	}
}

// TestALinkFlapsForItsTime checks that the link goes down at the end of the Step in which work was
// done, and comes up after its time. Another flap in between starts that time anew.
func TestALinkFlapsForItsTime(t *testing.T) {
	p := newPatient(t, fault.Rule{Kind: fault.LinkFlap, DelayNS: 1000, Limit: 2})
	if p.in.Work(1, abi.OpSend); p.said != nil || !p.LinkDown() {
		t.Errorf("link down %v, %q in the middle of a Step", p.LinkDown(), p.said)
	}
	if said := p.advance(0); !slices.Equal(said, []string{"link down true"}) || p.due() != 1000 {
		t.Errorf("%q, due in %d", said, p.due())
	}
	p.at = 1e9 + 400
	p.in.Work(1, abi.OpSend)
	if said := p.advance(401); !slices.Equal(said, []string{"link down true"}) || p.due() != 1400 {
		t.Errorf("%q, due in %d", said, p.due())
	}
	if said := p.advance(1399); said != nil || !p.LinkDown() {
		t.Errorf("%q too early", said)
	}
	if said := p.advance(1400); !slices.Equal(said, []string{"link down false"}) || p.due() != noDeadline ||
		p.LinkDown() {
		t.Errorf("%q, due in %d", said, p.due())
	}
	p.in.Work(1, abi.OpSend) // the rule has reached its limit
	if said := p.advance(1500); said != nil {
		t.Errorf("%q after the rule was over", said)
	}
}

// TestCreditsAreWithheldWhileARuleIsInForce checks that credits are withheld from the function only
// while a rule is in force.
func TestCreditsAreWithheldWhileARuleIsInForce(t *testing.T) {
	p := newPatient(t, fault.Rule{Kind: fault.Starve, ForNS: 1000})
	if said := p.says(); !slices.Equal(said, []string{"starve true"}) || p.due() != 1000 {
		t.Errorf("%q, due in %d", said, p.due())
	}
	if said := p.advance(999); said != nil {
		t.Errorf("%q too early", said)
	}
	if said := p.advance(1000); !slices.Equal(said, []string{"starve false"}) {
		t.Errorf("%q", said)
	}
	if said := p.advance(2000); said != nil {
		t.Errorf("%q again", said)
	}
}

// TestWorkRequestsCauseTheFaultsOfTheirRules checks that a work request can make a rule reset the
// function at the end of its Step, stop it, or end the request with an error, and that nothing
// happens without a rule for it.
func TestWorkRequestsCauseTheFaultsOfTheirRules(t *testing.T) {
	for _, c := range []struct {
		kind   fault.Kind
		status abi.WCStatus
		now    []string
		then   []string
	}{
		{fault.DMA, abi.WCSuccess, nil, nil},
		{fault.Reset, abi.WCSuccess, nil, []string{"reset"}},
		{fault.FunctionFault, abi.WCSuccess, []string{"fault " + abi.FaultMemory.String()}, nil},
		{fault.CQEError, abi.WCGeneralErr, nil, nil},
	} {
		p := newPatient(t, fault.Rule{Kind: c.kind})
		if st := p.in.Work(3, abi.OpSend); st != c.status || !slices.Equal(p.says(), c.now) {
			t.Errorf("%s: %v", c.kind, st)
		}
		if said := p.advance(1); !slices.Equal(said, c.then) {
			t.Errorf("%s: %q at the end of the Step", c.kind, said)
		}
		if said := p.advance(2); said != nil {
			t.Errorf("%s: %q again", c.kind, said)
		}
		if broken := p.in.Access(); broken != (c.kind == fault.DMA) {
			t.Errorf("%s: memory is broken: %v", c.kind, broken)
		}
	}
	p := newPatient(t, fault.Rule{Kind: fault.WrongKey, QP: 3}, fault.Rule{Kind: fault.StuckQueue, QP: 4})
	for qpn := range uint32(6) {
		if p.in.Key(qpn) != (qpn == 3) || p.in.Stuck(qpn) != (qpn == 4) || p.in.Hold(qpn) {
			t.Errorf("queue pair %d is not as the rules say", qpn)
		}
	}
	p = newPatient(t, fault.Rule{Kind: fault.CommandFail, Command: "RegMR", Status: "busy"})
	for op, want := range map[abi.AdminOp]bool{abi.AdminOpRegMR: true, abi.AdminOpAllocPD: false} {
		if st, fails := p.in.command(&abi.AdminCmd{Opcode: op}); fails != want || fails && st != abi.StatusBusy ||
			!fails && st != abi.StatusOK {
			t.Errorf("%v: %v, fails %v", op, st, fails)
		}
	}
	if p.in.postpone() {
		t.Error("commands wait without a profile")
	}
}

// TestAProfileDelaysCommandsOnceAtATime checks that a profile leaves the admin queue alone for a
// while, once at a time, and that the queue is looked at after that.
func TestAProfileDelaysCommandsOnceAtATime(t *testing.T) {
	p := newPatient(t)
	if err := p.UseProfile(HostileProfile, 3); err != nil {
		t.Fatal(err)
	}
	for !p.in.postpone() {
	}
	at := p.due()
	if !p.in.postpone() || p.due() != at || at <= 0 || at > mostCommand {
		t.Errorf("commands wait until %d, then until %d", at, p.due())
	}
	if said := p.advance(at - 1); said != nil {
		t.Errorf("%q too early", said)
	}
	if said := p.advance(at); !slices.Equal(said, []string{"commands"}) || p.in.adminFrom != 0 {
		t.Errorf("%q", said)
	}
	if said := p.advance(at + 1); said != nil {
		t.Errorf("%q again", said)
	}
}

// TestAFunctionWithoutRulesHasNoFaults checks that a function without rules and profile is like one
// that never had any.
func TestAFunctionWithoutRulesHasNoFaults(t *testing.T) {
	p := newPatient(t)
	if p.LinkDown() || p.Rules() != nil || p.Remove(0, 0) {
		t.Error("there are faults")
	}
	p.DropProfile(0)
	p.End(0)
	if p.links != nil {
		t.Errorf("things go wrong: %v", p.links)
	}
	if err := p.Inject(0, fault.Rule{Kind: "none"}); err == nil || p.in != nil ||
		!slices.Equal(p.links, []bool{true, false}) {
		t.Errorf("%v, things go wrong: %v", err, p.links)
	}
	if err := p.UseProfile("kind", 3); err == nil || p.in != nil || !strings.Contains(err.Error(), HostileProfile) {
		t.Error(err)
	}
	p.links = nil
	for _, r := range []fault.Rule{{Kind: fault.DMA}, {Kind: fault.Starve}} {
		if err := p.Inject(0, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.UseProfile(HostileProfile, 0); err != nil || p.split.Load() != 1 {
		t.Errorf("%v; messages are cut by %d", err, p.split.Load())
	}
	if name, seed, did := p.Profile(); name != HostileProfile || seed != 0 || did.Sum() != 0 {
		t.Errorf("profile %s %d %+v", name, seed, did)
	}
	if err := p.Inject(0, fault.Rule{Kind: "none"}); err == nil || p.in == nil {
		t.Error("a rule that is refused ends the others")
	}
	if !p.Remove(0, 1) || p.Remove(0, 1) || p.in == nil || len(p.Rules()) != 1 {
		t.Error("the wrong rule was taken back")
	}
	p.DropProfile(0)
	if name, _, _ := p.Profile(); name != "" || p.split.Load() != 0 || p.in == nil {
		t.Errorf("profile %q, messages are cut by %d", name, p.split.Load())
	}
	if !slices.Equal(p.says(), []string{"starve true"}) || !p.Remove(0, 2) ||
		!slices.Equal(p.says(), []string{"starve false"}) {
		t.Errorf("%q", p.said)
	}
	if p.in != nil || !slices.Equal(p.links, []bool{true, false}) {
		t.Errorf("things go wrong: %v", p.links)
	}
	if err := p.UseProfile(HostileProfile, 9); err != nil || p.split.Load() != 9 {
		t.Errorf("%v; messages are cut by %d", err, p.split.Load())
	}
	if p.End(0); p.in != nil || p.split.Load() != 0 {
		t.Error("a profile has no end")
	}
}
