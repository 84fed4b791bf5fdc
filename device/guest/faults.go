package guest

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Faults holds the faults that the operator injects into a function, by rules and by a profile.
type Faults struct {
	f       faultTarget
	now     *falcon.Time  // time of the current Step
	changed func(on bool) // called when faults begin and when they end
	in      *injection    // nil: no faults
	split   atomic.Uint64 // seed for cutting messages to the driver in pieces; 0: they are not cut
}

// begin returns the injection, which it creates if there is none.
func (x *Faults) begin() *injection {
	if x.in == nil {
		x.in = &injection{f: x.f, now: x.now}
		x.changed(true)
		if v := x.f.Verbs(); v != nil {
			v.UseFaults(x.in)
		}
	}
	return x.in
}

// Inject adds a fault rule.
func (x *Faults) Inject(now falcon.Time, r fault.Rule) error {
	in := x.begin()
	if _, err := in.rules.Add(now, r); err != nil {
		x.endIdle(now)
		return err
	}
	in.settle(now)
	return nil
}

// Remove removes a rule. It reports whether there was one.
func (x *Faults) Remove(now falcon.Time, id uint32) bool {
	if x.in == nil || !x.in.rules.Remove(id) {
		return false
	}
	x.in.settle(now)
	x.endIdle(now)
	return true
}

// UseProfile makes the function behave in ways that are allowed but hard on drivers. seed makes the
// behaviour repeatable.
func (x *Faults) UseProfile(name string, seed uint64) error {
	if name != HostileProfile {
		return fmt.Errorf("unknown profile %q; use %s or none", name, HostileProfile)
	}
	x.begin().profile = newProfile(name, seed)
	x.split.Store(cmp.Or(seed, 1))
	return nil
}

// DropProfile ends the profile.
func (x *Faults) DropProfile(now falcon.Time) {
	if x.in == nil {
		return
	}
	x.in.profile = nil
	x.split.Store(0)
	x.in.settle(now)
	x.endIdle(now)
}

// endIdle ends the injection if it has no rule and no profile.
func (x *Faults) endIdle(now falcon.Time) {
	if x.in.idle() {
		x.End(now)
	}
}

// End removes all faults from the function.
func (x *Faults) End(now falcon.Time) {
	if x.in == nil {
		return
	}
	x.in.end(now)
	x.in = nil
	x.split.Store(0)
	x.changed(false)
	if v := x.f.Verbs(); v != nil {
		v.UseFaults(nil)
	}
}

// Profile returns the name of the profile in use, its seed and what it did; "": there is none.
func (x *Faults) Profile() (name string, seed uint64, did Acts) {
	if x.in == nil || x.in.profile == nil {
		return "", 0, Acts{}
	}
	p := x.in.profile
	return p.name, p.seed, p.did
}

// Rules returns the fault rules.
func (x *Faults) Rules() []*fault.Active {
	if x.in == nil {
		return nil
	}
	return x.in.rules.Rules()
}

// LinkDown reports whether a fault holds the function's link down.
func (x *Faults) LinkDown() bool { return x.in != nil && x.in.down != 0 }

// injection holds the active faults of a function: the rules that the operator set (vnic inject
// fault) and a profile with behaviour of its own (vnic inject profile). A function without faults
// has none. It belongs to the shard, and outlives resets and sessions.
type injection struct {
	f       faultTarget
	now     *falcon.Time // time of the current Step
	rules   fault.Set
	profile *profile // nil: none

	late      []lateEvent // in order of time
	down      falcon.Time // time until which the link is down; 0: it is up
	reset     bool        // reset the function at the end of the Step
	flap      bool        // report a change of the link at the end of the Step
	starving  bool
	stuck     bool        // a send queue was held back
	adminFrom falcon.Time // time at which the admin queue is next looked at; 0: at once
}

