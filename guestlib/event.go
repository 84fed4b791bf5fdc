package guestlib

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Event is an asynchronous event of an object.
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

// eventBacklog is the number of events that can wait in Events; further ones are dropped.
const eventBacklog = 256

// events holds the events that wait for the program.
type events struct {
	c       chan Event
	dropped atomic.Uint64
}

// emit queues an event, or drops and counts it if the queue is full.
func (q *events) emit(e Event) {
	select {
	case q.c <- e:
	default:
		q.dropped.Add(1)
	}
}

// Events returns the channel of events of QPs, CQs and the function. It need not be read: if it is
// full, events are dropped and counted.
func (d *Device) Events() <-chan Event { return d.events.c }

// DroppedEvents returns the number of events that were dropped because Events was full.
func (d *Device) DroppedEvents() uint64 { return d.events.dropped.Load() }

// handle handles the messages that the device sends by itself. It runs in the reader goroutine.
func (d *Device) handle(h abi.MsgHeader, body []byte) error {
	switch h.Type {
	case abi.MsgCQEvent:
		return d.handleCQEvent(body)
	case abi.MsgAsyncEvent:
		// The completion of the command that caused the event may already be in memory while its
		// doorbell is still on the way.
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
		why := &StatusError{Op: "attachment", Status: e.Code, Reason: abi.Text(e.Reason[:])}
		if d.survivor.lost.Load() != nil { // the new stream was refused: the device may accept a later one
			return needsReset("%w", why)
		}
		return lost(why)
	}
	return nil // unknown: from a later minor version
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

// handleAsync updates the objects first and then tells the program, which may use them at once.
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
			cq.broken(fmt.Errorf("overflow or memory failure: %s", reason(e)))
			d.events.emit(Event{Type: e.Type, CQ: cq, Status: e.Status, Reason: reason(e)})
		}
	case abi.EventSRQLimit, abi.EventSRQError:
		if srq := d.objects.srqs.get(e.Number); srq != nil {
			d.events.emit(Event{Type: e.Type, SRQ: srq, Status: e.Status, Reason: reason(e)})
		}
	case abi.EventFunctionFault:
		d.admin.Load().end(lost(&FaultError{abi.Fault(e.Status), reason(e)})) // the stream stays: Reset starts a new life
		d.events.emit(Event{Type: e.Type, Status: e.Status, Reason: reason(e)})
	case abi.EventFunctionState: // changed by the PF or the host: objects and connections are gone
		state := abi.State(e.Status)
		d.admin.Load().end(lost(fmt.Errorf("%w: the PF or the host took the function to %s (%s)", ErrState, state, reason(e)))) // Reset starts a new life
		d.events.emit(Event{Type: e.Type, Status: e.Status, Reason: reason(e)})
	case abi.EventLinkState:
		d.events.emit(Event{Type: e.Type, Status: e.Status})
	}
	return nil
}

// qpEvent handles an event of a QP.
func (d *Device) qpEvent(e *abi.AsyncEvent) {
	qp := d.objects.qps.get(e.Number)
	if qp == nil {
		return // the QP was destroyed since
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

// objects holds the device's objects by number, to find them for the device's events.
type objects struct {
	cqs  table[*CQ]
	qps  table[*QP]
	srqs table[*SRQ]
}

// news wakes the waiters of a CQ.
func (o *objects) news(cqn uint32) {
	if cq := o.cqs.get(cqn); cq != nil { // nil: the CQ was destroyed since
		cq.signal()
	}
}

// stopAll makes sure that no object rings or accesses its memory any more, and removes all objects.
func (o *objects) stopAll(s *stream, why error) {
	o.qps.drain(func(qp *QP) {
		qp.stop(s)
		qp.setError()
	})
	o.srqs.drain(func(srq *SRQ) { srq.w.stop(s) })
	o.cqs.drain(func(cq *CQ) {
		s.mute(&cq.bell)
		cq.broken(why)
	})
}

// table maps numbers to objects of one kind. The zero value is an empty table.
type table[T comparable] struct {
	mu   sync.Mutex
	list map[uint32]T
}

func (t *table[T]) add(n uint32, object T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list == nil {
		t.list = map[uint32]T{}
	}
	t.list[n] = object
}

// get returns the object with number n, or the zero value if there is none.
func (t *table[T]) get(n uint32) T {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list[n]
}

// remove removes an object, unless another object has its number by now.
func (t *table[T]) remove(n uint32, object T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.list[n] == object {
		delete(t.list, n)
	}
}

// drain removes all objects and then calls f for each. f may wait for a command that uses the object,
// so the reader, which brings the answer, must not wait for the table meanwhile.
func (t *table[T]) drain(f func(T)) {
	t.mu.Lock()
	list := t.list
	t.list = nil
	t.mu.Unlock()
	for _, object := range list {
		f(object)
	}
}
