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
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Settings holds the settings of a function that concern its driver.
type Settings struct {
	Limits    verbs.Limits
	Weight    int
	Window    queues.Window   // part of its guest's memory that it may reach; zero: all of it
	MaxTxRate uint64          // Mbit/s; 0: no limit
	Addresses []netip.Addr    // addresses that the configuration gives it in its tenant
	WireKind  *transport.Kind // the only one that it uses; nil: several
}

// Features returns the features that a function with these settings offers.
func (s *Settings) Features() uint64 {
	if s.WireKind == nil {
		return Features
	}
	return Features&^s.WireKind.Without | s.WireKind.Features
}

// Connections manages the connections of a function, as far as its driver's actions concern them.
type Connections interface {
	// Commands returns a handler for the driver's commands of connection management. A command that
	// is completed later takes its ticket from later.
	Commands(now falcon.Time, later func() abi.Ticket) abi.ConnectionHandler
	// ConnectByNumber connects a queue pair that was moved to RTR with the one that its driver named.
	ConnectByNumber(now falcon.Time, qpn uint32)
	// EndQP ends the connection of a queue pair that was reset, is in error or was destroyed.
	EndQP(now falcon.Time, qpn uint32)
	// Start begins service.
	Start(v *rdma.Function, mem *queues.Memory)
	// Stop ends all connections. The function's objects are closed after it, and then Stopped is
	// called.
	Stop()
	Stopped(now falcon.Time)
}

// Owner is the shard's side of a function: the other functions, such as a PF's VFs, and the
// function's share of the NIC.
type Owner interface {
	// VF returns a handler for a PF's commands about one of its VFs. A command that is completed
	// later takes its ticket from later.
	VF(now falcon.Time, n uint16, later func() abi.Ticket) (abi.VFHandler, abi.Status)
	// VFs returns how many VFs a PF can have, and how many are enabled.
	VFs() (possible, enabled int)
	// TakeVFsDown resets the VFs of a PF.
	TakeVFsDown(now falcon.Time)
	// QueryObjects returns how many objects the function may have, or has.
	QueryObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status)
	// Announce tells peers that the function now has the address add and no longer has the
	// address drop (zero: none). It calls then with the answer, even after a reset.
	Announce(add, drop [16]byte, then func(abi.Status))
	// Withdraw takes back everything that was announced or is still to be announced.
	Withdraw()
	// LinkChanged reports that a fault holds the function's link down, or has ended.
	LinkChanged(now falcon.Time)
	// CreditsChanged reports that a fault withholds credits from the function, or has ended.
	CreditsChanged()
	// Left reports that the driver has left. untaken is the number of connections refused because
	// the driver did not take its events.
	Left(now falcon.Time, untaken uint64)
}

// Device is a PF or VF as its driver sees it: identity and lifecycle from pfvf, verbs from rdma,
// its admin queues, and the driver, if there is one. It belongs to the shard of its Set.
type Device struct {
	*pfvf.Function
	Faults Faults

	set   *Set
	owner Owner
	conns Connections
	is    Settings

	driver *Binding // nil: the function has no driver
	byCQ   CQEvents

	refusedBehind uint64 // connections that were refused because the driver did not take its events

	verbs *rdma.Function // nil: not in service
	admin admin
	gids  *gidTable // nil while the function is not in service

	inBacklog  bool // listed in set.backlog, also after a reset
	violations Violations

	faultCode   abi.Fault // found during other work, handled at the end of the Step
	faultReason string
}

var (
	_ verbs.Notifier = (*Device)(nil)
	_ faultTarget    = (*Device)(nil)
)

// Add returns a new function. The caller calls Connect and Adopt on it next.
func (s *Set) Add(function *pfvf.Function, owner Owner) *Device {
	f := &Device{Function: function, set: s, owner: owner}
	f.admin.f = f
	f.Faults.f, f.Faults.now, f.Faults.changed = f, &s.now, func(on bool) { s.faultsChanged(f, on) }
	return f
}

// Connect gives the function its connections.
func (f *Device) Connect(c Connections) { f.conns = c }

// Adopt applies new settings.
func (f *Device) Adopt(now falcon.Time, is Settings) {
	f.is = is
	if f.verbs != nil {
		f.verbs.SetLimits(is.Limits)
		f.verbs.SetWeight(is.Weight)
	}
	f.Rate.SetRate(now, is.MaxTxRate*1e6/8)
}

// Settings returns the function's settings.
func (f *Device) Settings() Settings { return f.is }

// Verbs returns the function's verbs side, nil while it is not in service.
func (f *Device) Verbs() *rdma.Function { return f.verbs }

// Driver returns the function's driver, nil if there is none.
func (f *Device) Driver() *Binding { return f.driver }

// AdminQueue describes the admin submission queue of a function in service.
func (f *Device) AdminQueue() (entries, producer, consumer, waiting uint32) {
	a := &f.admin
	return a.entries, a.sq.Producer(), a.sq.Next(), a.sq.Ready()
}

// Registering reports whether a memory registration is in progress.
func (f *Device) Registering() bool { return len(f.admin.regs) > 0 }

// Violations returns the rules of docs/abi that the function's drivers broke.
func (f *Device) Violations() *Violations { return &f.violations }

// Attach gives the function to a driver.
func (f *Device) Attach(b *Binding) abi.Status {
	switch {
	case f.Lifecycle.State() == abi.StateDisabled:
		return abi.StatusDenied
	case f.driver != nil:
		return abi.StatusBusy
	}
	if f.Lifecycle.State() == abi.StateError { // left over from the previous session
		_ = f.Lifecycle.Apply(pfvf.Reset)
	}
	b.device, f.driver = f, b
	b.Features &= f.is.Features()
	b.taped(f)
	f.violations.Begin()
	return abi.StatusOK
}

