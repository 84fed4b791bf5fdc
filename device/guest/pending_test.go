package guest

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// slowUser is a function whose CMConnect is completed later, and all else at once.
type slowUser struct {
	a       *admin
	tickets []abi.Ticket
	judging []uint32 // IDs of commands that were judged
	fault   abi.Fault
	events  int
}

func (u *slowUser) Broke(abi.Clause, abi.Ring, uint32, uint32, []byte) {}
func (u *slowUser) judged(c *pending, _ abi.Status)                    { u.judging = append(u.judging, c.cmd.ID) }
func (u *slowUser) settle(falcon.Time)                                 {}
func (u *slowUser) completed()                                         { u.events++ }
func (u *slowUser) stopped() bool                                      { return u.fault != abi.FaultNone }
func (u *slowUser) Fault(code abi.Fault, _ string)                     { u.fault = code }

func (u *slowUser) command(_ falcon.Time, cmd *abi.AdminCmd, _ []byte) abi.Status {
	c := u.a.current()
	if cmd.Opcode == abi.AdminOpCMConnect {
		u.tickets = append(u.tickets, c.later())
		return abi.StatusPending
	}
	u.judged(c, abi.StatusOK)
	return abi.StatusOK
}

// slowAdmin is a pair of admin queues with the driver's ends of them.
type slowAdmin struct {
	*slowUser
	t  *testing.T
	sq *ring.Producer
	cq *ring.CQReader
	id uint32
}

const slowEntries = 4

func newSlowAdmin(t *testing.T) *slowAdmin {
	mem := make([]byte, 2*abi.PageSize)
	u := &slowUser{a: &admin{entries: slowEntries, cqAddr: abi.PageSize}}
	u.a.user = u
	if err := u.a.start(queues.NewMemory([]queues.Region{{Mem: mem}})); err != nil {
		t.Fatal(err)
	}
	layout := ring.AdminLayout(slowEntries)
	return &slowAdmin{
		slowUser: u, t: t,
		sq: ring.NewProducer(ring.Mem(mem), layout), cq: ring.NewCQReader(ring.Mem(mem[abi.PageSize:]), layout),
	}
}

// post writes commands, numbered from 1 on, and has the device look at them.
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

// got is the completions that have come, by ID.
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
		_ = s.sq.Release(1)
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

// TestPendingHoldsUpNobody: while a command waits for an answer others complete, and its completion
// has the answer.
func TestPendingHoldsUpNobody(t *testing.T) {
	s := newSlowAdmin(t)
	s.post(abi.AdminOpCMConnect, abi.AdminOpAllocPD, abi.AdminOpCMConnect, abi.AdminOpAllocPD)
	s.want(2, 4)
	s.tickets[1].Complete(abi.StatusUnreachable, &abi.CMConnectResult{CMID: 9})
	if c := s.want(3); c.Status != abi.StatusUnreachable || c.Result != [48]byte{} {
		t.Errorf("%+v", c)
	}
	s.tickets[0].Complete(abi.StatusOK, &abi.CMConnectResult{CMID: 7})
	s.tickets[0].Complete(abi.StatusOK, nil) // once is enough
	if c := s.want(1); c.Status != abi.StatusOK || c.Result[0] != 7 {
		t.Errorf("%+v", c)
	}
	if s.events != 2 || !slices.Equal(s.judging, []uint32{2, 4, 3, 1}) {
		t.Error(s.events, s.judging)
	}
}

// TestPendingIsBounded: a driver that takes no notice of DRV-501 has no more commands pending than
// its queue has entries. The rest waits and is carried out then.
func TestPendingIsBounded(t *testing.T) {
	s := newSlowAdmin(t)
	for range slowEntries {
		s.post(abi.AdminOpCMConnect)
		_ = s.sq.Release(1) // as if it were complete
	}
	s.post(abi.AdminOpCMConnect, abi.AdminOpAllocPD)
	if len(s.tickets) != slowEntries || s.a.waits() {
		t.Fatalf("%d pending, waits %v", len(s.tickets), s.a.waits())
	}
	s.tickets[2].Complete(abi.StatusOK, nil)
	if !s.a.waits() {
		t.Fatal("the queue does not go on")
	}
	s.run()
	if len(s.tickets) != slowEntries+1 || s.a.waits() {
		t.Fatalf("%d pending, waits %v", len(s.tickets), s.a.waits())
	}
	for _, c := range s.tickets {
		c.Complete(abi.StatusOK, nil)
	}
	s.run()
	if s.fault != abi.FaultNone || len(s.a.pending) != 0 {
		t.Error(s.fault, s.a.pending)
	}
}

// TestResetForgetsPending: an answer that comes after a reset touches nothing, and neither does one
// to a function that has a fault.
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
