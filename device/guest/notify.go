package guest

import "github.com/falcon-vnic/vnic/queues/abi"

// CQEvent implements verbs.Notifier.
func (f *Function) CQEvent(cqn uint32) {
	if f.faults == nil || !f.faults.cqEvent(cqn) {
		f.sendCQEvent(cqn)
	}
}

func (f *Function) sendCQEvent(cqn uint32) {
	if !f.cqEvents.Post(cqn) && f.binding != nil {
		f.binding.cqEvent(cqn)
	}
}

// AsyncEvent implements verbs.Notifier.
func (f *Function) AsyncEvent(typ abi.EventType, number, status uint32, reason string) {
	f.Notify(&abi.AsyncEvent{Type: typ, Number: number, Status: status}, reason)
}

// Notify sends an event with text, which is cut to what an event has room for, or with private data.
func (f *Function) Notify(e *abi.AsyncEvent, priv string) {
	if f.binding == nil {
		return
	}
	e.PrivLen = uint16(copy(e.Priv[:], abi.Shorten(priv, len(e.Priv))))
	if f.faults == nil || !f.faults.asyncEvent(e) {
		f.sendAsync(e)
	}
}

func (f *Function) sendAsync(e *abi.AsyncEvent) {
	if f.binding != nil && !f.binding.asyncEvent(e) {
		f.Broke(abi.DRV205, abi.RingStream, 0, 0, nil)
	}
}

// forgetEvents drops the events that the driver has not taken: they speak of objects that are gone.
func (f *Function) forgetEvents() {
	if f.binding != nil {
		f.binding.Channel.Forget()
	}
}

// deliver implements victim.
func (f *Function) deliver(e *lateEvent) {
	if e.async != nil {
		f.sendAsync(e.async)
	} else {
		f.sendCQEvent(e.cqn)
	}
}

// knows is whether there is a driver that knows a feature.
func (f *Function) knows(feature uint64) bool {
	return f.binding != nil && f.binding.Features&feature != 0
}

// TellState tells the driver what became of the function without its doing.
func (f *Function) TellState(reason string) {
	if f.knows(abi.FeatureFunctionEvents) {
		f.Notify(&abi.AsyncEvent{Type: abi.EventFunctionState, Number: uint32(f.ID), Status: uint32(f.Lifecycle.State())}, reason)
	}
}

// TellLink tells the driver that its link went up or down.
func (f *Function) TellLink() {
	if !f.knows(abi.FeatureFunctionEvents) {
		return
	}
	e := abi.AsyncEvent{Type: abi.EventLinkState}
	if f.LinkUp {
		e.Status = 1
	}
	f.Notify(&e, "")
}
