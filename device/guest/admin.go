package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

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
//
//	doorbell ─▶ run ─▶ runNext ─▶ carryOut ─▶ abi.Dispatch ─▶ commands (commands.go)
//	                     └───▶ complete ─▶ an event
type admin struct {
	f              *Device            // the function that they belong to
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
			err = a.checkArea(area, strict)
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

// checkArea reads the area of a queue, which must be readable and zero. With strict, the first byte that
// is not zero is recorded as a violation.
func (a *admin) checkArea(area *queues.Area, strict bool) error {
	b := make([]byte, area.Len())
	if err := area.ReadAt(0, b); err != nil {
		return err
	}
	if i := slices.IndexFunc(b, func(v byte) bool { return v != 0 }); i >= 0 && strict {
		a.f.Broke(abi.DRV301, abi.RingAdmin, 0, uint32(i), b[i&^7:])
	}
	return nil
}

// zeroWindow zeroes the queues in the window, if they are there, for the next user.
func (a *admin) zeroWindow() {
	if a.window == nil {
		return
	}
	zero := make([]byte, ring.AdminLayout(abi.MaxAdminEntries).Size())
	sq, cq := a.window.AdminQueues()
	_, _ = sq.WriteAt(0, zero), cq.WriteAt(0, zero)
}

// doorbell takes the producer index of a doorbell and starts working on the commands.
func (a *admin) doorbell(now falcon.Time, producer uint32) {
	f := a.f
	if a.takeProducer(producer) && !f.inBacklog && (f.Faults.in == nil || !f.Faults.in.postpone()) {
		a.run(now)
	}
}

// takeProducer takes the producer index of a doorbell. It returns false if that is not valid.
func (a *admin) takeProducer(producer uint32) bool {
	_, err := a.sq.Doorbell(producer)
	switch {
	case err == nil:
		return true
	case errors.Is(err, ring.ErrIndex), errors.Is(err, ring.ErrAhead):
		a.f.Broke(abi.DRV502, abi.RingAdmin, 0, producer, binary.LittleEndian.AppendUint32(nil, producer))
		err = fmt.Errorf("doorbell with producer %d after %d of %d entries: %w; write the producer before ringing, never move it back, never overfill the queue", producer, a.sq.Next(), a.entries, err)
	default:
		a.f.Broke(abi.DRV402, abi.RingAdmin, 0, producer, nil)
	}
	a.f.Fault(abi.FaultCommand, fmt.Sprintf("admin submission queue: %v", err))
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

// run starts waiting commands in order, up to the limits of a Step, and continues registrations,
// each in its turn. Each command is copied from guest memory once. Its completion is written before
// any event that it causes is sent. The function stays in the set's backlog while there is more.
func (a *admin) run(now falcon.Time) {
	f, pages := a.f, &a.f.set.adminPages
	done, completed := 0, false
	for *pages > 0 && !f.faulted() {
		var cqe abi.AdminCQE
		began := done < adminCommands && a.runNext(now, &cqe, pages)
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
	f.set.Commands += uint64(done)
	if f.faulted() {
		return
	}
	if completed {
		f.CQEvent(abi.AdminCQ)
	}
	a.queueRest()
}

// queueRest puts the function into the set's backlog, if its admin queues have work left.
func (a *admin) queueRest() {
	if f := a.f; a.waits() && !f.inBacklog {
		f.inBacklog = true
		f.set.backlog = append(f.set.backlog, f)
	}
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
		a.f.Fault(abi.FaultCommand, fmt.Sprintf("admin completion queue: %v", err))
		return false
	}
	return true
}

// runNext carries out the next command, or starts it. It returns false if there is none.
func (a *admin) runNext(now falcon.Time, cqe *abi.AdminCQE, pages *int) bool {
	if a.sq.Ready() == 0 {
		return false
	}
	full, err := a.overfull()
	if err == nil && full {
		a.f.Broke(abi.DRV501, abi.RingAdmin, 0, a.sq.Next(), nil)
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
		a.f.Fault(abi.FaultCommand, fmt.Sprintf("admin queues: %v", err))
		return false
	}
	cmd := &a.cmd
	cmd.Unmarshal(raw[:])
	*pages -= cmd.Pages()
	cqe.ID = cmd.ID
	cqe.Status = a.carryOut(now, cqe.Result[:])
	return true
}

// carryOut carries out the current command and writes its result.
func (a *admin) carryOut(now falcon.Time, result []byte) abi.Status {
	f := a.f
	if in := f.Faults.in; in != nil {
		if st, fails := in.command(&a.cmd); fails {
			return st
		}
	}
	c := &pending{in: a, cmd: a.cmd, index: a.sq.Next() - 1}
	a.doing = c
	h := &commands{Function: f.verbs, ConnectionHandler: f.conns.Commands(now, c.later), f: f, now: now, later: c.later}
	st := abi.Dispatch(h, f.caller(), &a.cmd, result)
	a.doing = nil
	if st != abi.StatusPending {
		a.ended(c, st)
	}
	return st
}

// ended records the rules that the driver broke by a command that ended with st.
func (a *admin) ended(c *pending, st abi.Status) {
	for _, clause := range a.f.caller().Broken(&c.cmd, st, a.f.set.cfg.Strict) {
		if clause != c.recorded {
			a.f.Broke(clause, abi.RingAdmin, 0, c.index, commandBytes(&c.cmd))
		}
	}
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
	if len(a.regs) == 0 || a.f.faulted() {
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
	a.doing.recorded, v.Index = abi.Clause(v.Clause), a.doing.index
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
	in       *admin // nil: it was completed or dropped
	cmd      abi.AdminCmd
	index    uint32     // in the queue
	recorded abi.Clause // clause that the engine has already recorded; 0: none
}

var _ abi.Ticket = (*pending)(nil)

// later is called by a handler before it returns StatusPending.
func (c *pending) later() abi.Ticket {
	c.in.pending = append(c.in.pending, c)
	return c
}

// Complete implements abi.Ticket.
func (c *pending) Complete(st abi.Status, result abi.Result) {
	a := c.in
	if a == nil || !a.drop(c) || a.f.faulted() {
		return
	}
	cqe := abi.AdminCQE{ID: c.cmd.ID, Status: st}
	if result != nil {
		result.Marshal(cqe.Result[:])
	}
	a.ended(c, st)
	if !a.complete(&cqe) {
		return
	}
	a.f.CQEvent(abi.AdminCQ)
	if in := a.f.Faults.in; in == nil || in.adminFrom == 0 {
		a.queueRest()
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
