package guest

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// slowUser is a function whose CMConnect is completed later, and all other commands at once.
type slowUser struct {
	a       *admin
	tickets []abi.Ticket
	judging []uint32 // IDs of commands that were judged
	fault   abi.Fault
	broke   []abi.Clause
	events  int
}

func (u *slowUser) Broke(c abi.Clause, _ abi.Ring, _, _ uint32, _ []byte) {
	u.broke = append(u.broke, c)
}

func (u *slowUser) judged(c *pending, _ abi.Status) { u.judging = append(u.judging, c.cmd.ID) }
func (u *slowUser) completed()                      { u.events++ }
func (u *slowUser) stopped() bool                   { return u.fault != abi.FaultNone }
func (u *slowUser) Fault(code abi.Fault, _ string)  { u.fault = code }

func (u *slowUser) command(_ falcon.Time, cmd *abi.AdminCmd, _ []byte) abi.Status {
	c := u.a.current()
	if cmd.Opcode == abi.AdminOpCMConnect {
		u.tickets = append(u.tickets, c.later())
		return abi.StatusPending
	}
	u.judged(c, abi.StatusOK)
	return abi.StatusOK
}

// slowAdmin is a pair of admin queues, with the driver's ends of them.
type slowAdmin struct {
	*slowUser
	t  *testing.T
	sq *ring.Producer
	cq *ring.CQReader
	id uint32
}

const slowEntries = 4

func newSlowAdmin(t *testing.T) *slowAdmin {
	mem := make([]byte, 4*abi.PageSize) // the areas, and their page lists
	binary.LittleEndian.PutUint64(mem[3*abi.PageSize:], abi.PageSize)
	u := &slowUser{a: &admin{entries: slowEntries, sqRoot: 2 * abi.PageSize, cqRoot: 3 * abi.PageSize}}
	u.a.user = u
	if err := u.a.start(queues.NewMemory([]queues.Region{{Mem: mem}}), nil, false); err != nil {
		t.Fatal(err)
	}
	layout := ring.AdminLayout(slowEntries)
	return &slowAdmin{
		slowUser: u, t: t,
		sq: ring.NewProducer(ring.Mem(mem), layout), cq: ring.NewCQReader(ring.Mem(mem[abi.PageSize:]), layout),
	}
}

// post writes commands, numbered from 1, and makes the device look at them.
func (s *slowAdmin) post(ops ...abi.AdminOp) {
	s.t.Helper()
	for _, op := range ops {
		s.id++
		var b [abi.AdminCmdSize]byte
		(&abi.AdminCmd{Opcode: op, ID: s.id}).Marshal(b[:])
		if err := s.sq.Push(b[:]); err != nil {
			s.t.Fatal(err)
		}
	}
	index, _, _ := s.sq.Publish()
	s.a.ring(index)
	s.run()
}

func (s *slowAdmin) run() {
	pages := adminPages
	s.a.run(0, &pages)
}

// got returns the IDs of the completions that have come, and the last completion.
func (s *slowAdmin) got() (ids []uint32, last abi.AdminCQE) {
	s.t.Helper()
	var b [abi.AdminCQESize]byte
	for {
		ok, err := s.cq.Poll(b[:])
		if err != nil {
			s.t.Fatal(err)
		}
		if !ok {
			return ids, last
		}
		last.Unmarshal(b[:])
		ids = append(ids, last.ID)
		_ = s.cq.Commit()
	}
}

func (s *slowAdmin) want(ids ...uint32) abi.AdminCQE {
	s.t.Helper()
	got, last := s.got()
	if !slices.Equal(got, ids) {
		s.t.Fatalf("completions of %v, want %v", got, ids)
	}
	return last
}

