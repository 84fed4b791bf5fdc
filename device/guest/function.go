package guest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Settings are what a function is set to, as its driver notices.
type Settings struct {
	Limits    verbs.Limits
	Weight    int
	Window    queues.Window // part of its guest's memory that it may reach; none: all
	MaxTxRate uint64        // Mbit/s; 0: no limit
	Addresses []netip.Addr  // that the configuration gives it in its tenant
}

// Connections are a function's, as far as its driver's doing bears on them.
type Connections interface {
	// Commands carries out the driver's commands of connection management. One that is completed
	// later takes its ticket from later.
	Commands(now falcon.Time, later func() abi.Ticket) abi.ConnectionHandler
	// Wire connects a queue pair that was moved to RTR.
	Wire(now falcon.Time, qpn uint32)
	// EndQP ends the connection of a queue pair that is reset, in error or gone.
	EndQP(now falcon.Time, qpn uint32)
	// Start puts them in service.
	Start(v *rdma.Function, mem *queues.Memory)
	// Stop ends all of them. The function's objects are closed after it, and then follows Stopped.
	Stop()
	Stopped(now falcon.Time)
}

// Owner is what a function belongs to: the shard's functions, of which a PF has some, and its share
// of the NIC.
type Owner interface {
	// VF returns who carries out a PF's commands for one of its VFs. One that is completed later
	// takes its ticket from later.
	VF(now falcon.Time, n uint16, later func() abi.Ticket) (abi.VFHandler, abi.Status)
	// VFs counts the VFs that a PF can have, and those that are enabled.
	VFs() (possible, enabled int)
	// TakeVFsDown resets the VFs of a PF.
	TakeVFsDown(now falcon.Time)
	// QueryObjects tells how many objects the function may have, or has.
	QueryObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status)
	// Announce has peers told of an address of the function instead of another; zero stands for
	// none. then is called with the answer, also after a reset.
	Announce(add, drop [16]byte, then func(abi.Status))
	// Withdraw takes back all that was announced, and all that is to be.
	Withdraw()
	// LinkMoved says that something holds its link down, or no more.
	LinkMoved(now falcon.Time)
	// CreditsChanged says that credits are kept from it, or no more.
	CreditsChanged()
	// Left says that its driver has left, which did not take so many events.
	Left(now falcon.Time, untaken uint64)
}

// Function is a PF or VF as its driver sees it: identity and lifecycle from pfvf, verbs from rdma,
// its admin queues, and the driver, if there is one. It belongs to its Set's shard.
type Function struct {
	*pfvf.Function
	Events
	Faults Faults

	set   *Set
	owner Owner
	conns Connections
	is    Settings

	verbs *rdma.Function // nil: not in service
	admin admin
	gids  *gidTable // of a function in service

	inBacklog  bool // stands in the set's backlog, also after a reset
	violations Violations

	faultCode   abi.Fault // found in the middle of other work, acted on at the end of the Step
	faultReason string
}

var (
	_ verbs.Notifier = (*Function)(nil)
	_ adminUser      = (*Function)(nil)
	_ victim         = (*Function)(nil)
	_ bound          = (*Function)(nil)
)

// Add makes a function. Connect and Adopt follow.
func (s *Set) Add(id *pfvf.Function, owner Owner) *Function {
	f := &Function{Function: id, set: s, owner: owner}
	f.admin.user = f
	f.Faults.f, f.Faults.now, f.Faults.changed = f, &s.now, func(on bool) { s.faultsChanged(f, on) }
	f.Events = Events{of: id, to: f, faults: &f.Faults}
	return f
}

// Connect gives the function its connections.
func (f *Function) Connect(c Connections) { f.conns = c }

// Adopt takes over what the function is set to now.
func (f *Function) Adopt(now falcon.Time, is Settings) {
	f.is = is
	if f.verbs != nil {
		f.verbs.SetLimits(is.Limits)
		f.verbs.SetWeight(is.Weight)
	}
	f.Rate.SetRate(now, is.MaxTxRate*1e6/8)
}

