package device

import (
	"math"
	"slices"

	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// sabotage is what goes wrong in a function because the operator asked for it
// (vnic inject fault), and what it does in a way of its own (vnic inject
// profile). A function in service has none. It belongs to the shard, and lives
// over resets and sessions.
type sabotage struct {
	f       *function
	rules   fault.Set
	profile *profile // nil: none

	late      []lateEvent // by time
	down      falcon.Time // until when the link is down; 0: it is not
	reset     bool        // at the end of the Step
	flap      bool        // the link changed, at the end of the Step
	starving  bool
	stuck     bool        // a send queue was kept back
	adminFrom falcon.Time // when the admin queue is looked at; 0: at once
}

// lateEvent is an event that waits: one of a completion queue, or another.
type lateEvent struct {
	at    falcon.Time
	cqn   uint32
	async *abi.AsyncEvent
}

const (
	maxLate      = 256
	defaultLate  = 5e6   // ns
	defaultFlap  = 200e6 // ns
	duplicateGap = 1e6   // ns: events at once are merged
)

var _ verbs.Faults = (*sabotage)(nil)

// sabotaged returns the function's faults, made if there were none.
func (s *Shard) sabotaged(f *function) *sabotage {
	if f.faults == nil {
		f.faults = &sabotage{f: f}
		s.faulty = append(s.faulty, f)
		if f.verbs != nil {
			f.verbs.UseFaults(f.faults)
		}
	}
	return f.faults
}

// mend takes all faults off a function.
func (s *Shard) mend(now falcon.Time, f *function) {
	x := f.faults
	if x == nil {
		return
	}
	x.rules.Remove(0)
	x.profile = nil
	for _, e := range x.late {
		x.f.raise(&e)
	}
	x.late = nil
	x.settle(now)
	f.faults = nil
	f.split.Store(0)
	s.faulty = slices.DeleteFunc(s.faulty, func(g *function) bool { return g == f })
	if f.verbs != nil {
		f.verbs.UseFaults(nil)
	}
}

// advanceFaults does what is due.
func (s *Shard) advanceFaults(now falcon.Time) {
	for _, f := range slices.Clone(s.faulty) {
		f.faults.advance(now)
	}
}

// faultDeadline is when something is due next.
func (s *Shard) faultDeadline() falcon.Time {
	at := falcon.Time(math.MaxInt64)
	for _, f := range s.faulty {
		at = min(at, f.faults.deadline(s.now))
	}
	return at
}

func (x *sabotage) deadline(now falcon.Time) falcon.Time {
	at := x.rules.Ends(now)
	if len(x.late) > 0 {
		at = min(at, x.late[0].at)
	}
	if x.down != 0 {
		at = min(at, x.down)
	}
	if x.adminFrom != 0 {
		at = min(at, x.adminFrom)
	}
	if x.profile != nil {
		at = min(at, x.profile.deadline())
	}
	return at
}

func (x *sabotage) advance(now falcon.Time) {
	f := x.f
	if x.reset {
		x.reset = false
		f.takeVFsDown(now)
		f.takeDown(now, "an injected fault reset it")
	}
	for len(x.late) > 0 && x.late[0].at <= now {
		e := x.late[0]
		x.late = x.late[:copy(x.late, x.late[1:])]
		f.raise(&e)
	}
	if x.adminFrom != 0 && now >= x.adminFrom {
		x.adminFrom = 0
		if f.Lifecycle.State() == abi.StateReady && f.faultCode == abi.FaultNone && !f.inBacklog {
			f.runAdmin(now)
		}
	}
	x.settle(now)
}

// settle brings what is a state to what it should be now.
func (x *sabotage) settle(now falcon.Time) {
	f, s := x.f, x.f.shard
	if x.down != 0 && now >= x.down {
		x.down, x.flap = 0, true
	}
	if x.flap {
		x.flap = false
		s.funcs.linkChanged(now, f.ID.Parent())
	}
	if on := x.rules.InForce(now, fault.Starve); on != x.starving {
		x.starving = on
		f.Credits.Starve(on)
		s.falcon.CreditsChanged()
	}
	if x.stuck && !x.rules.InForce(now, fault.StuckQueue) && (x.profile == nil || !x.profile.dozes(now)) {
		x.stuck = false
		if f.verbs != nil {
			f.verbs.Unstick(now)
		}
	}
	if f.verbs != nil && (x.profile == nil || x.profile.releases(now)) {
		f.verbs.Release(now)
	}
}

// forget drops what is under way: the function is reset, and no event of before
// follows (DEV-303).
func (x *sabotage) forget() {
	x.late, x.adminFrom, x.reset = nil, 0, false
}

// later has an event wait. What there is no room for goes out at once.
func (x *sabotage) later(e lateEvent) {
	if len(x.late) >= maxLate {
		x.f.raise(&e)
		return
	}
	i, _ := slices.BinarySearchFunc(x.late, e.at, func(o lateEvent, at falcon.Time) int {
		if o.at <= at { // behind those of the same time: their order is kept
			return -1
		}
		return 1
	})
	x.late = slices.Insert(x.late, i, e)
}

// event has an event lost, late or sent again. It reports whether it is taken care
// of.
func (x *sabotage) event(o *fault.Operation, e lateEvent) bool {
	now := x.f.shard.now
	if x.rules.Hit(now, fault.EventLost, o) != nil {
		return true
	}
	if r := x.rules.Hit(now, fault.EventDuplicate, o); r != nil {
		e.at = now + duplicateGap
		x.later(e)
	}
	if r := x.rules.Hit(now, fault.EventLate, o); r != nil {
		e.at = now + orElse(r.DelayNS, defaultLate)
		x.later(e)
		return true
	}
	if x.profile != nil {
		return x.profile.event(x, e)
	}
	return false
}

func orElse(v, other int64) int64 {
	if v == 0 {
		return other
	}
	return v
}

// cqEvent is event for a completion queue.
func (x *sabotage) cqEvent(cqn uint32) bool {
	o := fault.Operation{CQ: cqn, Event: "cq"}
	if cqn == abi.AdminCQ {
		o = fault.Operation{Event: "admin"}
	}
	return x.event(&o, lateEvent{cqn: cqn})
}

// asyncEvent is event for another event.
func (x *sabotage) asyncEvent(e *abi.AsyncEvent) bool {
	o := fault.Operation{Event: fault.EventName(e.Type)}
	switch e.Type {
	case abi.EventQPFatal, abi.EventQPReqErr, abi.EventQPAccessErr, abi.EventCommEst, abi.EventSQDrained, abi.EventLastWQE:
		o.QP = e.Number
	case abi.EventCQError:
		o.CQ = e.Number
	}
	kept := *e
	return x.event(&o, lateEvent{async: &kept})
}

// raise sends an event that waited.
func (f *function) raise(e *lateEvent) {
	switch {
	case e.async != nil:
		f.sendAsync(e.async)
	default:
		f.sendCQEvent(e.cqn)
	}
}

// command has a command fail. It reports whether it does.
func (x *sabotage) command(cmd *abi.AdminCmd) (st abi.Status, fails bool) {
	if x.f.verbs != nil {
		x.f.verbs.Release(x.f.shard.now) // completions come before what ends their queues
	}
	r := x.rules.Hit(x.f.shard.now, fault.CommandFail, &fault.Operation{Command: cmd.Opcode})
	if r == nil {
		return abi.StatusOK, false
	}
	return abi.Status(r.Status()), true
}

// postpone reports whether the admin queue is left alone for a while.
func (x *sabotage) postpone() bool {
	if x.adminFrom == 0 && x.profile != nil {
		x.adminFrom = x.profile.adminDelay(x.f.shard.now)
	}
	return x.adminFrom != 0
}

// Work implements verbs.Faults.
func (x *sabotage) Work(qpn uint32, op abi.Opcode) abi.WCStatus {
	now, o := x.f.shard.now, fault.Operation{QP: qpn, Opcode: op}
	if x.rules.Hit(now, fault.Reset, &o) != nil {
		x.reset = true
	}
	if x.rules.Hit(now, fault.FunctionFault, &o) != nil {
		x.f.Fault(abi.FaultMemory, "injected by the operator (vnic inject fault)")
	}
	if r := x.rules.Hit(now, fault.LinkFlap, &o); r != nil {
		x.down, x.flap = now+orElse(r.DelayNS, defaultFlap), true
	}
	if r := x.rules.Hit(now, fault.CQEError, &o); r != nil {
		return abi.WCStatus(r.Status())
	}
	return abi.WCSuccess
}

// Access implements verbs.Faults.
func (x *sabotage) Access() bool {
	return x.rules.Hit(x.f.shard.now, fault.DMA, &fault.Operation{}) != nil
}

// Key implements verbs.Faults.
func (x *sabotage) Key(qpn uint32) bool {
	return x.rules.Hit(x.f.shard.now, fault.WrongKey, &fault.Operation{QP: qpn}) != nil
}

// Stuck implements verbs.Faults.
func (x *sabotage) Stuck(qpn uint32) bool {
	now := x.f.shard.now
	if x.rules.Hit(now, fault.StuckQueue, &fault.Operation{QP: qpn}) != nil || x.profile != nil && x.profile.stuck(now) {
		x.stuck = true
		return true
	}
	return false
}

// Hold implements verbs.Faults.
func (x *sabotage) Hold(uint32) bool { return x.profile != nil && x.profile.hold(x.f.shard.now) }
