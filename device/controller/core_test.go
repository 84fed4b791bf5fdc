package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// side is a fake shard that records its orders.
type side struct {
	told   []string
	refuse error // returned by Set
	is     bool  // returned by Reset
}

func (s *side) say(format string, args ...any) { s.told = append(s.told, fmt.Sprintf(format, args...)) }

func (s *side) Answer(vtime.Time, *conn.Answer)               { s.say("answer") }
func (s *side) Order(vtime.Time, *conn.Order)                 { s.say("order") }
func (s *side) TakeKey(_ vtime.Time, u security.Use, _ cm.SA) { s.say("key of %d", u.Peer) }
func (s *side) ForgetKeys(host cm.HostID)                     { s.say("forget keys of %d", host) }
func (s *side) PeerPorts(_ vtime.Time, host cm.HostID)        { s.say("ports of %d", host) }
func (s *side) Resolve(_ vtime.Time, addr netip.Addr)         { s.say("resolve %s", addr) }
func (s *side) VF(_ vtime.Time, id pfvf.ID) abi.VFHandler     { s.say("look at %s", id); return nil }

func (s *side) Reset(_ vtime.Time, id pfvf.ID) bool           { s.say("reset %s", id); return s.is }
func (s *side) ResetVFs(_ vtime.Time, pf pfvf.ID)             { s.say("reset VFs of %s", pf) }
func (s *side) VFsEnabled(pf pfvf.ID, n int)                  { s.say("%d VFs of %s", n, pf) }
func (s *side) PFLink(_ vtime.Time, pf pfvf.ID, is pfvf.Link) { s.say("link of %s %s", pf, is) }

func (s *side) Set(_ vtime.Time, id pfvf.ID, is *config.Function) error {
	s.say("set %s weight %d", id, is.Weight)
	return s.refuse
}

// nic is a core with two shards that record their orders. Odd VFs belong to the second.
type nic struct {
	*Core
	t     *testing.T
	sides []*side
	home  func(fn uint32) int
	now   vtime.Time
	out   CoreOutput
	log   []string
}