// Settings are what the function is set to.
func (f *Function) Settings() Settings { return f.is }

// Verbs is the function's verbs side, nil while it is not in service.
func (f *Function) Verbs() *rdma.Function { return f.verbs }

// Driver is who has the function, nil if nobody has.
func (f *Function) Driver() *Binding { return f.driver }

// AdminQueue describes the admin submission queue of a function in service.
func (f *Function) AdminQueue() (entries, producer, consumer, waiting uint32) {
	a := &f.admin
	return a.entries, a.sq.Producer(), a.sq.Next(), a.sq.Ready()
}

// Registering is whether the registration of a region is in progress.
func (f *Function) Registering() bool { return len(f.admin.regs) > 0 }

// Violations are the rules of docs/abi that the function's drivers broke.
func (f *Function) Violations() *Violations { return &f.violations }

// Attach gives the function to a driver.
func (f *Function) Attach(b *Binding) abi.Status {
	switch {
	case f.Lifecycle.State() == abi.StateDisabled:
		return abi.StatusDenied
	case f.driver != nil:
		return abi.StatusBusy
	}
	if f.Lifecycle.State() == abi.StateError { // left by the session before
		_ = f.Lifecycle.Apply(pfvf.Reset)
	}
	b.function, f.driver = f, b
	f.violations.Begin()
	return abi.StatusOK
}

// detach ends a session: the function is reset and free for the next. After a fault only its
// resources are freed; the reason stays readable until the next session. A VF that was disabled
// meanwhile goes with its last session.
func (f *Function) detach(now falcon.Time, b *Binding, fault error) {
	if fault != nil {
		f.breached(now, fault)
	}
	if f.driver != b {
		return
	}
	f.driver = nil
	switch f.Lifecycle.State() {
	case abi.StateError, abi.StateDisabled:
		f.clear(now)
	default:
		f.Reset(now)
	}
	f.owner.Left(now, f.behind)
	f.behind = 0
}

// enable starts the function on the driver's admin queues.
func (f *Function) enable() abi.Status {
	if err := f.Lifecycle.Apply(pfvf.Enable); err != nil {
		return abi.StatusBadState
	}
	mem := f.driver.Memory
	if err := f.admin.start(mem, f.driver.holder, f.set.cfg.Strict); err != nil {
		f.Fault(abi.FaultMemory, err.Error())
		return abi.StatusMemoryFault
	}
	f.verbs = f.set.cfg.Engine.NewFunction(uint32(f.ID), mem, f.is.Limits, f)
	f.verbs.UseFeatures(f.driver.Features)
	f.verbs.UseGateway(f.Gateway)
	f.gids = newGIDTable(f.Registers().gid(), f.MAC)
	f.verbs.SetGID(0, f.gids.entries[0].GID)
	f.verbs.UseStrict(f.set.cfg.Strict)
	if f.Faults.in != nil {
		f.verbs.UseFaults(f.Faults.in)
	}
	f.verbs.UseRate(&f.Rate)
	f.verbs.SetWeight(f.is.Weight)
	f.verbs.UseCredits(f.Credits)
	if err := f.Lifecycle.Apply(pfvf.Ready); err != nil {
		return abi.StatusBadState
	}
	f.conns.Start(f.verbs, mem)
	return abi.StatusOK
}

// Reset is the function-level reset of this function alone.
func (f *Function) Reset(now falcon.Time) {
	f.clear(now)
	_ = f.Lifecycle.Apply(pfvf.Reset) // fails in DISABLED only, where there is nothing to reset
}

// clear frees everything the driver made and set.
func (f *Function) clear(now falcon.Time) {
	f.admin.forget()
	f.admin.leave()
	f.release(now)
	f.admin = admin{user: f}
	if f.Faults.in != nil {
		f.Faults.in.forget()
	}
	f.faultCode, f.faultReason = abi.FaultNone, ""
}

