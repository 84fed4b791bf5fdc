package guest

import (
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Events sends events to the driver of a function.
type Events struct {
	of     *pfvf.Function
	to     judge
	faults *Faults
	driver *Binding // nil: the function has no driver
	byCQ   CQEvents
	behind uint64 // connections that were refused because the driver did not take its events
}

// CQEvent implements verbs.Notifier.
func (e *Events) CQEvent(cqn uint32) {
	if in := e.faults.in; in == nil || !in.cqEvent(cqn) {
		e.sendCQ(cqn)
	}
}

func (e *Events) sendCQ(cqn uint32) {
	if !e.byCQ.Post(cqn) && e.driver != nil {
		e.driver.cqEvent(cqn)
	}
}

// AsyncEvent implements verbs.Notifier.
func (e *Events) AsyncEvent(typ abi.EventType, number, status uint32, reason string) {
	e.Notify(&abi.AsyncEvent{Type: typ, Number: number, Status: status}, reason)
}

// Notify sends an event with a text, which is cut to the room in the event, or with private data.
func (e *Events) Notify(ev *abi.AsyncEvent, priv string) {
	if e.driver == nil {
		return
	}
	ev.PrivLen = uint16(copy(ev.Priv[:], abi.Shorten(priv, len(ev.Priv))))
	if in := e.faults.in; in == nil || !in.asyncEvent(ev) {
		e.sendAsync(ev)
	}
}

func (e *Events) sendAsync(ev *abi.AsyncEvent) {
	if e.driver != nil {
		e.driver.asyncEvent(ev)
	}
}

// Behind implements conn.Driver: it reports whether so many events wait for the driver that it may
// not have another connection now (DEV-211).
func (e *Events) Behind() bool {
	if e.driver == nil || e.driver.Channel.Untaken() < maxBehind {
		return false
	}
	e.behind++
	e.to.Broke(abi.DRV205, abi.RingStream, 0, 0, nil)
	return true
}

// gone drops the waiting events about an object that was destroyed.
func (e *Events) gone(kind abi.Object, number uint32) {
	if e.driver != nil {
		e.driver.Channel.Gone(kind, number)
	}
}

// deliver implements victim.
func (e *Events) deliver(ev *lateEvent) {
	if ev.async != nil {
		e.sendAsync(ev.async)
	} else {
		e.sendCQ(ev.cqn)
	}
}

// forget drops the waiting events: their objects are gone.
func (e *Events) forget() {
	if e.driver != nil {
		e.driver.Channel.Forget()
	}
}

// knows reports whether there is a driver that uses a feature.
func (e *Events) knows(feature uint64) bool { return e.driver != nil && e.driver.Features&feature != 0 }

// TellState tells the driver the function's state after a change that the driver did not make.
func (e *Events) TellState(reason string) {
	if e.knows(abi.FeatureFunctionEvents) {
		e.Notify(&abi.AsyncEvent{Type: abi.EventFunctionState, Number: uint32(e.of.ID), Status: uint32(e.of.Lifecycle.State())}, reason)
	}
}

// TellLink tells the driver that its link went up or down.
func (e *Events) TellLink() {
	if !e.knows(abi.FeatureFunctionEvents) {
		return
	}
	ev := abi.AsyncEvent{Type: abi.EventLinkState}
	if e.of.LinkUp {
		ev.Status = 1
	}
	e.Notify(&ev, "")
}
