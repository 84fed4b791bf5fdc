package verbs

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEndedFunction: a function that has ended has no objects and makes none, and commands that
// change objects fail with StatusBadState.
func TestEndedFunction(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newUD(nil)
	m := g.region(g.pdn, 64, allRights)
	g.bound(abi.MWType1, &Bindings{}, m)
	q := g.newSRQ(abi.CreateSRQ{})
	if _, st := g.OpenXRCD(); st != abi.StatusOK {
		t.Fatal(st)
	}
	ahn, st := g.CreateAH(0, &abi.CreateAH{PDN: g.pdn, DGID: gid(1)})
	g.good(st)
	group := abi.Mcast{QPN: s.number, GID: [16]byte{10: 0xff, 11: 0xff, 12: 239}}
	g.good(g.AttachMcast(&group))
	g.newRC(nil)
	for k, n := range g.Counts() {
		if n == 0 {
			t.Errorf("there is no %s: the test tests nothing", abi.Object(k))
		}
	}
	g.Close(0)
	if n := g.Counts(); n != (Counts{}) {
		t.Errorf("%v objects are left", n)
	}
	for name, st := range map[string]abi.Status{
		"AllocPD":     second(g.AllocPD()),
		"OpenXRCD":    second(g.OpenXRCD()),
		"CreateCQ":    second(g.CreateCQ(&abi.CreateCQ{})),
		"CreateQP":    second(g.CreateQP(&abi.CreateQP{})),
		"CreateSRQ":   second(g.CreateSRQ(&abi.CreateSRQ{})),
		"CreateAH":    second(g.CreateAH(0, &abi.CreateAH{})),
		"AllocMW":     second(g.AllocMW(&abi.AllocMW{})),
		"AllocMR":     second(g.AllocMR(&abi.AllocMR{})),
		"RegMR":       second(g.StartRegMR(&abi.RegMR{})),
		"ReregMR":     second(g.StartReregMR(&abi.ReregMR{})),
		"ModifySRQ":   second(g.ModifySRQ(&abi.ModifySRQ{SRQN: q.number})),
		"ModifyQP":    g.ModifyQP(0, &abi.ModifyQP{}),
		"ModifyCQ":    g.ModifyCQ(&abi.ModifyCQ{}),
		"ResizeCQ":    g.ResizeCQ(&abi.ResizeCQ{}),
		"AttachMcast": g.AttachMcast(&group),
	} {
		if st != abi.StatusBadState {
			t.Errorf("%s: %v", name, st)
		}
	}
	if g.DestroyAH(0, ahn) != abi.StatusNotFound || g.DetachMcast(&group) != abi.StatusNotFound || s.Turn(0) {
		t.Error("something is left")
	}
	s.Unblocked(0)
	if s.sent.poll() != nil || g.shared.Lingering() != 0 {
		t.Error("completions of a function that has ended")
	}
}

// second returns the status of a command with a result.
func second[T any](_ T, st abi.Status) abi.Status { return st }

// TestGroupsOfOthers: each attachment is a pair of group and queue pair. Detaching one does not
// affect others, and the quota counts the pairs. (DEV-954)
func TestGroupsOfOthers(t *testing.T) {
	group := func(n byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: n} }
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectMCG: 3}})
	a, b := g.newUD(nil), g.newUD(nil)
	attach := func(s *side, n byte, want abi.Status) {
		t.Helper()
		if st := g.AttachMcast(&abi.Mcast{QPN: s.number, GID: group(n)}); st != want {
			t.Errorf("attached to %d: %v, want %v", n, st, want)
		}
	}
	count := func(want int) {
		t.Helper()
		if got := g.Counts()[abi.ObjectMCG]; got != want {
			t.Errorf("%d attachments are counted, want %d", got, want)
		}
	}
	attach(a, 1, abi.StatusOK)
	attach(a, 2, abi.StatusOK)
	attach(b, 1, abi.StatusOK)
	attach(b, 2, abi.StatusNoResources)
	attach(b, 1, abi.StatusOK) // it is already
	attach(g.newRC(nil), 1, abi.StatusInvalidArgument)
	count(3)
	g.SetLimits(Limits{Objects: Counts{abi.ObjectMCG: 1}})
	g.good(g.DetachMcast(&abi.Mcast{QPN: a.number, GID: group(1)}))
	count(2)
	attach(a, 1, abi.StatusNoResources)
	if st := g.DetachMcast(&abi.Mcast{QPN: a.number, GID: group(1)}); st != abi.StatusNotFound || len(g.members[group(1)]) != 1 || g.members[group(1)][0] != b.QP {
		t.Errorf("%v, members %v", st, g.members)
	}
	g.good(g.DestroyQP(0, a.number))
	count(1)
	if len(g.members) != 1 {
		t.Errorf("%d groups with somebody", len(g.members))
	}
	g.good(g.DetachMcast(&abi.Mcast{QPN: b.number, GID: group(1)}))
	count(0)
	attach(b, 3, abi.StatusOK)
}
