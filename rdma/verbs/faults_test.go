package verbs

import (
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// trouble is Faults that the test sets.
type trouble struct {
	work         abi.WCStatus
	access, key  bool
	stuck, holds map[uint32]bool
	overrun      map[uint32]bool
}

func (x *trouble) Work(uint32, abi.Opcode) abi.WCStatus { return x.work }
func (x *trouble) Access() bool                         { return x.access }
func (x *trouble) Key(uint32) bool                      { return x.key }
func (x *trouble) Stuck(qpn uint32) bool                { return x.stuck[qpn] }
func (x *trouble) Hold(cqn uint32) bool                 { return x.holds[cqn] }
func (x *trouble) Overrun(cqn uint32) bool              { return x.overrun[cqn] }

// TestInjectedStatusesFailValidRequests: a request fails with the injected status, unless it is
// invalid itself.
func TestInjectedStatusesFailValidRequests(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 64, allRights)
	s := g.newRC(func(c *abi.CreateQP) { c.ErrorMode = abi.ErrorModeCompleteInError })
	x := &trouble{work: abi.WCRemOpErr}
	g.UseFaults(x)
	s.post(0, write(1))
	s.post(0, write(2), abi.SGE{Addr: m.iova, Length: 1, LKey: m.key ^ 1<<20})
	s.Turn(0)
	x.work = abi.WCSuccess
	s.post(0, write(3))
	if s.Turn(0); len(s.wire.issued) != 1 {
		t.Fatalf("%d packets issued", len(s.wire.issued))
	}
	s.done(0, abi.WCSuccess)
	if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{abi.WCRemOpErr, abi.WCLocProtErr, abi.WCSuccess}) {
		t.Errorf("completions %v", got)
	}
}

// TestInjectedMemoryLossStopsAccess: while the fault lasts, a region with injected memory loss is
// neither read nor written, and keys that count as invalid give no access.
func TestInjectedMemoryLossStopsAccess(t *testing.T) {
	x := newTarget(t, abi.QPTypeRC, true)
	faults := &trouble{}
	x.g.UseFaults(faults)
	buf := make([]byte, 8)
	for _, gone := range []bool{false, true, false} {
		faults.access = gone
		_, atomic := x.m.Atomic(x.m.iova, &Atomic{Op: abi.OpFetchAdd})
		for what, err := range map[string]error{"read": x.m.Read(x.m.iova, buf), "written": x.m.Write(x.m.iova, buf), "added to": atomic} {
			if errors.Is(err, errInjected) != gone || !gone && err != nil {
				t.Errorf("gone %t: %s: %v", gone, what, err)
			}
		}
	}
	for _, wrong := range []bool{false, true, false} {
		faults.key = wrong
		if _, why := x.Read(x.m.key, x.m.iova, 1); (why == transport.UnknownKey) != wrong {
			t.Errorf("key wrong %t: %v", wrong, why)
		}
	}
}

// TestAStuckQueueGetsNoTurns: a stuck send queue gets no turn, and is checked again when it is no
// longer stuck.
func TestAStuckQueueGetsNoTurns(t *testing.T) {
	g := newGuest(t, Limits{})
	s, other := g.newRC(nil), g.newRC(nil)
	g.UseFaults(&trouble{stuck: map[uint32]bool{s.number: true}})
	g.turns = 0
	s.post(0, write(1))
	if g.turns != 0 || s.Turn(0) || len(s.wire.issued) != 0 {
		t.Errorf("%d turns, %d packets issued", g.turns, len(s.wire.issued))
	}
	other.post(0, write(1))
	if other.Turn(0); g.turns != 1 || len(other.wire.issued) != 1 {
		t.Errorf("another: %d turns, %d packets issued", g.turns, len(other.wire.issued))
	}
	g.UseFaults(nil)
	if g.Unstick(0); g.turns != 3 { // of both
		t.Errorf("%d turns", g.turns)
	}
	if s.Turn(0); len(s.wire.issued) != 1 {
		t.Errorf("%d packets issued", len(s.wire.issued))
	}
}

// TestHeldCompletionsKeepTheirOrder: completions that are held back are written in order, before
// one that is not held back, or when they are released. Only a limited number is held back.
func TestHeldCompletionsKeepTheirOrder(t *testing.T) {
	g := newGuest(t, Limits{})
	cq := g.newCQ(7)
	c := g.CQ(cq.number)
	x := &trouble{holds: map[uint32]bool{cq.number: true}}
	g.UseFaults(x)
	next := uint64(0)
	post := func(n int) {
		for range n {
			c.post(0, &abi.CQE{WRID: next}, false)
			next++
		}
	}
	seen := uint64(0)
	come := func(what string, want uint64) {
		t.Helper()
		for _, e := range cq.poll() {
			if e.WRID != seen {
				t.Errorf("%s: completion %d where %d was due", what, e.WRID, seen)
			}
			seen++
		}
		if seen != want {
			t.Errorf("%s: %d completions, want %d", what, seen, want)
		}
	}
	if g.Release(0) {
		t.Error("something was kept back")
	}
	post(3)
	come("kept back", 0)
	x.holds = nil
	post(1)
	come("one that is not", 4)
	x.holds = map[uint32]bool{cq.number: true}
	post(maxHeld)
	come("as many as there may be", 4)
	post(1)
	come("one more", 5+maxHeld)
	post(2)
	if !g.Release(0) || g.Release(0) {
		t.Error("nothing was kept back, or it is twice")
	}
	come("let go", 7+maxHeld)
}