// TestPendingHoldsUpNobody checks that other commands complete while one waits for an answer, and
// that its completion then has the answer.
func TestPendingHoldsUpNobody(t *testing.T) {
	s := newSlowAdmin(t)
	s.post(abi.AdminOpCMConnect, abi.AdminOpAllocPD, abi.AdminOpCMConnect, abi.AdminOpAllocPD)
	s.want(2, 4)
	s.tickets[1].Complete(abi.StatusUnreachable, &abi.CMConnectResult{CMID: 9})
	if c := s.want(3); c.Status != abi.StatusUnreachable || c.Result != [len(c.Result)]byte{} {
		t.Errorf("%+v", c)
	}
	s.tickets[0].Complete(abi.StatusOK, &abi.CMConnectResult{CMID: 7})
	s.tickets[0].Complete(abi.StatusOK, nil) // a second answer is ignored
	if c := s.want(1); c.Status != abi.StatusOK || c.Result[0] != 7 {
		t.Errorf("%+v", c)
	}
	if s.events != 2 || !slices.Equal(s.judging, []uint32{2, 4, 3, 1}) {
		t.Error(s.events, s.judging)
	}
}

// TestOutstandingIsBounded checks that as many commands may be outstanding as the queues have
// entries, pending or with completions not taken. One more is a fault (DRV-501, DEV-501, DEV-502).
func TestOutstandingIsBounded(t *testing.T) {
	for pending := range slowEntries + 1 {
		s := newSlowAdmin(t)
		for range 3 { // each round leaves nothing behind
			for i := range slowEntries {
				op := abi.AdminOpAllocPD
				if i < pending {
					op = abi.AdminOpCMConnect
				}
				s.post(op)
			}
			for _, c := range s.tickets {
				c.Complete(abi.StatusOK, nil)
			}
			if s.got(); s.fault != abi.FaultNone || len(s.a.pending) != 0 {
				t.Fatal(s.fault, len(s.a.pending))
			}
		}
		s.tickets = nil
		for i := range slowEntries + 1 {
			op := abi.AdminOpAllocPD
			if i < pending {
				op = abi.AdminOpCMConnect
			}
			if s.post(op); (s.fault != abi.FaultNone) != (i == slowEntries) {
				t.Fatalf("%d pending: %s after %d", pending, s.fault, i+1)
			}
		}
		if len(s.tickets) != min(pending, slowEntries) || s.fault != abi.FaultCommand || !slices.Equal(s.broke, []abi.Clause{abi.DRV501}) {
			t.Error(len(s.tickets), s.fault, s.broke)
		}
	}
}

// TestResetForgetsPending checks that an answer has no effect after a reset, or if the function has
// a fault.
func TestResetForgetsPending(t *testing.T) {
	s := newSlowAdmin(t)
	s.post(abi.AdminOpCMConnect, abi.AdminOpCMConnect)
	s.a.forget()
	s.tickets[0].Complete(abi.StatusOK, nil)
	s.want()
	s.post(abi.AdminOpCMConnect)
	s.Fault(abi.FaultMemory, "")
	s.tickets[2].Complete(abi.StatusOK, nil)
	s.want()
	if s.events != 0 || len(s.judging) != 0 {
		t.Error(s.events, s.judging)
	}
}

// longAdmin returns a pair of admin queues with room for many commands.
func longAdmin(t *testing.T) *slowAdmin {
	t.Helper()
	const entries = 32
	layout := ring.AdminLayout(entries)
	area := (int(layout.Size()) + abi.PageSize - 1) &^ (abi.PageSize - 1)
	mem := make([]byte, 2*area+2*abi.PageSize) // the areas, and their page lists
	for i := range area / abi.PageSize {
		binary.LittleEndian.PutUint64(mem[2*area+8*i:], uint64(i*abi.PageSize))
		binary.LittleEndian.PutUint64(mem[2*area+abi.PageSize+8*i:], uint64(area+i*abi.PageSize))
	}
	u := &slowUser{a: &admin{entries: entries, sqRoot: uint64(2 * area), cqRoot: uint64(2*area + abi.PageSize)}}
	u.a.user = u
	if err := u.a.start(queues.NewMemory([]queues.Region{{Mem: mem}}), nil, true); err != nil {
		t.Fatal(err)
	}
	return &slowAdmin{slowUser: u, t: t, sq: ring.NewProducer(ring.Mem(mem), layout), cq: ring.NewCQReader(ring.Mem(mem[area:]), layout)}
}

