package guest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Limits of the admin queues' work in one Step, so that it does not delay others for long. A page
// list may have half a million entries: it is read in pieces.
const (
	adminCommands = 16      // of one function
	adminPages    = 1 << 12 // page list entries of all functions
	turnPages     = 1 << 9  // page list entries of one registration at a time
)

// registration is a memory registration whose page list is being read. Later commands are carried
// out meanwhile.
type registration struct {
	*verbs.Registration
	of *pending
}

// admin is the pair of admin queues of a function. Both have the same number of entries, which is
// also the most commands that may be outstanding: read, and their completions not yet taken by the
// driver.
type admin struct {
	user           adminUser
	sqRoot, cqRoot uint64             // addresses of the areas' page lists; both 0: the queues are in the window
	window         queues.AdminHolder // the window with the queues, once in use; nil: none
	entries        uint32
	sq             *ring.Consumer
	cq             *ring.CQWriter
	cmd            abi.AdminCmd   // the current command, or the last one
	doing          *pending       // the command that the engine works for now; nil: none
	regs           []registration // in progress; the first is next
	pending        []*pending     // commands to be completed later, at most as many as entries
}

// adminUser is the function that owns the admin queues.
type adminUser interface {
	judge
	// command carries out a command and writes its result.
	command(now falcon.Time, cmd *abi.AdminCmd, result []byte) abi.Status
	// judged records the rules that the driver broke by a command that ended with st.
	judged(c *pending, st abi.Status)
	// completed is called after a pending command was completed. The queue continues if it was
	// waiting for that.
	completed()
	// stopped reports whether the function has a fault.
	stopped() bool
	Fault(code abi.Fault, reason string)
}

// start opens the queues' areas for the first time. With strict it also reports bytes that are not
// zero.
func (a *admin) start(mem *queues.Memory, window queues.AdminHolder, strict bool) error {
	layout := ring.AdminLayout(a.entries)
	if a.sqRoot|a.cqRoot == 0 && window != nil {
		a.window = window
		sq, cq := window.AdminQueues()
		a.sq, a.cq = ring.NewConsumer(sq, layout), ring.NewCQWriter(cq, layout)
		return nil
	}
	open := func(name string, root uint64) (ring.Bytes, error) {
		area, err := queues.ReadArea(mem, root, 1, queues.Span{Length: layout.Size()})
		if err == nil {
			err = judgeArea(a.user, area, strict)
		}
		if err != nil {
			return nil, fmt.Errorf("%s at %#x: %w", name, root, err)
		}
		return area, nil
	}
	sq, err := open("admin submission queue", a.sqRoot)
	if err != nil {
		return err
	}
	cq, err := open("admin completion queue", a.cqRoot)
	if err != nil {
		return err
	}
	a.sq, a.cq = ring.NewConsumer(sq, layout), ring.NewCQWriter(cq, layout)
	return nil
}

// leave gives up the areas. It zeroes those in the window for the next user.
func (a *admin) leave() {
	if a.window == nil {
		return
	}
	zero := make([]byte, ring.AdminLayout(abi.MaxAdminEntries).Size())
	sq, cq := a.window.AdminQueues()
	_, _ = sq.WriteAt(0, zero), cq.WriteAt(0, zero)
}

// ring takes the producer index of a doorbell. It returns false if that is not valid.
func (a *admin) ring(producer uint32) bool {
	_, err := a.sq.Doorbell(producer)
	switch {
	case err == nil:
		return true
	case errors.Is(err, ring.ErrIndex), errors.Is(err, ring.ErrAhead):
		a.user.Broke(abi.DRV502, abi.RingAdmin, 0, producer, binary.LittleEndian.AppendUint32(nil, producer))
		err = fmt.Errorf("doorbell with producer %d after %d of %d entries: %w; write the producer before ringing, never move it back, never overfill the queue", producer, a.sq.Next(), a.entries, err)
	default:
		a.user.Broke(abi.DRV402, abi.RingAdmin, 0, producer, nil)
	}
	a.user.Fault(abi.FaultCommand, fmt.Sprintf("admin submission queue: %v", err))
	return false
}

// waits reports whether there is work left.
func (a *admin) waits() bool { return len(a.regs) > 0 || a.sq.Ready() > 0 }

// overfull reports whether the driver has more commands outstanding than the queues have entries.
func (a *admin) overfull() (bool, error) {
	if len(a.pending) == 0 {
		return a.cq.Full()
	}
	_, err := a.cq.Look()
	return int(a.cq.Next()-a.cq.Consumer())+len(a.pending) >= int(a.entries), err
}

// run starts waiting commands in order, up to the limit of a Step, and continues registrations,
// each in its turn. It returns the number of commands it started, and whether it wrote completions.
// pages is the number of page list entries that may still be read. Each command is copied from
// guest memory once. Its completion is written before any event that it causes is sent.
func (a *admin) run(now falcon.Time, pages *int) (done int, completed bool) {
	for *pages > 0 && !a.user.stopped() {
		var cqe abi.AdminCQE
		began := done < adminCommands && a.next(now, &cqe, pages)
		if began {
			done++
		}
		if began && cqe.Status != abi.StatusPending {
			if !a.complete(&cqe) {
				break
			}
			completed = true
		}
		if !a.register(pages) && !began {
			break
		}
	}
	return done, completed
}

