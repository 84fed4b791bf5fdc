package device

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// function is a PF or VF as the shard runs it: identity and lifecycle from
// pfvf, verbs from rdma, its admin queues, its connections, and the session
// that drives it, if any.
type function struct {
	*pfvf.Function
	shard  *Shard
	cfg    config.Function // as it is now; the shard's own copy
	limits verbs.Limits

	binding *guest.Binding // nil: nobody is attached
	verbs   *rdma.Function
	admin   admin
	conns   *conn.Function

	cqEvents guest.CQEvents

	faults *sabotage     // nil: in service
	split  atomic.Uint64 // not 0: a seed to cut messages to the driver in pieces with

	inBacklog bool // stands in the shard's adminBacklog, also after a reset

	violations guest.Violations // of its drivers

	faultCode   abi.Fault // found in the middle of other work, acted on at the end of the Step
	faultReason string
}

var _ guest.Driven = (*function)(nil)

// Number implements guest.Driven.
func (f *function) Number() uint32 { return uint32(f.ID) }

// Name implements guest.Driven.
func (f *function) Name() string { return f.ID.String() }

// Split implements guest.Driven.
func (f *function) Split() uint64 { return f.split.Load() }

// Handle implements guest.Driven.
func (f *function) Handle(now falcon.Time, b *guest.Binding, r *guest.Request) {
	f.shard.handle(now, b, f, r)
}

// Rung implements guest.Driven.
func (f *function) Rung(now falcon.Time, d *abi.Doorbell, raw []byte) {
	if f.shard.cfg.NIC.Strict && d.Reserved(raw) {
		f.broke(abi.DRV102, abi.RingBells, d.Queue, d.Index, raw)
	}
	f.doorbell(now, d)
}

// Broke implements guest.Driven.
func (f *function) Broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte) {
	f.broke(clause, where, queue, index, b)
}

func functionLimits(l *config.Limits, mtu int) verbs.Limits {
	limits := verbs.Limits{
		MTU: mtu, QPEntries: int(l.QPEntries), CQEntries: int(l.CQEntries), ReadAtomic: int(l.ReadAtomic), PageListBytes: int(l.PageLists),
	}
	for k, n := range l.Objects() {
		limits.Objects[k] = int(*n)
	}
	return limits.WithDefaults()
}

// attach gives the function to a session. The session's memory and events are
// in b.
func (f *function) attach(b *guest.Binding) abi.Status {
	switch {
	case f.Lifecycle.State() == abi.StateDisabled:
		return abi.StatusDenied
	case f.binding != nil:
		return abi.StatusBusy
	}
	if f.Lifecycle.State() == abi.StateError { // left by the session before
		_ = f.Lifecycle.Apply(pfvf.Reset)
	}
	b.Function, f.binding = f, b
	f.violations.Begin()
	return abi.StatusOK
}

// detach ends a session: the function is reset and free for the next. After a
// fault only its resources are freed; the reason stays readable. A VF that was
// disabled meanwhile goes with its last session.
func (f *function) detach(now falcon.Time, b *guest.Binding) {
	if f.binding != b {
		return
	}
	f.shard.drops[dropAsyncEvent] += b.Channel.Dropped()
	f.binding = nil
	switch f.Lifecycle.State() {
	case abi.StateError:
		f.clear(now)
	case abi.StateDisabled:
		f.clear(now)
		f.shard.funcs.forget(f)
	default:
		f.reset(now)
	}
}

// enable starts the function on the driver's admin queues.
func (f *function) enable() abi.Status {
	if err := f.Lifecycle.Apply(pfvf.Enable); err != nil {
		return abi.StatusBadState
	}
	if err := f.admin.start(f.binding.Memory); err != nil {
		f.Fault(abi.FaultMemory, err.Error())
		return abi.StatusMemoryFault
	}
	f.verbs = f.shard.rdma.NewFunction(uint32(f.ID), f.binding.Memory, f.limits, f)
	f.verbs.UseFeatures(f.binding.Features)
	f.verbs.UseStrict(f.shard.cfg.NIC.Strict)
	if f.faults != nil {
		f.verbs.UseFaults(f.faults)
	}
	f.judgePages()
	f.verbs.UseRate(&f.Rate)
	f.verbs.SetWeight(int(f.cfg.Weight))
	f.verbs.UseCredits(f.Credits)
	f.verbs.UseTrace(f.conns.Trace)
	if err := f.Lifecycle.Apply(pfvf.Ready); err != nil {
		return abi.StatusBadState
	}
	f.conns.Start(f.verbs, f.binding.Memory)
	return abi.StatusOK
}

