package guest

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Bounds of the admin queues' work in one Step, so that nobody else waits for it long. A page list
// may have half a million entries: it is read in pieces.
const (
	adminCommands = 16      // of one function
	adminPages    = 1 << 12 // page list entries of all functions
)

// admin is the pair of admin queues of a function, one page of guest memory each.
type admin struct {
	user           adminUser
	sqAddr, cqAddr uint64
	entries        uint32
	sq             *ring.Consumer
	cq             *ring.CQWriter
	cmd            abi.AdminCmd        // carried out now or last
	reg            *verbs.Registration // that it began; nil: none
	busy           bool                // in the middle of it
	told           abi.Clause          // that the engine said it breaks; 0: none
	pending        []*pending          // commands that are completed later, at most as many as entries
}

// adminUser is the function that admin queues belong to.
type adminUser interface {
	judge
	// command carries out a command and writes its result.
	command(now falcon.Time, cmd *abi.AdminCmd, result []byte) abi.Status
	// judged records what the driver broke by a command that ended in st.
	judged(c *pending, st abi.Status)
	// settle carries out what the command brought about.
	settle(now falcon.Time)
	// completed is called after a completion that was pending. The queue goes on if it waited for it.
	completed()
	// stopped is whether the function has a fault.
	stopped() bool
	Fault(code abi.Fault, reason string)
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

// ring takes the producer index of a doorbell.
func (a *admin) ring(producer uint32) bool {
	_, err := a.sq.Doorbell(producer)
	if err == nil {
		return true
	}
	clause := abi.DRV502 // it moved back
	if int32(producer-a.sq.Producer()) > 0 {
		clause = abi.DRV501
	}
	a.user.Broke(clause, abi.RingAdmin, 0, producer, binary.LittleEndian.AppendUint32(nil, producer))
	a.user.Fault(abi.FaultCommand, fmt.Sprintf("admin doorbell with producer %d after %d of %d entries: %v; ring with the number of commands written so far", producer, a.sq.Next(), a.entries, err))
	return false
}

// waits is whether there is work left. While as many commands are pending as the queue has entries,
// nothing is taken from it: a driver that keeps to DRV-501 has no more.
func (a *admin) waits() bool { return a.reg != nil || a.sq.Ready() > 0 && !a.full() }

func (a *admin) full() bool { return len(a.pending) >= int(a.entries) }

// run carries out waiting commands in order, as many as are due in one Step, and returns how many,
// and whether there are completions. pages is how many page list entries may still be read. Each
// command is copied from guest memory once. Its completion is written before any event that it
// causes goes out.
func (a *admin) run(now falcon.Time, pages *int) (done int, completed bool) {
	for ; done < adminCommands && *pages > 0 && !a.user.stopped(); done++ {
		var cqe abi.AdminCQE
		if a.reg == nil && !a.next(now, &cqe, pages) {
			break
		}
		if a.reg != nil && !a.readPages(&cqe, pages) {
			break
		}
		if cqe.Status != abi.StatusPending {
			if !a.complete(&cqe) {
				return done + 1, completed
			}
			completed = true
		}
		a.user.settle(now)
	}
	return done, completed
}

// complete writes a completion. It reports false when the queue cannot be written.
func (a *admin) complete(cqe *abi.AdminCQE) bool {
	if cqe.Status != abi.StatusOK {
		cqe.Result = [48]byte{}
	}
	var raw [abi.AdminCQESize]byte
	cqe.Marshal(raw[:])
	if err := a.cq.Write(raw[:]); err != nil {
		a.user.Fault(abi.FaultCommand, fmt.Sprintf("admin completion queue: %v", err))
		return false
	}
	return true
}

// next carries out the next command, or begins it when it is a registration. It reports false when
// there is none.
func (a *admin) next(now falcon.Time, cqe *abi.AdminCQE, pages *int) bool {
	if a.sq.Ready() == 0 || a.full() {
		return false
	}
	var raw [abi.AdminCmdSize]byte
	if err := a.sq.Read(raw[:]); err != nil {
		a.user.Fault(abi.FaultCommand, fmt.Sprintf("admin submission queue: %v", err))
		return false
	}
	a.sq.Take()
	cmd := &a.cmd
	cmd.Unmarshal(raw[:])
	*pages -= cmd.Pages()
	cqe.ID = cmd.ID
	cqe.Status = a.user.command(now, cmd, cqe.Result[:])
	return true
}

// readPages goes on with the registration in progress. It reports whether that is complete.
func (a *admin) readPages(cqe *abi.AdminCQE, pages *int) bool {
	a.busy = true
	done, lkey, rkey, st := a.reg.Read(*pages)
	a.busy = false
	if !done {
		*pages = 0
		return false
	}
	*pages--
	a.reg = nil
	cqe.ID, cqe.Status = a.cmd.ID, st
	(&abi.RegMRResult{LKey: lkey, RKey: rkey}).Marshal(cqe.Result[:])
	return true
}

// describe completes a violation of the command in progress: the engine does not know which it is,
// and has bytes only where it knows better than the command itself what was wrong.
func (a *admin) describe(v *abi.Violation) {
	if v.Ring != abi.RingAdmin || !a.busy {
		return
	}
	a.told, v.Index = abi.Clause(v.Clause), a.sq.Next()-1
	if v.Length == 0 {
		v.Length = uint8(copy(v.Bytes[:], commandBytes(&a.cmd)))
	}
}

// commandBytes is a command as it came.
func commandBytes(cmd *abi.AdminCmd) []byte {
	b := make([]byte, abi.AdminCmdSize)
	cmd.Marshal(b)
	return b
}