// faultTarget is the function that the faults are injected into. Tests have one that records what
// happens to it.
type faultTarget interface {
	// Verbs returns nil while the function is not in service.
	Verbs() *rdma.Function
	// deliver sends an event that was delayed.
	deliver(e *lateEvent)
	// resumeAdmin looks at the admin queue that was postponed.
	resumeAdmin(now falcon.Time)
	resetByFault(now falcon.Time)
	linkChanged(now falcon.Time)
	// starve withholds credits from the function, or ends that.
	starve(on bool)
	Fault(code abi.Fault, reason string)
}

// lateEvent is a delayed event: one of a completion queue, or an asynchronous one; or the delayed
// answer to a register access.
type lateEvent struct {
	at    falcon.Time
	cqn   uint32
	async *abi.AsyncEvent
	reply *lateReply
}

// lateReply is an answer with the session that it is for.
type lateReply struct {
	to  *Binding
	tag uint64
	abi.RegReply
}

const (
	maxLate      = 256
	defaultLate  = 5e6   // ns
	defaultFlap  = 200e6 // ns
	duplicateGap = 1e6   // ns; events at the same time would be merged
)

var _ verbs.Faults = (*injection)(nil)

func (x *injection) deadline(now falcon.Time) falcon.Time {
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

func (x *injection) advance(now falcon.Time) {
	if x.reset {
		x.reset = false
		x.f.resetByFault(now)
	}
	for len(x.late) > 0 && x.late[0].at <= now {
		e := x.late[0]
		x.late = x.late[:copy(x.late, x.late[1:])]
		x.f.deliver(&e)
	}
	if x.adminFrom != 0 && now >= x.adminFrom {
		x.adminFrom = 0
		x.f.resumeAdmin(now)
	}
	x.settle(now)
}

// settle brings lasting effects (link, credits, stuck queues, held completions) to their state for
// now.
func (x *injection) settle(now falcon.Time) {
	if x.down != 0 && now >= x.down {
		x.down, x.flap = 0, true
	}
	if x.flap {
		x.flap = false
		x.f.linkChanged(now)
	}
	if on := x.rules.InForce(now, fault.Starve); on != x.starving {
		x.starving = on
		x.f.starve(on)
	}
	if x.profile != nil {
		x.profile.endPause(now)
	}
	v := x.f.Verbs()
	if x.stuck && !x.rules.InForce(now, fault.StuckQueue) && (x.profile == nil || !x.profile.paused(now)) {
		x.stuck = false
		if v != nil {
			v.Unstick(now)
		}
	}
	if v != nil && (x.profile == nil || x.profile.releases(now)) {
		v.Release(now)
	}
}

// end removes all faults. Delayed events are sent.
func (x *injection) end(now falcon.Time) {
	x.rules.Remove(0)
	x.profile = nil
	for _, e := range x.late {
		x.f.deliver(&e)
	}
	x.late = nil
	x.settle(now)
}

// idle reports whether there is no rule and no profile.
func (x *injection) idle() bool { return len(x.rules.Rules()) == 0 && x.profile == nil }

// forget drops delayed work: the function was reset, and no event from before may follow (DEV-303).
// Answers to register accesses stay.
func (x *injection) forget() {
	x.late = slices.DeleteFunc(x.late, func(e lateEvent) bool { return e.reply == nil })
	x.adminFrom, x.reset = 0, false
}

// later delays an event. If there is no room, it is sent at once.
func (x *injection) later(e lateEvent) {
	if len(x.late) >= maxLate {
		x.f.deliver(&e)
		return
	}
	i, _ := slices.BinarySearchFunc(x.late, e.at, func(o lateEvent, at falcon.Time) int {
		if o.at <= at { // behind those with the same time, so that they keep their order
			return -1
		}
		return 1
	})
	x.late = slices.Insert(x.late, i, e)
}

// event applies the rules to an event, which may be lost, delayed or repeated. It reports whether
// the event needs no sending now.
func (x *injection) event(o *fault.Operation, e lateEvent) bool {
	now := *x.now
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

// cqEvent calls event for an event of a completion queue.
func (x *injection) cqEvent(cqn uint32) bool {
	o := fault.Operation{CQ: cqn, Event: "cq"}
	if cqn == abi.AdminCQ {
		o = fault.Operation{Event: "admin"}
	}
	return x.event(&o, lateEvent{cqn: cqn})
}

// asyncEvent calls event for an asynchronous event.
func (x *injection) asyncEvent(e *abi.AsyncEvent) bool {
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

// register reports whether the answer to a register access is delayed.
func (x *injection) register(to *Binding, tag uint64, reply *abi.RegReply) bool {
	r := x.rules.Hit(*x.now, fault.RegisterLate, &fault.Operation{})
	if r == nil {
		return false
	}
	x.later(lateEvent{at: *x.now + orElse(r.DelayNS, defaultLate), reply: &lateReply{to, tag, *reply}})
	return true
}

// command reports whether a rule makes a command fail, and with which status.
func (x *injection) command(cmd *abi.AdminCmd) (st abi.Status, fails bool) {
	if v := x.f.Verbs(); v != nil {
		v.Release(*x.now) // completions come before the command that ends their queues
	}
	r := x.rules.Hit(*x.now, fault.CommandFail, &fault.Operation{Command: cmd.Opcode})
	if r == nil {
		return abi.StatusOK, false
	}
	return abi.Status(r.Status()), true
}

// postpone reports whether the admin queue is to be left alone for a while.
func (x *injection) postpone() bool {
	if x.adminFrom == 0 && x.profile != nil {
		x.adminFrom = x.profile.adminDelay(*x.now)
	}
	return x.adminFrom != 0
}

// Work implements verbs.Faults.
func (x *injection) Work(qpn uint32, op abi.Opcode) abi.WCStatus {
	now, o := *x.now, fault.Operation{QP: qpn, Opcode: op}
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
func (x *injection) Access() bool {
	return x.rules.Hit(*x.now, fault.DMA, &fault.Operation{}) != nil
}

// Key implements verbs.Faults.
func (x *injection) Key(qpn uint32) bool {
	return x.rules.Hit(*x.now, fault.WrongKey, &fault.Operation{QP: qpn}) != nil
}

// Stuck implements verbs.Faults.
func (x *injection) Stuck(qpn uint32) bool {
	now := *x.now
	if x.rules.Hit(now, fault.StuckQueue, &fault.Operation{QP: qpn}) != nil || x.profile != nil && x.profile.stuck(now) {
		x.stuck = true
		return true
	}
	return false
}

// Hold implements verbs.Faults.
func (x *injection) Hold(uint32) bool { return x.profile != nil && x.profile.hold(*x.now) }

// Overrun implements verbs.Faults.
func (x *injection) Overrun(cqn uint32) bool {
	return x.rules.Hit(*x.now, fault.CQOverrun, &fault.Operation{CQ: cqn}) != nil
}

// deliver implements faultTarget.
func (f *Device) deliver(ev *lateEvent) {
	switch {
	case ev.reply != nil:
		if ev.reply.to == f.driver { // else that session has ended
			f.driver.sendReply(ev.reply.tag, &ev.reply.RegReply)
		}
	case ev.async != nil:
		f.sendAsync(ev.async)
	default:
		f.sendCQ(ev.cqn)
	}
}

// resumeAdmin implements faultTarget.
func (f *Device) resumeAdmin(now falcon.Time) {
	if f.serves() && !f.inBacklog {
		f.admin.run(now)
	}
}

// resetByFault implements faultTarget.
func (f *Device) resetByFault(now falcon.Time) {
	f.owner.TakeVFsDown(now)
	f.TakeDown(now, "an injected fault reset it")
}

// linkChanged implements faultTarget.
func (f *Device) linkChanged(now falcon.Time) { f.owner.LinkChanged(now) }

// starve implements faultTarget.
func (f *Device) starve(on bool) {
	f.Credits.Starve(on)
	f.owner.CreditsChanged()
}
