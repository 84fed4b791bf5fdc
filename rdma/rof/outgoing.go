package rof

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// One queue pair may use many connections of datagrams, and the reverse, so there is no flow
// control between them (Falcon §8.2.3): a link copies a datagram, and the send is complete. So no
// destination can hold up the datagrams to another, and guest memory is read only once. Each link
// has its own queue for its connection, which waits for Falcon's credits.
//
//	            head          next          tail
//	──────────────┬─────────────┬─────────────┬───────────
//	    over      │ with falcon │   waiting   │ free
//
// While a queue is full, senders wait, as long as the destination takes datagrams now and then. If
// it has taken none for LinkStall, everything in the queue is lost, and so is everything sent there
// until the destination is heard of again.

const (
	LinkQueue                = 128   // datagrams that one link holds
	FunctionQueue            = 1024  // datagrams that all links of a function hold
	LinkStall     vtime.Time = 100e6 // how long a queue pair waits for room in a link's queue
)

// datagram is a datagram that a link holds.
type datagram struct {
	transport.Datagram
	data [verbs.MaxDatagram]byte
}

// outgoing is the queue of a link.
type outgoing struct {
	held             []*datagram // ring by number; nil: finished
	head, next, tail uint32
	progress         vtime.Time      // when the destination was last heard of, or the queue began
	stalled          bool            // the destination has taken nothing for too long
	blocked          []verbs.Waiter  // senders that wait for room
	patience         timer.Handle    // limits their wait
	holding          list.Node[Link] // in Links.holding
}

// note records a step of a datagram.
func (d *datagram) note(ring *trace.Ring, kind trace.Kind, flags uint8) {
	if ring.Wants(d.From) {
		ring.Add(&trace.Event{Kind: kind, Work: d.From, Index: d.Work, Extra: d.Serial, Flags: flags})
	}
}

// stallDeadline is a timer that ends the wait for room in the queue of its link.
type stallDeadline struct{ l *Link }

func (s stallDeadline) Due(now vtime.Time) { s.l.giveUp(now) }

func (o *outgoing) place(number uint32) **datagram { return &o.held[number%LinkQueue] }

// get returns a datagram that falcon has, nil if it is finished.
func (o *outgoing) get(number uint32) *datagram {
	if number-o.head >= o.next-o.head {
		return nil
	}
	return *o.place(number)
}

// room makes room for another datagram of q in the link's queue. If it returns false, q waits for
// room. To make room it may drop the datagrams of a link, also of l, which is then stalled.
func (l *Link) room(now vtime.Time, q verbs.Waiter) bool {
	in := l.in
	if l.tail-l.head == LinkQueue {
		l.block(now, q)
		return false
	}
	for in.held == FunctionQueue {
		// Give up first what waits for the destination that has been silent longest. A destination
		// that has no connection yet need not be waited for.
		o := in.holding.First()
		if o.state == linkOpen && now < o.progress+LinkStall {
			o.block(now, q)
			return false
		}
		o.giveUp(now)
	}
	return true
}

// Send implements verbs.Destination.
func (l *Link) Send(now vtime.Time, d *verbs.Datagram) verbs.Sent {
	switch l.Want(now); {
	case l.loses(d.Length):
		return verbs.Lost
	case !l.room(now, d.From):
		return verbs.Full
	case l.loses(d.Length): // room dropped the datagrams of this very link
		return verbs.Lost
	case !l.take(now, d):
		return verbs.Unreadable
	}
	return verbs.Taken
}

// take copies a datagram. It returns false if the data cannot be read.
func (l *Link) take(now vtime.Time, x *verbs.Datagram) bool {
	in := l.in
	d := in.e.datagrams.Get()
	if x.Inline != nil {
		copy(d.data[:], x.Inline)
	} else if x.SGEs.Gather(verbs.Cursor{}, d.data[:x.Length]) != nil {
		in.e.datagrams.Put(d)
		return false
	}
	d.Datagram = x.Datagram
	if l.held == nil {
		l.held = make([]*datagram, LinkQueue)
	}
	if l.head == l.tail {
		l.advance(now)
	}
	*l.place(l.tail) = d
	l.tail++
	in.held++
	in.holding.PushBack(&l.holding, l)
	if in.of.Trace != nil {
		d.note(in.of.Trace, trace.Issued, trace.Owed)
	}
	l.send(now)
	return true
}

// send passes waiting datagrams to the connection.
func (l *Link) send(now vtime.Time) {
	for l.state == linkOpen && l.next != l.tail {
		d := *l.place(l.next)
		if d.Length > l.segment {
			l.in.of.Account.DatagramsLost++
			l.next++
			l.over(l.next - 1)
			continue
		}
		if l.conn.Send(now, l.next, &d.Datagram) != nil {
			return // Unblocked or Ended follows
		}
		l.next++
	}
}

// Sent implements transport.DatagramEndpoint.
func (l *Link) Sent(now vtime.Time, number uint32, heard bool) {
	if l.get(number) != nil {
		l.over(number)
	}
	if heard {
		l.advance(now)
		l.wake()
	}
}

// advance records that the destination takes datagrams, or may do so from now on.
func (l *Link) advance(now vtime.Time) {
	l.progress, l.stalled = now, false
	l.in.timers.Stop(&l.patience)
	if l.holding.On() != nil {
		l.holding.MoveBack()
	}
}

// over frees a datagram that is finished.
func (l *Link) over(number uint32) {
	at := l.place(number)
	if l.in.of.Trace != nil {
		(*at).note(l.in.of.Trace, trace.Acked, 0)
	}
	l.in.e.datagrams.Put(*at)
	*at = nil
	l.in.held--
	for l.head != l.next && *l.place(l.head) == nil {
		l.head++
	}
	if l.head == l.tail {
		l.holding.Remove()
	}
}

// lose drops all datagrams that the link holds. Falcon withdraws those that it has.
func (l *Link) lose() {
	l.next = l.tail
	for n := l.head; n != l.tail; n++ {
		if *l.place(n) != nil {
			l.in.of.Account.DatagramsLost++
			l.over(n)
		}
	}
}

// giveUp drops the datagrams to a destination that takes nothing. While its connection is open,
// later datagrams are lost too.
func (l *Link) giveUp(now vtime.Time) {
	l.stalled = l.state == linkOpen || len(l.blocked) > 0
	l.lose()
	l.wake()
}

// block makes q wait for room in the link's queue.
func (l *Link) block(now vtime.Time, q verbs.Waiter) {
	if q.Wait(l) {
		l.blocked = append(l.blocked, q)
	}
	if !l.patience.Armed() {
		l.in.timers.Set(&l.patience, stallDeadline{l}, max(now, l.progress+LinkStall))
	}
}

// wake lets the waiting senders try again.
func (l *Link) wake() {
	for i, q := range l.blocked {
		l.blocked[i] = nil
		q.Resume(l)
	}
	l.blocked = l.blocked[:0]
}

// Outgoing implements transport.DatagramEndpoint.
func (l *Link) Outgoing(number uint32) (*transport.Datagram, []byte) {
	d := l.get(number)
	if d == nil {
		return nil, nil
	}
	return &d.Datagram, d.data[:d.Length]
}
