package rue

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cc"
)

// TestCase92_Policy walks over the queue's occupancy with each combination of the predicates.
func TestCase92_Policy(t *testing.T) {
	p := Policy{Size: 100, Threshold1: 60, Threshold2: 80, Threshold3: 90, Interval: 25000, Packets: 10}
	for _, c := range []struct {
		occupancy               int
		neither, p1, p2, bothOK bool
	}{
		{0, true, true, true, true},
		{59, true, true, true, true},
		{60, false, true, true, true},
		{79, false, true, true, true},
		{80, false, true, false, true},
		{89, false, true, false, true},
		{90, false, false, false, true},
		{99, false, false, false, true},
		{100, false, false, false, false},
		{101, false, false, false, false},
	} {
		got := [4]bool{
			p.Admit(c.occupancy, 25000, 10), p.Admit(c.occupancy, 25001, 10),
			p.Admit(c.occupancy, 25000, 11), p.Admit(c.occupancy, 25001, 11),
		}
		if want := [4]bool{c.neither, c.p1, c.p2, c.bothOK}; got != want {
			t.Errorf("occupancy %d: neither, P1, P2, both = %v, want %v", c.occupancy, got, want)
		}
	}
}

func TestCase92_Defaults(t *testing.T) {
	c := Hardware()
	if !c.Admit(MaxQueue-1, 0, 0) || c.Admit(MaxQueue, 1<<40, 1023) {
		t.Error("by default everything is admitted until the queue is full")
	}
	if c.Interval != 131*1024 || c.Packets != 512 || c.Size != 65536 || c.AnswersAtOnce() || c.Check() != nil {
		t.Errorf("hardware: %+v", c)
	}
	if c = Immediate(); !c.AnswersAtOnce() || c.Check() != nil {
		t.Errorf("immediate: %+v", c)
	}
}

func TestAnInvalidConfigurationIsRefused(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"service":    func(c *Config) { c.Service = -1 },
		"latency":    func(c *Config) { c.Latency = -1 },
		"no queue":   func(c *Config) { c.Size = 0 },
		"long queue": func(c *Config) { c.Size = MaxQueue + 1 },
		"order":      func(c *Config) { c.Threshold1, c.Threshold2 = 9, 8 },
		"above size": func(c *Config) { c.Threshold3 = MaxQueue; c.Size = 5 },
		"interval":   func(c *Config) { c.Interval = -1 },
	} {
		c := Hardware()
		edit(&c)
		if c.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// nack is a NACK event on a path without congestion, an RTT after the last change.
func nack(code uint8) Event {
	return Event{
		Type: TypeNack, NackCode: code, T1: 1000, T2: 1050, T3: 1050, T4: 1100,
		State: cc.State{Fcwnd: 32 * cc.One, Ncwnd: 100, RTT: 100, Direction: cc.Increase, BaseDelay: 191, Select: cc.DelayFabric},
	}
}

// TestCase86_WindowNack: code 5 is reserved in 0.9, but a peer of an older draft means a drop by
// it.
func TestCase86_WindowNack(t *testing.T) {
	for _, on := range []bool{false, true} {
		p := cc.HardwareParams()
		p.MaxDecreaseOnDrop = on
		u := New(cc.NewSwift(p))
		var r Result
		e := nack(nackWindow)
		u.Process(&e, 1100, &r)
		want := uint32(32 * cc.One)
		if on {
			want /= 2
		}
		if r.State.Fcwnd != want {
			t.Errorf("option %v: fcwnd %d, want %d", on, r.State.Fcwnd, want)
		}
		e.State = r.State
		u.Process(&e, 1150, &r)
		if r.State.Fcwnd != want {
			t.Errorf("option %v: cut twice within an RTT: %d", on, r.State.Fcwnd)
		}
		e = nack(nackResource)
		u.Process(&e, 1100, &r)
		if r.State.Fcwnd < 32*cc.One {
			t.Errorf("option %v: a resource NACK cut fcwnd to %d", on, r.State.Fcwnd)
		}
	}
}

func TestCase89_OnlyExhaustionCutsTheNICWindow(t *testing.T) {
	u := New(cc.NewSwift(cc.HardwareParams()))
	for code := range uint8(10) {
		e := nack(code)
		var r Result
		u.Process(&e, 1100, &r)
		if got, cut := r.State.Ncwnd, code == nackResource; (got == 50) != cut || !cut && got < 100 {
			t.Errorf("NACK code %d: ncwnd %d", code, got)
		}
	}
}

// The way through the binary queues computes what the direct way does.
func TestBinaryAndDirectAgree(t *testing.T) {
	p := cc.HardwareParams()
	p.PLB = true
	u := New(cc.NewSwift(p))
	state := cc.State{}
	cc.NewSwift(p).Init(&state)
	seed := uint32(1)
	next := func(n uint32) uint32 {
		seed = seed*1664525 + 1013904223
		return seed >> 8 % n
	}
	now := uint32(0)
	for i := range 2000 {
		now = (now + next(2000)) & cc.TimeMask
		t1 := (now - next(1000)) & cc.TimeMask
		e := Event{
			Conn: 7, Type: Type(next(3)), T1: t1, T2: (t1 + 20) & cc.TimeMask, T3: (t1 + 30) & cc.TimeMask, T4: now,
			RetransmitCount: uint8(next(7)), NackCode: uint8(next(9)), Hops: uint8(next(16)), RxLevel: uint8(next(32)),
			Acked: uint16(next(64)), Eack: true, EackDrop: next(2) == 0, State: state,
		}
		var direct, binary Result
		u.Process(&e, now, &direct)
		parsed, _ := ParseEvent(e.Append(nil))
		u.Process(&parsed, now, &binary)
		binary, _ = ParseResult(binary.Append(nil))
		binary.State.Select = direct.State.Select
		if binary != direct {
			t.Fatalf("event %d: %+v, want %+v", i, binary, direct)
		}
		state = direct.State
	}
}

// TestTheSmallestConfigurationIsValid: the smallest values that a configuration may have.
func TestTheSmallestConfigurationIsValid(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"no work":        func(c *Config) { c.Service = 0 },
		"no latency":     func(c *Config) { c.Latency = 0 },
		"no interval":    func(c *Config) { c.Interval = 0 },
		"a place":        func(c *Config) { c.Size, c.Threshold1, c.Threshold2, c.Threshold3 = 1, 0, 0, 0 },
		"all thresholds": func(c *Config) { c.Size, c.Threshold1, c.Threshold2, c.Threshold3 = 7, 7, 7, 7 },
	} {
		c := Hardware()
		edit(&c)
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.AnswersAtOnce() {
			t.Errorf("%s: it answers at once", name)
		}
	}
	for name, edit := range map[string]func(*Config){
		"below 0":           func(c *Config) { c.Threshold1 = -1 },
		"the second, third": func(c *Config) { c.Threshold1, c.Threshold2, c.Threshold3 = 1, 3, 2 },
	} {
		c := Hardware()
		if edit(&c); c.Check() == nil {
			t.Errorf("thresholds, %s: accepted", name)
		}
	}
}
