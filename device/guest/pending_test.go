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
