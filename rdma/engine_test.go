package rdma

import (
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestConfigDefaults: values that are unset or invalid take the default; the smallest valid ones
// are kept. Queue pairs get the bounds that concern them.
func TestConfigDefaults(t *testing.T) {
	defaults := Config{TurnOps: 8, TurnBytes: 64 << 10, Turns: 64, Quantum: 16 << 10, Linger: 500e6, PollTime: 200e3}
	least := Config{1, 1, 1, 1, 1, 1}
	for set, want := range map[Config]Config{{}: defaults, {-1, -1, -1, -1, -1, -1}: defaults, least: least} {
		e := NewEngine(set)
		bounds := verbs.Bounds{TurnOps: want.TurnOps, TurnBytes: want.TurnBytes, Linger: want.Linger, PollTime: want.PollTime}
		if e.cfg != want || e.shared.Bounds != bounds || e.sched.active.Quantum != want.Quantum {
			t.Errorf("%+v: %+v, bounds %+v, quantum %d", set, e.cfg, e.shared.Bounds, e.sched.active.Quantum)
		}
	}
}

// TestClosedFunctionsCount: the sum of an engine's counters does not change when functions close,
// even if they are closed more than once.
func TestClosedFunctionsCount(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	for range 3 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 100))
		p.a.send.wait(1)
	}
	e, a, b := p.hosts[0].e, p.hosts[0].fn, p.hosts[1].fn
	before := e.Stats()
	if before.PushesTx != 3 || before.PushesRx != 3 {
		t.Fatalf("counted %+v", before)
	}
	for i, f := range []*Function{a, a, b} {
		f.Close(p.now)
		if s := e.Stats(); s.PushesTx != 3 || s.PushesRx != 3 || s.BytesTx != before.BytesTx {
			t.Errorf("after %d closed: %+v", i, s)
		}
	}
	if len(e.fns.list) != 0 {
		t.Errorf("%d functions are left", len(e.fns.list))
	}
}

// TestFunctionWeight: a function of weight 2 issues two quanta in its turn. One of weight 0 issues
// one, like one of weight 1.
func TestFunctionWeight(t *testing.T) {
	for weight, want := range map[int][][2]uint64{
		0: {{4, 0}, {2, 0}, {0, 4}, {0, 2}},
		1: {{4, 0}, {2, 0}, {0, 4}, {0, 2}},
		2: {{4, 0}, {4, 0}, {3, 0}, {0, 4}, {0, 2}},
	} {
		f := newTwoFunctions(t)
		f.hosts[0].fn.SetWeight(weight)
		f.post(f.a, f.ma, f.mb)
		f.post(f.b, f.mb, f.ma)
		for i, want := range want {
			if got := f.run(); got != want {
				t.Errorf("weight %d, run %d: packets issued %v, want %v", weight, i, got, want)
			}
		}
		success(t, f.a.send.wait(20))
		success(t, f.b.send.wait(20))
	}
}

// ways makes destinations that record how they are used.
type ways struct{ made []*way }

type way struct{ wanted, left int }

func (w *ways) To(*verbs.Address, bool) verbs.Destination {
	c := new(way)
	w.made = append(w.made, c)
	return c
}

func (c *way) Want(vtime.Time)                             { c.wanted++ }
func (c *way) Send(vtime.Time, *verbs.Datagram) verbs.Sent { return verbs.Taken }
func (c *way) Leave(vtime.Time)                            { c.left++ }

// TestDestinations: datagrams to an address use Falcon's link if there is no RoCEv2 port, if RoCEv2
// is not chosen, or if RoCEv2 cannot reach the address. Multicast uses RoCEv2 only.
func TestDestinations(t *testing.T) {
	v4, v6 := [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 9}, [16]byte{0: 0xfd, 15: 9}
	port := newPort(t)
	for name, c := range map[string]struct {
		port   *roce.Port
		gid    [16]byte
		chosen bool
		links  int  // of Falcon that are made, and wanted
		none   bool // nothing carries datagrams there
	}{
		"Falcon alone":              {nil, v4, false, 1, false},
		"Falcon alone, a group":     {nil, group(1), false, 0, true},
		"not chosen":                {port, v4, false, 1, false},
		"chosen":                    {port, v4, true, 0, false},
		"of another family":         {port, v6, true, 1, false},
		"a group":                   {port, group(1), false, 0, false},
		"a group of another family": {port, [16]byte{0: 0xff, 1: 5}, false, 0, true},
	} {
		links := new(ways)
		all := &destinations{links: links, port: c.port, roce: func(gid [16]byte) bool { return c.chosen && gid == c.gid }}
		got := all.To(&verbs.Address{GID: c.gid}, true)
		if (got == nil) != c.none {
			t.Errorf("%s: carried by %v", name, got)
			continue
		}
		if got == nil {
			continue
		}
		for range 2 {
			got.Want(1)
		}
		got.Leave(2)
		if len(links.made) != c.links {
			t.Errorf("%s: %d links", name, len(links.made))
			continue
		}
		for _, l := range links.made {
			if l.wanted != 2 || l.left != 1 {
				t.Errorf("%s: %+v", name, *l)
			}
		}
	}
}

// newPort is a port with an IPv4 address.
func newPort(t testing.TB) *roce.Port {
	t.Helper()
	return Wire[*roce.Engine](NewEngine(Config{})).NewPort(netip.AddrFrom4([4]byte{10, 0, 0, 1}), 1500)
}

// TestChosenWireIsKept: the destination over RoCEv2 is made once per handle.
func TestChosenWireIsKept(t *testing.T) {
	all := &destinations{links: new(ways), port: newPort(t), roce: func([16]byte) bool { return true }}
	c := all.To(&verbs.Address{GID: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 9}}, true).(*choice)
	if first := c.now(); first == nil || c.now() != first {
		t.Error("another destination the second time")
	}
}

// TestCountersOfClosedFunctions: the engine's sum contains each function's counters once, while the
// function exists and after it was closed.
func TestCountersOfClosedFunctions(t *testing.T) {
	for _, first := range []int{0, 1} {
		e := NewEngine(Config{})
		h := newWorld(t, worldConfig{}).hosts[0]
		fns := [2]*Function{e.NewFunction(1, h.mem, verbs.Limits{}, h), e.NewFunction(2, h.mem, verbs.Limits{}, h)}
		for i, f := range fns {
			for range 3 + 4*i {
				f.Doorbell(0, &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 0x777})
			}
		}
		for _, f := range []*Function{nil, fns[first], fns[first], fns[1-first]} {
			if f != nil {
				f.Close(0)
			}
			if n := e.Stats().BadDoorbells; n != 10 {
				t.Errorf("%d doorbells are counted of 10", n)
			}
		}
		if len(e.fns.list) != 0 {
			t.Errorf("%d functions are left", len(e.fns.list))
		}
	}
}
