package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestJobsRunOneAfterTheOther checks that jobs run one after the other, each when the one before
// has its answer.
func TestJobsRunOneAfterTheOther(t *testing.T) {
	var k Core
	var said []string
	var answers []func()
	slow := func(name string) {
		k.begin(func(_ vtime.Time, done func()) {
			said = append(said, name)
			answers = append(answers, done)
		})
	}
	quick := func(name string) {
		k.begin(func(_ vtime.Time, done func()) { said = append(said, name); done() })
	}
	runs := func(want ...string) {
		t.Helper()
		said = nil
		if k.runJobs(1); !slices.Equal(said, want) {
			t.Errorf("done are %v, want %v", said, want)
		}
	}
	runs()
	quick("a")
	slow("b")
	quick("c")
	slow("d")
	runs("a", "b")
	runs()
	answers[0]()
	runs("c", "d")
	quick("e")
	runs()
	answers[1]()
	runs("e")
	if runs(); k.jobs.waiting != nil || k.jobs.busy {
		t.Errorf("%d wait", len(k.jobs.waiting))
	}
}

// TestPeersAreToldOfGIDsWithAPauseBetween checks that peers are told of GIDs at once, and of
// further ones after a pause. Waiting commands complete then, once.
func TestPeersAreToldOfGIDsWithAPauseBetween(t *testing.T) {
	var g gids
	heard := 0
	change := func() {
		g.changed = true
		g.waiting = append(g.waiting, gidChange{then: func(error) { heard++ }})
	}
	if g.due(100) || g.deadline() != vtime.Never {
		t.Error("due without a change")
	}
	if g.told(100); g.next != 0 {
		t.Error("nothing was told, and there is a pause")
	}
	change()
	change()
	if !g.due(0) || g.deadline() != 0 {
		t.Error("the first change waits")
	}
	if g.told(100); heard != 2 || g.due(1<<60) || g.deadline() != vtime.Never {
		t.Errorf("%d heard", heard)
	}
	change()
	if g.due(100+gidPause-1) || !g.due(100+gidPause) || g.deadline() != 100+gidPause {
		t.Errorf("the next change is due at %d, want %d", g.deadline(), 100+gidPause)
	}
	if g.told(200); heard != 3 || g.waiting != nil {
		t.Errorf("%d heard", heard)
	}
}

// TestAChangeIsAppliedByItsShardOrNotAtAll checks that only the shard that owns a function sets it,
// and that nothing changes when that shard refuses. The caller gets one answer.
func TestAChangeIsAppliedByItsShardOrNotAtAll(t *testing.T) {
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

// TestAPFIsToldHowManyVFsAreEnabled checks that a PF's shard is told when the number of its enabled
// VFs changes, and that all shards are told when the PF's link changes.
func TestAPFIsToldHowManyVFsAreEnabled(t *testing.T) {
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

// TestAnOperatorsResetGoesToTheFunctionsShard checks that an operator's reset goes to the
// function's shard, and fails for a function that is disabled or does not exist.
func TestAnOperatorsResetGoesToTheFunctionsShard(t *testing.T) {
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

// TestAPFReachesVFsOfOtherShards checks that a PF reaches its VFs on the shards that own them, and
// that ResetVFs resets those of all other shards. A PF's shard resets its own VFs itself.
func TestAPFReachesVFsOfOtherShards(t *testing.T) {
	n := newNIC(t)
	looked := 0
	n.ShardLink(0).Visit(vf(1), func(abi.VFHandler) (abi.Status, abi.Result) { return abi.StatusOK, nil }, func(abi.Status, abi.Result) { looked++ })
	n.ShardLink(0).ResetVFs(vf(0))
	n.ShardLink(0).Flush()
	if told := n.told(); told[0] != "" || !strings.Contains(told[1], "look at h1.pf0.vf1") ||
		!strings.Contains(told[1], "reset VFs of h1.pf0") || looked != 1 {
		t.Errorf("told %q, heard %d times", told, looked)
	}
}

// TestPeersAreToldOfEnabledFunctions checks that peers are told of enabled functions, each with its
// shard.
func TestPeersAreToldOfEnabledFunctions(t *testing.T) {
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