// complete writes a completion. It returns false if the queue cannot be written.
func (a *admin) complete(cqe *abi.AdminCQE) bool {
	if cqe.Status != abi.StatusOK {
		clear(cqe.Result[:])
	}
	var raw [abi.AdminCQESize]byte
	cqe.Marshal(raw[:])
	err := a.cq.Write(raw[:])
	if err == nil {
		err = a.cq.Commit()
	}
	if err != nil {
		a.user.Fault(abi.FaultCommand, fmt.Sprintf("admin completion queue: %v", err))
		return false
	}
	return true
}

// next carries out the next command, or starts it. It returns false if there is none.
func (a *admin) next(now falcon.Time, cqe *abi.AdminCQE, pages *int) bool {
	if a.sq.Ready() == 0 {
		return false
	}
	full, err := a.overfull()
	if err == nil && full {
		a.user.Broke(abi.DRV501, abi.RingAdmin, 0, a.sq.Next(), nil)
		err = fmt.Errorf("%d commands are outstanding; take completions, and store the consumer index, before sending more", a.entries)
	}
	var raw [abi.AdminCmdSize]byte
	if err == nil {
		err = a.sq.Read(raw[:])
	}
	if err == nil {
		a.sq.Take()
		err = a.sq.Commit()
	}
	if err != nil {
		a.user.Fault(abi.FaultCommand, fmt.Sprintf("admin queues: %v", err))
		return false
	}
	cmd := &a.cmd
	cmd.Unmarshal(raw[:])
	*pages -= cmd.Pages()
	cqe.ID = cmd.ID
	cqe.Status = a.user.command(now, cmd, cqe.Result[:])
	return true
}

// begin adds a registration that the current command started, unless it has failed already.
func (a *admin) begin(g *verbs.Registration, st abi.Status) abi.Status {
	if st != abi.StatusOK {
		return st
	}
	a.doing.later()
	a.regs = append(a.regs, registration{g, a.doing})
	return abi.StatusPending
}

// register reads a part of the page list of the next registration. It returns false if there is
// none.
func (a *admin) register(pages *int) bool {
	if len(a.regs) == 0 || a.user.stopped() {
		return false
	}
	g := a.regs[0]
	n := min(*pages, turnPages, max(g.Left(), 1))
	*pages -= n
	a.doing = g.of
	done, lkey, rkey, st := g.Read(n)
	a.doing = nil
	a.regs = a.regs[:copy(a.regs, a.regs[1:])]
	if !done {
		a.regs = append(a.regs, g)
		return true
	}
	var keys abi.Result
	if st == abi.StatusOK {
		keys = &abi.RegMRResult{LKey: lkey, RKey: rkey}
	}
	g.of.Complete(st, keys)
	return true
}

// describe adds the current command to a violation that the engine found: the engine does not know
// the command's index, and gives bytes only where they show the error better than the command
// itself.
func (a *admin) describe(v *abi.Violation) {
	if v.Ring != abi.RingAdmin || a.doing == nil {
		return
	}
	a.doing.told, v.Index = abi.Clause(v.Clause), a.doing.index
	if v.Length == 0 {
		v.Length = uint8(copy(v.Bytes[:], commandBytes(&a.doing.cmd)))
	}
}

// commandBytes returns a command in the form in which the driver sent it.
func commandBytes(cmd *abi.AdminCmd) []byte {
	b := make([]byte, abi.AdminCmdSize)
	cmd.Marshal(b)
	return b
}

// pending is a command that is completed later, by the holder of its ticket: another shard or the
// NIC's core has to be asked. Other commands complete meanwhile; drivers match completions by ID
// (DRV-504).
//
//	Dispatch ─▶ handler ─ later ─▶ StatusPending, and the ticket goes with the request
//	completion ◀───────────────────── Complete(status, result) ◀──── the answer
//
// A reset of the function drops it: then Complete does nothing.
type pending struct {
	in    *admin // nil: it was completed or dropped
	cmd   abi.AdminCmd
	index uint32     // in the queue
	told  abi.Clause // clause that the engine has already recorded; 0: none
}

var _ abi.Ticket = (*pending)(nil)

// current returns the current command.
func (a *admin) current() *pending {
	return &pending{cmd: a.cmd, index: a.sq.Next() - 1, in: a}
}

// later is called by a handler before it returns StatusPending.
func (c *pending) later() abi.Ticket {
	c.in.pending = append(c.in.pending, c)
	return c
}

// Complete implements abi.Ticket.
func (c *pending) Complete(st abi.Status, result abi.Result) {
	a := c.in
	if a == nil || !a.drop(c) || a.user.stopped() {
		return
	}
	cqe := abi.AdminCQE{ID: c.cmd.ID, Status: st}
	if result != nil {
		result.Marshal(cqe.Result[:])
	}
	a.user.judged(c, st)
	if a.complete(&cqe) {
		a.user.completed()
	}
}

// drop removes a command from the pending ones. It returns false if it was not among them.
func (a *admin) drop(c *pending) bool {
	for i, p := range a.pending {
		if p == c {
			a.pending = append(a.pending[:i], a.pending[i+1:]...)
			c.in = nil
			return true
		}
	}
	return false
}

// forget drops all pending commands.
func (a *admin) forget() {
	for _, c := range a.pending {
		c.in = nil
	}
	a.pending = nil
}