// TestCommandsOfAStep checks that a Step starts a limited number of commands of one function, in
// order, while there are pages to read, and leaves the others for the next Step.
func TestCommandsOfAStep(t *testing.T) {
	s := longAdmin(t)
	ops := slices.Repeat([]abi.AdminOp{abi.AdminOpAllocPD}, adminCommands+3)
	for _, op := range ops {
		s.id++
		var b [abi.AdminCmdSize]byte
		(&abi.AdminCmd{Opcode: op, ID: s.id}).Marshal(b[:])
		if err := s.sq.Push(b[:]); err != nil {
			t.Fatal(err)
		}
	}
	index, _, _ := s.sq.Publish()
	if !s.a.ring(index) || !s.a.waits() {
		t.Fatal("nothing waits")
	}
	for _, c := range []struct{ pages, done, left int }{ // each command reads one page
		{0, 0, adminCommands + 3}, {-1, 0, adminCommands + 3}, {100, adminCommands, 3}, {2, 2, 1}, {100, 1, 0}, {100, 0, 0},
	} {
		pages := c.pages
		done, completed := s.a.run(0, &pages)
		if done != c.done || completed != (c.done > 0) || s.a.waits() != (c.left > 0) ||
			int(s.a.sq.Ready()) != c.left || pages != c.pages-c.done {
			t.Errorf("with %d pages: %d commands, completions %v, %d left, %d pages left; want %d and %d", c.pages, done, completed, s.a.sq.Ready(), pages, c.done, c.left)
		}
	}
	var want []uint32
	for id := range s.id {
		want = append(want, id+1)
	}
	if ids, _ := s.got(); !slices.Equal(ids, want) {
		t.Errorf("completions of %v", ids)
	}
}

// TestDoorbellsOfAdminQueues checks that an impossible doorbell stops the function and records the
// clause that it breaks, and that an old or repeated one is harmless.
func TestDoorbellsOfAdminQueues(t *testing.T) {
	s := longAdmin(t)
	s.post(abi.AdminOpAllocPD, abi.AdminOpAllocPD)
	for _, index := range []uint32{2, 1, 0} {
		if !s.a.ring(index) || s.fault != abi.FaultNone {
			t.Errorf("doorbell %d: %v", index, s.fault)
		}
	}
	if s.a.ring(3) || s.fault != abi.FaultCommand || !slices.Equal(s.broke, []abi.Clause{abi.DRV502}) {
		t.Errorf("a doorbell ahead of the queue: %v, %v", s.fault, s.broke)
	}
	if done, _ := s.a.run(0, new(int)); done != 0 {
		t.Error("a function that is to be stopped goes on")
	}
}

// TestViolationsOfACommand checks that a violation that the engine finds is assigned to the current
// command, whose bytes are shown if the violation has none of its own, and that violations of other
// rings are left alone.
func TestViolationsOfACommand(t *testing.T) {
	a := &admin{}
	own := abi.Violation{Ring: abi.RingAdmin, Clause: 5, Index: 77}
	v := own
	if a.describe(&v); v != own {
		t.Errorf("without a command: %+v", v)
	}
	a.doing = &pending{in: a, index: 9, cmd: abi.AdminCmd{Opcode: abi.AdminOpAllocPD, ID: 3}}
	elsewhere := abi.Violation{Ring: abi.RingStream, Clause: 5, Index: 77}
	v = elsewhere
	if a.describe(&v); v != elsewhere || a.doing.told != 0 {
		t.Errorf("elsewhere: %+v", v)
	}
	v = own
	if a.describe(&v); v.Index != 9 || a.doing.told != 5 ||
		!slices.Equal(v.Bytes[:v.Length], commandBytes(&a.doing.cmd)[:v.Length]) || v.Length == 0 {
		t.Errorf("%+v", v)
	}
	v = own
	v.Length, v.Bytes[0] = 1, 0xaa
	if a.describe(&v); v.Index != 9 || v.Length != 1 || v.Bytes[0] != 0xaa {
		t.Errorf("with bytes of its own: %+v", v)
	}
}
