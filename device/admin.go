package device

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// admin is the pair of admin queues of a function, one page of guest memory
// each.
type admin struct {
	sqAddr, cqAddr uint64
	entries        uint32
	sq             *ring.Consumer
	cq             *ring.CQWriter
	cmd            abi.AdminCmd        // carried out now or last
	reg            *verbs.Registration // that it began; nil: none
	busy           bool                // in the middle of it
	told           abi.Clause          // that the engine said it breaks; 0: none
}

// start looks at the pages for the first time.
func (a *admin) start(mem *queues.Memory) error {
	for _, q := range []struct {
		name string
		addr uint64
	}{{"admin submission queue", a.sqAddr}, {"admin completion queue", a.cqAddr}} {
		if !mem.Contains(q.addr, abi.PageSize) {
			return fmt.Errorf("%s at %#x is not in the memory of the function", q.name, q.addr)
		}
	}
	layout := ring.AdminLayout(a.entries)
	a.sq = ring.NewConsumer(page{mem, a.sqAddr}, layout)
	a.cq = ring.NewCQWriter(page{mem, a.cqAddr}, layout)
	return nil
}

// Bounds of the admin queues' work in one Step, so that nobody else waits for it
// long. A page list may have half a million entries: it is read in pieces.
const (
	adminCommands = 16      // of one function
	adminPages    = 1 << 12 // page list entries of all functions
)

// adminDoorbell takes the producer index of a doorbell and begins to work.
func (f *function) adminDoorbell(now falcon.Time, producer uint32) {
	if _, err := f.admin.sq.Doorbell(producer); err != nil {
		clause := abi.DRV502 // it moved back
		if int32(producer-f.admin.sq.Producer()) > 0 {
			clause = abi.DRV501
		}
		f.broke(clause, abi.RingAdmin, 0, producer, binary.LittleEndian.AppendUint32(nil, producer))
		f.Fault(abi.FaultCommand, fmt.Sprintf("admin doorbell with producer %d after %d of %d entries: %v; ring with the number of commands written so far", producer, f.admin.sq.Next(), f.admin.entries, err))
		return
	}
	if !f.inBacklog && (f.faults == nil || !f.faults.postpone()) {
		f.runAdmin(now)
	}
}

// runAdmin carries out waiting commands in order, as many as are due in one
// Step; the function stays in the shard's backlog while more wait. Each command
// is copied from guest memory once. Its completion is written before any event
// that it causes goes out.
func (f *function) runAdmin(now falcon.Time) {
	s, done := f.shard, 0
	for ; done < adminCommands && s.adminPages > 0 && f.faultCode == abi.FaultNone; done++ {
		var cqe abi.AdminCQE
		if f.admin.reg == nil && !f.nextCommand(now, &cqe) {
			break
		}
		if f.admin.reg != nil && !f.readPages(&cqe) {
			break
		}
		if cqe.Status != abi.StatusOK {
			cqe.Result = [48]byte{}
		}
		s.counters.adminCommands++
		var raw [abi.AdminCQESize]byte
		cqe.Marshal(raw[:])
		if err := f.admin.cq.Write(raw[:]); err != nil {
			f.Fault(abi.FaultCommand, fmt.Sprintf("admin completion queue: %v", err))
			return
		}
		s.cm.Run(now)
	}
	if done > 0 {
		f.CQEvent(abi.AdminCQ)
	}
	if (f.admin.sq.Ready() > 0 || f.admin.reg != nil) && !f.inBacklog {
		f.inBacklog = true
		s.adminBacklog = append(s.adminBacklog, f)
	}
}

// nextCommand carries out the next command, or begins it when it is a
// registration. It reports false when there is none.
func (f *function) nextCommand(now falcon.Time, cqe *abi.AdminCQE) bool {
	if f.admin.sq.Ready() == 0 {
		return false
	}
	var raw [abi.AdminCmdSize]byte
	if err := f.admin.sq.Read(raw[:]); err != nil {
		f.Fault(abi.FaultCommand, fmt.Sprintf("admin submission queue: %v", err))
		return false
	}
	f.admin.sq.Take()
	cmd := &f.admin.cmd
	cmd.Unmarshal(raw[:])
	f.shard.adminPages -= cmd.Pages()
	cqe.ID = cmd.ID
	if f.faults != nil {
		if st, fails := f.faults.command(cmd); fails {
			cqe.Status = st
			return true
		}
	}
	f.admin.busy, f.admin.told = true, 0
	cqe.Status = abi.Dispatch(&commands{Function: f.verbs, Commands: f.conns.Commands(now), f: f, now: now}, f.caller(), cmd, cqe.Result[:])
	f.admin.busy = false
	f.judgeCommand(cmd, cqe.Status)
	return true
}

// readPages goes on with the registration in progress. It reports whether that
// is complete.
func (f *function) readPages(cqe *abi.AdminCQE) bool {
	s := f.shard
	f.admin.busy = true
	done, lkey, rkey, st := f.admin.reg.Read(s.adminPages)
	f.admin.busy = false
	if !done {
		s.adminPages = 0
		return false
	}
	s.adminPages--
	f.admin.reg = nil
	cqe.ID, cqe.Status = f.admin.cmd.ID, st
	(&abi.RegMRResult{LKey: lkey, RKey: rkey}).Marshal(cqe.Result[:])
	return true
}

// runAdminBacklog gives the functions with commands left another turn, one
// after the other, until the pages of this Step are used up.
func (s *Shard) runAdminBacklog(now falcon.Time) {
	s.adminPages = adminPages
	n, i := len(s.adminBacklog), 0
	for ; i < n && s.adminPages > 0; i++ {
		f := s.adminBacklog[i]
		f.inBacklog = false
		if f.Lifecycle.State() == abi.StateReady && f.faultCode == abi.FaultNone {
			f.runAdmin(now)
		}
	}
	s.adminBacklog = s.adminBacklog[:copy(s.adminBacklog, s.adminBacklog[i:])]
}

// caller is the function's driver as commands see it.
func (f *function) caller() abi.Caller {
	return abi.Caller{PF: !f.ID.IsVF(), Features: f.binding.Features}
}

var _ verbs.Notifier = (*function)(nil)