// detach ends a session: the function is reset and free for the next. After a fault only its
// resources are freed; the reason stays readable until the next session. A VF that was disabled
// during the session is removed (Owner.Left).
func (f *Device) detach(now falcon.Time, b *Binding, fault error) {
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
	f.owner.Left(now, f.refusedBehind)
	f.refusedBehind = 0
}

// enable starts the function with the driver's admin queues.
func (f *Device) enable() abi.Status {
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

// Reset does a function-level reset of this function alone.
func (f *Device) Reset(now falcon.Time) {
	f.clear(now)
	_ = f.Lifecycle.Apply(pfvf.Reset) // fails only in DISABLED, where there is nothing to reset
}

// clear frees everything that the driver created and resets what it set.
func (f *Device) clear(now falcon.Time) {
	f.admin.forget()
	f.admin.zeroWindow()
	f.release(now)
	f.admin = admin{f: f}
	if f.Faults.in != nil {
		f.Faults.in.forget()
	}
	f.faultCode, f.faultReason = abi.FaultNone, ""
}

// release frees every object and connection.
func (f *Device) release(now falcon.Time) {
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

// TakeDown does a function-level reset for the PF or the operator. The driver, if there is one, is
// told and may enable the function again.
func (f *Device) TakeDown(now falcon.Time, reason string) {
	if f.Lifecycle.State() == abi.StateDisabled {
		return
	}
	f.set.cfg.Log(now, slog.LevelInfo, "function reset", "function", f.ID.String(), "reason", reason)
	f.Reset(now)
	f.forget()
	f.TellState(reason)
}

// Disable disables the function.
func (f *Device) Disable(now falcon.Time) {
	f.clear(now)
	_ = f.Lifecycle.Apply(pfvf.Disable) // allowed in every state
	f.forget()
	f.TellState("disabled")
}

// Fault records that the driver did something that stops the function. It may be called during any
// other work, so the function is stopped later, at the end of the Step.
func (f *Device) Fault(code abi.Fault, reason string) {
	if f.faultCode != abi.FaultNone {
		return
	}
	f.faultCode, f.faultReason = code, reason
	f.set.toStop = append(f.set.toStop, f)
}

// stop puts the function into ERROR, if it has a fault, tells its driver and frees its resources.
// Other functions are not affected.
func (f *Device) stop(now falcon.Time) {
	if f.faultCode == abi.FaultNone || !f.Lifecycle.Fail(f.faultCode, f.faultReason) {
		return
	}
	f.set.cfg.Log(now, slog.LevelWarn, "function fault", "function", f.ID.String(), "fault", f.faultCode.String(), "reason", f.faultReason)
	f.set.failed(f.ID, "fault")
	f.release(now)
	f.Notify(&abi.AsyncEvent{Type: abi.EventFunctionFault, Status: uint32(f.faultCode)}, f.faultReason)
}

// faulted reports whether the function has a fault, for which it is stopped at the end of the Step.
func (f *Device) faulted() bool { return f.faultCode != abi.FaultNone }

// serves reports whether the function accepts commands and doorbells.
func (f *Device) serves() bool { return f.Lifecycle.State() == abi.StateReady && !f.faulted() }

// doorbell passes a doorbell on. Before the function is READY, and after a fault, doorbells are
// ignored.
func (f *Device) doorbell(now falcon.Time, d *abi.Doorbell) {
	switch {
	case !f.serves():
	case d.Kind == abi.DoorbellAdmin:
		f.admin.doorbell(now, d.Index)
	default:
		f.verbs.Doorbell(now, d)
	}
}

// Violation implements verbs.Notifier.
func (f *Device) Violation(v *abi.Violation) {
	f.admin.describe(v)
	now := f.set.now
	if f.violations.Note(now, v) {
		f.set.cfg.Log(now, slog.LevelWarn, "driver broke a rule of docs/abi", "function", f.ID.String(), "clause", abi.Clause(v.Clause).String(),
			"ring", v.Ring.String(), "queue", v.Queue, "index", v.Index, "bytes", hex.EncodeToString(v.Bytes[:v.Length]))
		f.set.failed(f.ID, "violation")
	}
}

// Mistake implements verbs.Notifier.
func (f *Device) Mistake(m *verbs.Mistake) {
	now := f.set.now
	if f.violations.NoteMistake(now, m) {
		f.set.cfg.Log(now, slog.LevelWarn, "driver posted a wrong work request", "function", f.ID.String(),
			"ring", m.Ring.String(), "queue", m.Queue, "index", m.Index, "status", m.Status.String(), "why", m.Why.String())
	}
}

// caller describes the driver, for the rules of who may send which command.
func (f *Device) caller() abi.Caller {
	return abi.Caller{PF: !f.ID.IsVF(), Features: f.driver.Features}
}

// Broke records a violation that the device itself found.
func (f *Device) Broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte) {
	v := &abi.Violation{Clause: uint16(clause), Ring: where, Queue: queue, Index: index}
	v.Length = uint8(copy(v.Bytes[:], b))
	f.Violation(v)
}

// breached stops the function of a session whose driver broke the rules.
func (f *Device) breached(now falcon.Time, fault error) {
	if b := (*Breach)(nil); errors.As(fault, &b) {
		f.Broke(b.Clause, abi.RingStream, 0, 0, b.Bytes)
	}
	f.Fault(abi.FaultProtocol, fault.Error())
	f.set.StopFaulted(now)
}

// Describe names the function and its driver, for logs.
func (f *Device) Describe() string {
	if f.driver == nil {
		return f.ID.String()
	}
	return fmt.Sprintf("%s (%s)", f.ID, Name(f.driver.Peer))
}