// reset is the function-level reset of this function alone.
func (f *function) reset(now falcon.Time) {
	f.clear(now)
	_ = f.Lifecycle.Apply(pfvf.Reset) // fails in DISABLED only, where there is nothing to reset
}

// clear frees everything the driver made and set.
func (f *function) clear(now falcon.Time) {
	f.release(now)
	f.admin = admin{}
	if f.faults != nil {
		f.faults.forget()
	}
	f.faultCode, f.faultReason = abi.FaultNone, ""
}

// release gives back every object and connection.
func (f *function) release(now falcon.Time) {
	s := f.shard
	f.cqEvents.Clear()
	f.conns.Stop(now)
	if f.verbs != nil {
		f.verbs.Close(now)
		f.verbs = nil
	}
	s.cm.Run(now)
	s.table.EndPartingsOf(now, &f.conns.Owner)
	s.drainFalcon(now)
	f.conns.Forget()
}

// Fault implements verbs.Notifier: the driver did what no driver may do. It can
// come in the middle of anything, so it is only noted here.
func (f *function) Fault(code abi.Fault, reason string) {
	if f.faultCode != abi.FaultNone {
		return
	}
	f.faultCode, f.faultReason = code, reason
	f.shard.faulted = append(f.shard.faulted, f)
}

// stopFaulted puts functions with a fault into ERROR, tells their drivers and
// frees what they hold. Nothing else notices.
func (s *Shard) stopFaulted(now falcon.Time) {
	for len(s.faulted) > 0 {
		f := s.faulted[0]
		s.faulted = s.faulted[:copy(s.faulted, s.faulted[1:])]
		if f.faultCode == abi.FaultNone || !f.Lifecycle.Fail(f.faultCode, f.faultReason) {
			continue
		}
		s.log.line(now, slog.LevelWarn, "function fault", "function", f.ID.String(), "fault", f.faultCode.String(), "reason", f.faultReason)
		f.release(now)
		f.Notify(&abi.AsyncEvent{Type: abi.EventFunctionFault, Status: uint32(f.faultCode)}, f.faultReason)
	}
}

// CQEvent implements verbs.Notifier.
func (f *function) CQEvent(cqn uint32) {
	if f.faults == nil || !f.faults.cqEvent(cqn) {
		f.sendCQEvent(cqn)
	}
}

func (f *function) sendCQEvent(cqn uint32) {
	if !f.cqEvents.Post(cqn) && f.binding != nil {
		f.binding.CQEvent(cqn)
	}
}

// AsyncEvent implements verbs.Notifier.
func (f *function) AsyncEvent(typ abi.EventType, number, status uint32, reason string) {
	f.Notify(&abi.AsyncEvent{Type: typ, Number: number, Status: status}, reason)
}

// Notify implements conn.Driver: it sends an event with text, which is cut to what an event has room for, or
// with private data.
func (f *function) Notify(e *abi.AsyncEvent, priv string) {
	if f.binding == nil {
		return
	}
	e.PrivLen = uint16(copy(e.Priv[:], abi.Shorten(priv, len(e.Priv))))
	if f.faults == nil || !f.faults.asyncEvent(e) {
		f.sendAsync(e)
	}
}

func (f *function) sendAsync(e *abi.AsyncEvent) {
	if f.binding == nil {
		return
	}
	if !f.binding.AsyncEvent(e) {
		f.broke(abi.DRV205, abi.RingStream, 0, 0, nil)
	}
}

// describe names the function and who drives it, for logs.
func (f *function) describe() string {
	if f.binding == nil {
		return f.ID.String()
	}
	return fmt.Sprintf("%s (%s)", f.ID, guest.Name(f.binding.Peer))
}

// createCQ is the admin command.
func (f *function) createCQ(c *abi.CreateCQ) (cqn uint32, st abi.Status) {
	q, st := guest.Choose(f.binding.Events, c.Vector)
	if st != abi.StatusOK {
		return 0, st
	}
	cqn, st = f.verbs.CreateCQ(c)
	if st == abi.StatusOK && q != nil {
		f.cqEvents.Add(cqn, q)
	}
	return cqn, st
}

// destroyCQ is the admin command.
func (f *function) destroyCQ(cqn uint32) abi.Status {
	st := f.verbs.DestroyCQ(cqn)
	if st == abi.StatusOK {
		f.cqEvents.Remove(cqn)
	}
	return st
}
