package guestlib

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Event is something that happened to an object on its own.
type Event struct {
	Type   abi.EventType // EventDisconnected, EventFunctionFault, EventFunctionState (also when the device was lost), EventLinkState, one of a QP or EventCQError
	QP     *QP           // of events of QPs: EventDisconnected, EventQPFatal, EventQPReqErr, EventQPAccessErr, EventCommEst, EventSQDrained, EventLastWQE
	CQ     *CQ           // of EventCQError
	SRQ    *SRQ          // of EventSRQLimit and EventSRQError
	Status uint32        // an abi.WCStatus (failures of a QP), abi.Fault (EventFunctionFault), abi.State (EventFunctionState), 1 for up (EventLinkState) or reason
	Reason string        // the device's words, if any
}

func (e Event) String() string {
	s := e.Type.String()
	switch {
	case e.QP != nil:
		s += fmt.Sprintf(" of QP %d", e.QP.qpn)
	case e.SRQ != nil:
		s += fmt.Sprintf(" of SRQ %d", e.SRQ.srqn)
	case e.CQ != nil:
		s += fmt.Sprintf(" of CQ %d", e.CQ.cqn)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// eventBacklog is how many events wait for a reader of Events before new ones are dropped.
const eventBacklog = 256

// events are those that wait for the program.
type events struct {
	c       chan Event
	dropped atomic.Uint64
}

// emit does not wait for room.
func (q *events) emit(e Event) {
	select {
	case q.c <- e:
	default:
		q.dropped.Add(1)
	}
}

// Events tells what happens to QPs, CQs and the function. Nobody has to read it: events that find
// it full are dropped and counted.
func (d *Device) Events() <-chan Event { return d.events.c }

// DroppedEvents counts events that found Events full.
func (d *Device) DroppedEvents() uint64 { return d.events.dropped.Load() }

// handle takes the messages the device starts. It runs in the reader goroutine.
func (d *Device) handle(h abi.MsgHeader, body []byte) error {
	switch h.Type {
	case abi.MsgCQEvent:
		return d.handleCQEvent(body)
	case abi.MsgAsyncEvent:
		// The completion of the command that caused the event may be in memory already, its
		// doorbell still on the way.
		if err := d.admin.Load().poll(); err != nil {
			return err
		}
		var e abi.AsyncEvent
		if err := abi.Decode(body, &e); err != nil {
			return protocolError("%v", err)
		}
		if int(e.PrivLen) > len(e.Priv) {
			return protocolError("%s event with %d bytes of private data", e.Type, e.PrivLen)
		}
		return d.handleAsync(&e)
	case abi.MsgError:
		var e abi.ErrorMsg
		if err := abi.Decode(body, &e); err != nil {
			return protocolError("%v", err)
		}
		return lost(&StatusError{Op: "attachment", Status: e.Code, Reason: abi.Text(e.Reason[:])})
	}
	return nil // of a later minor version
}

func (d *Device) handleCQEvent(body []byte) error {
	if len(body)%4 != 0 {
		return protocolError("CQ event of %d bytes", len(body))
	}
	for ; len(body) > 0; body = body[4:] {
		cqn := binary.LittleEndian.Uint32(body)
		if cqn == abi.AdminCQ {
			if err := d.admin.Load().poll(); err != nil {
				return err
			}
			continue
		}
		d.objects.news(cqn)
	}
	return nil
}

func (d *Device) handleAsync(e *abi.AsyncEvent) error {
	switch e.Type {
	case abi.EventConnectRequest:
		d.cm.request(d, e)
	case abi.EventEstablished, abi.EventRejected, abi.EventDisconnected, abi.EventUnreachable:
		d.cm.event(d, e)
	case abi.EventQPFatal, abi.EventQPReqErr, abi.EventQPAccessErr, abi.EventCommEst, abi.EventSQDrained, abi.EventLastWQE:
		d.qpEvent(e)
	case abi.EventCQError:
		if cq := d.objects.cqs.get(e.Number); cq != nil {
			d.events.emit(Event{Type: e.Type, CQ: cq, Status: e.Status, Reason: reason(e)})
			cq.broken(fmt.Errorf("overflow or memory failure: %s", reason(e)))
		}
	case abi.EventSRQLimit, abi.EventSRQError:
		if srq := d.objects.srqs.get(e.Number); srq != nil {
			d.events.emit(Event{Type: e.Type, SRQ: srq, Status: e.Status, Reason: reason(e)})
		}
	case abi.EventFunctionFault:
		d.events.emit(Event{Type: e.Type, Status: e.Status, Reason: reason(e)})
		d.admin.Load().end(lost(&FaultError{abi.Fault(e.Status), reason(e)})) // the stream lives: Reset starts anew
	case abi.EventFunctionState: // the PF or the host did it: objects and connections are gone
		state := abi.State(e.Status)
		d.events.emit(Event{Type: e.Type, Status: e.Status, Reason: reason(e)})
		d.admin.Load().end(lost(fmt.Errorf("%w: the PF or the host took the function to %s (%s)", ErrState, state, reason(e)))) // Reset starts anew
	case abi.EventLinkState:
		d.events.emit(Event{Type: e.Type, Status: e.Status})
	}
	return nil
}

// qpEvent handles what happened to a QP.
func (d *Device) qpEvent(e *abi.AsyncEvent) {
	qp := d.objects.qps.get(e.Number)
	if qp == nil {
		return // destroyed in the meantime
	}
	failed := e.Type == abi.EventQPFatal || e.Type == abi.EventQPReqErr || e.Type == abi.EventQPAccessErr
	if failed {
		qp.setError()
	}
	d.events.emit(Event{Type: e.Type, QP: qp, Status: e.Status, Reason: reason(e)})
	if failed {
		qp.sendCQ.signal()
		qp.recvCQ.signal()
	}
}

// reason returns the text of an event.
func reason(e *abi.AsyncEvent) string { return abi.Text(e.Priv[:e.PrivLen]) }