func newNIC(t *testing.T, change ...func(*config.Config)) *nic {
	t.Helper()
	n := &nic{t: t, now: 1e9, home: func(fn uint32) int { return int(fn & 1) }}
	cfg := devicetest.Config(t, 1, "/nowhere", [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	for _, f := range change {
		f(cfg)
	}
	var err error
	n.Core, err = NewCore(CoreConfig{
		NIC: cfg, Shards: 2, Rand: devicetest.Seeded(1), Home: func(fn uint32) int { return n.home(fn) },
		Log: func(_ vtime.Time, _ slog.Level, msg string, args ...any) {
			n.log = append(n.log, strings.TrimSuffix(fmt.Sprintln(append([]any{msg}, args...)...), "\n"))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		s := &side{is: true}
		n.sides = append(n.sides, s)
		n.Line(i).Serve(func(list []Order) {
			for _, o := range list {
				o(s, n.now)
			}
			n.Line(i).Flush()
		})
	}
	n.told()
	return n
}

// told steps the core until it is idle, and returns the orders that each shard got.
func (n *nic) told() (list [2]string) {
	n.t.Helper()
	for range 4 {
		n.Step(n.now, &n.out)
	}
	for i, s := range n.sides {
		list[i] = strings.Join(s.told, ", ")
		s.told = nil
	}
	return list
}

// vf returns the ID of VF n of the first PF.
func vf(n int) pfvf.ID { return pfvf.ID(1<<16 | n) }

// TestChangesReachTheirShard checks that only the shard that owns a function sets it, and that
// nothing changes when that shard refuses. The caller gets one answer.
func TestChangesReachTheirShard(t *testing.T) {
	n := newNIC(t)
	var answers []error
	weigh := func(id pfvf.ID, weight uint8) {
		n.Change(id, func(_, to *config.Function) error { to.Weight = weight; return nil }, func(err error) { answers = append(answers, err) })
	}
	weigh(vf(1), 3)
	weigh(vf(2), 4)
	if told := n.told(); told != [2]string{"set h1.pf0.vf2 weight 4", "set h1.pf0.vf1 weight 3"} ||
		!slices.Equal(answers, []error{nil, nil}) {
		t.Errorf("told %q, answers %v", told, answers)
	}
	n.sides[0].refuse = errors.New("no")
	weigh(vf(2), 9)
	if n.told(); len(answers) != 3 || answers[2] == nil || n.Functions.Settings(vf(2)).Weight != 4 ||
		n.Functions.Settings(vf(1)).Weight != 3 {
		t.Errorf("%v; weight %d", answers, n.Functions.Settings(vf(2)).Weight)
	}
	n.Change(1<<17, func(_, _ *config.Function) error { return nil }, func(err error) { answers = append(answers, err) })
	if told := n.told(); told != [2]string{} || len(answers) != 4 || answers[3] == nil {
		t.Errorf("a function that there is not: told %q, %v", told, answers)
	}
}

// TestPFsHearOfTheirVFs checks that a PF's shard is told when the number of its enabled VFs
// changes, and that all shards are told when the PF's link changes.
func TestPFsHearOfTheirVFs(t *testing.T) {
	n := newNIC(t)
	ask := func(id pfvf.ID, edit func(to *config.Function)) [2]string {
		t.Helper()
		n.Change(id, func(_, to *config.Function) error { edit(to); return nil }, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
		told := n.told()
		for i := range told { // leave out the order for the setting itself
			told[i] = strings.TrimPrefix(strings.TrimPrefix(told[i], fmt.Sprintf("set %s weight 0", id)), ", ")
		}
		return told
	}
	for _, c := range []struct {
		what string
		told [2]string
		want [2]string
	}{
		{"a VF is disabled", ask(vf(1), func(to *config.Function) { to.Enabled = new(bool) }), [2]string{"3 VFs of h1.pf0", ""}},
		{"again", ask(vf(1), func(to *config.Function) { to.Enabled = new(bool) }), [2]string{}},
		{"a VF's link", ask(vf(2), func(to *config.Function) { to.Link = pfvf.LinkDisable }), [2]string{}},
		{"the PF's link", ask(vf(0), func(to *config.Function) { to.Link = pfvf.LinkDisable }), [2]string{"link of h1.pf0 disable", "link of h1.pf0 disable"}},
		{"the same", ask(vf(0), func(to *config.Function) { to.Link = pfvf.LinkDisable }), [2]string{}},
	} {
		if c.told != c.want {
			t.Errorf("%s: told %q, want %q", c.what, c.told, c.want)
		}
	}
}

// TestOperatorsResets checks that an operator's reset goes to the function's shard, and fails for a
// function that is disabled or does not exist.
func TestOperatorsResets(t *testing.T) {
	n := newNIC(t)
	reset := func(id pfvf.ID) (err error) {
		err = errors.New("no answer")
		n.Operate(id, &control.FunctionChange{Action: "reset"}, func(is error) { err = is })
		n.told()
		return err
	}
	if err := reset(vf(1)); err != nil {
		t.Error(err)
	}
	n.sides[1].is = false
	if err := reset(vf(1)); err == nil || !strings.Contains(err.Error(), "h1.pf0.vf1 is disabled") {
		t.Error(err)
	}
	if err := reset(1 << 17); err == nil {
		t.Error("a function that there is not was reset")
	}
	var refused error
	if n.Operate(vf(1), &control.FunctionChange{Action: "fly"}, func(err error) { refused = err }); refused == nil {
		t.Error("an action that there is not")
	}
}

// TestVFsOfOtherShards checks that a PF reaches its VFs on the shards that own them, and that
// ResetVFs resets those of all other shards. A PF's shard resets its own VFs itself.
func TestVFsOfOtherShards(t *testing.T) {
	n := newNIC(t)
	looked := 0
	n.Line(0).Visit(vf(1), func(abi.VFHandler) {}, func() { looked++ })
	n.Line(0).ResetVFs(vf(0))
	n.Line(0).Flush()
	if told := n.told(); told[0] != "" || !strings.Contains(told[1], "look at h1.pf0.vf1") ||
		!strings.Contains(told[1], "reset VFs of h1.pf0") || looked != 1 {
		t.Errorf("told %q, heard %d times", told, looked)
	}
}

// TestKeysOfShards checks that a peer's key goes to the shard that the peer names, and is dropped
// if there is no such shard.
func TestKeysOfShards(t *testing.T) {
	n := newNIC(t)
	for shard, want := range map[uint8][2]string{0: {"key of 2", ""}, 1: {"", "key of 2"}, 2: {}, 255: {}} {
		peerKeys{n.Core}.HandleKeys(n.now, &cm.Output{Kind: cm.OutRekey, Use: cm.Use{Peer: 2, Tenant: 7, Shard: shard}})
		if told := n.told(); told != want {
			t.Errorf("shard %d: told %q", shard, told)
		}
	}
}

// TestResolvedOnce checks that shards are told of an address once per Step.
func TestResolvedOnce(t *testing.T) {
	n := newNIC(t)
	for _, a := range []string{"10.99.0.2", "10.99.0.3", "10.99.0.2"} {
		n.Resolve(n.now, netip.MustParseAddr(a))
	}
	both := "resolve 10.99.0.2, resolve 10.99.0.3"
	if told := n.told(); told != [2]string{both, both} {
		t.Errorf("told %q", told)
	}
}

// TestWhoNeedsKeys checks that keys are needed for peers that can be told of them, and gateway keys
// also for peers that have ports to send from.
func TestWhoNeedsKeys(t *testing.T) {
	n := newNIC(t)
	use := func(peer uint8, tenant uint32, class cm.Class) security.Use {
		return security.Use{Peer: peer, Tenant: tenant, Class: class}
	}
	needed := func(u security.Use, want bool) {
		t.Helper()
		if n.keyNeeded(u) != want {
			t.Errorf("%+v: needed %v", u, !want)
		}
	}
	needed(use(2, 7, cm.ClassGateway), false)
	n.plain.routes.Learn(2, []gateway.Address{{Tenant: 7, Addr: netip.MustParseAddr("192.168.100.21"), MTU: 1400}})
	needed(use(2, 7, cm.ClassGateway), true)
	needed(use(2, 8, cm.ClassGateway), false)
	needed(use(2, 7, cm.ClassFalcon), false)
}

// TestFunctionsTheirPeersReach checks that peers are told of enabled functions, each with its
// shard.
func TestFunctionsTheirPeersReach(t *testing.T) {
	n := newNIC(t)
	n.Change(vf(3), func(_, to *config.Function) error { to.Enabled = new(bool); return nil }, func(error) {})
	n.told()
	var got []string
	for _, e := range n.endpoints() {
		got = append(got, fmt.Sprintf("%s in %d on %d: %s", pfvf.ID(e.Function), e.Tenant, e.Shard, netip.AddrFrom16(e.GID).Unmap()))
	}
	want := []string{"h1.pf0.vf1 in 7 on 1: 192.168.100.11", "h1.pf0.vf2 in 7 on 0: 192.168.100.12", "h1.pf0.vf4 in 8 on 0: 192.168.100.11"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestStoppedCore checks that callers of a stopped core, and those that wait for an answer, get an
// error.
func TestStoppedCore(t *testing.T) {
	n := newNIC(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(func() int64 { return n.now }, func(uint8, []byte) {}, nil)
	}()
	if err := n.ask(func(then func(error)) { then(nil) }); err != nil {
		t.Error(err)
	}
	refused := errors.New("no")
	if err := n.ask(func(then func(error)) { then(refused) }); !errors.Is(err, refused) {
		t.Error(err)
	}
	waits := make(chan error)
	begun := make(chan struct{})
	go func() { waits <- n.ask(func(func(error)) { close(begun) }) }()
	<-begun
	n.Halt()
	<-done
	n.Stop()
	if err := <-waits; !errors.Is(err, inbox.ErrStopped) {
		t.Error(err)
	}
	if err := n.Do(func(vtime.Time) { t.Error("ran") }); !errors.Is(err, inbox.ErrStopped) {
		t.Error(err)
	}
}

// TestTracedSteps checks that a step is shown in wall-clock time with the time since the step
// before, and that a request is described by its side and its wire.
func TestTracedSteps(t *testing.T) {
	o := &trace.Operation{QPN: 5, Index: 6, Conn: 7, WRID: 8, Op: uint8(abi.OpSend), Length: 9, Packets: 2, Again: 1}
	o.At[trace.StepIssued], o.At[trace.StepCompleted] = 100, 130
	v := DescribeOperation(vf(1), o, 1000)
	if len(v.Steps) != 2 || v.Steps[0].At != 1100 || v.Steps[0].After != 0 || v.Steps[1].At != 1130 ||
		v.Steps[1].After != 30 {
		t.Errorf("%+v", v.Steps)
	}
	if v.Side != "requester" || v.WQE != 6 || v.CID != 0 || v.RSN != 0 || v.Transport != "falcon" ||
		v.Status != abi.WCSuccess.String() || !v.Open || v.Op != abi.OpSend.String() {
		t.Errorf("%+v", v)
	}
	for _, c := range []struct {
		change func(o *trace.Operation)
		want   string
	}{
		{func(o *trace.Operation) { o.Loopback = true }, "loopback"},
		{func(o *trace.Operation) { o.RoCE, o.Loopback = true, true }, "roce"},
		{func(o *trace.Operation) { o.Packets = 0 }, "falcon"}, // it was given to the transport
		{func(o *trace.Operation) { o.At[trace.StepIssued] = 0 }, "falcon"},
		{func(o *trace.Operation) { o.Packets, o.At[trace.StepIssued] = 0, 0 }, "none"},
	} {
		changed := *o
		if c.change(&changed); DescribeOperation(vf(1), &changed, 0).Transport != c.want {
			t.Errorf("%+v is not by %s", changed, c.want)
		}
	}
	o.Responder, o.At[trace.StepCompleted] = true, 0
	if v := DescribeOperation(vf(1), o, 0); v.Side != "responder" || v.WQE != 0 || v.RSN != 6 || v.CID != 7 ||
		v.Status != "" {
		t.Errorf("%+v", v)
	}
	if o.RoCE = true; DescribeOperation(vf(1), o, 0).CID != 0 {
		t.Error("a packet over RoCEv2 has a connection's identifier")
	}
	o.RoCE, o.Op = false, 0xff
	if v := DescribeOperation(vf(1), o, 0); v.Op != "opcode 0xff" {
		t.Errorf("%+v", v)
	}
}