// release gives back every object and connection.
func (f *Function) release(now falcon.Time) {
	f.byCQ.Clear()
	f.conns.Stop()
	if f.verbs != nil {
		f.verbs.Close(now)
		f.verbs = nil
	}
	f.conns.Stopped(now)
	if f.gids != nil && f.gids.asked {
		f.owner.Withdraw()
	}
	f.gids = nil
}

// TakeDown is the function-level reset by the PF or the operator. The driver, if there is one, is
// told and may enable the function again.
func (f *Function) TakeDown(now falcon.Time, reason string) {
	if f.Lifecycle.State() == abi.StateDisabled {
		return
	}
	f.set.cfg.Log(now, slog.LevelInfo, "function reset", "function", f.ID.String(), "reason", reason)
	f.Reset(now)
	f.forget()
	f.TellState(reason)
}

// Disable switches the function off.
func (f *Function) Disable(now falcon.Time) {
	f.clear(now)
	_ = f.Lifecycle.Apply(pfvf.Disable) // allowed in every state
	f.forget()
	f.TellState("disabled")
}

// Fault notes that the driver did what no driver may do. It can come in the middle
// of anything, so it is only noted here.
func (f *Function) Fault(code abi.Fault, reason string) {
	if f.faultCode != abi.FaultNone {
		return
	}
	f.faultCode, f.faultReason = code, reason
	f.set.faulted = append(f.set.faulted, f)
}

// stop puts the function into ERROR, if it has a fault, tells its driver and frees what it holds.
// Nothing else notices.
func (f *Function) stop(now falcon.Time) {
	if f.faultCode == abi.FaultNone || !f.Lifecycle.Fail(f.faultCode, f.faultReason) {
		return
	}
	f.set.cfg.Log(now, slog.LevelWarn, "function fault", "function", f.ID.String(), "fault", f.faultCode.String(), "reason", f.faultReason)
	f.release(now)
	f.Notify(&abi.AsyncEvent{Type: abi.EventFunctionFault, Status: uint32(f.faultCode)}, f.faultReason)
}

// stopped implements adminUser.
func (f *Function) stopped() bool { return f.faultCode != abi.FaultNone }

// serves is whether commands and doorbells mean something.
func (f *Function) serves() bool { return f.Lifecycle.State() == abi.StateReady && !f.stopped() }

// Violation implements verbs.Notifier.
func (f *Function) Violation(v *abi.Violation) {
	f.admin.describe(v)
	now := f.set.now
	if f.violations.Note(now, v) {
		f.set.cfg.Log(now, slog.LevelWarn, "driver broke a rule of docs/abi", "function", f.ID.String(), "clause", abi.Clause(v.Clause).String(),
			"ring", v.Ring.String(), "queue", v.Queue, "index", v.Index, "bytes", hex.EncodeToString(v.Bytes[:v.Length]))
	}
}

// Mistake implements verbs.Notifier.
func (f *Function) Mistake(m *verbs.Mistake) {
	now := f.set.now
	if f.violations.NoteMistake(now, m) {
		f.set.cfg.Log(now, slog.LevelWarn, "driver posted a wrong work request", "function", f.ID.String(),
			"ring", m.Ring.String(), "queue", m.Queue, "index", m.Index, "status", m.Status.String(), "why", m.Why.String())
	}
}

// Broke records a violation that the device itself found.
func (f *Function) Broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: queue, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	f.Violation(v)
}

// breached ends a session's function: its driver broke the rules.
func (f *Function) breached(now falcon.Time, fault error) {
	if b := (*Breach)(nil); errors.As(fault, &b) {
		f.Broke(b.Clause, abi.RingStream, 0, 0, b.Bytes)
	}
	f.Fault(abi.FaultProtocol, fault.Error())
	f.set.StopFaulted(now)
}

// Describe names the function and who drives it, for logs.
func (f *Function) Describe() string {
	if f.driver == nil {
		return f.ID.String()
	}
	return fmt.Sprintf("%s (%s)", f.ID, Name(f.driver.Peer))
}
