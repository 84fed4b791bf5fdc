package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// Queue pairs and the connections of datagrams are many to many, so there is no flow control
// between them (Falcon §8.2.3): a link copies a datagram and the send is complete. Nothing that
// happens at one destination can then hold up the datagrams to another, and memory of the guest is
// looked at once. The link's own queue is one to one with its connection and waits for Falcon's
// credits.
//
//	            head          next          tail
//	──────────────┬─────────────┬─────────────┬───────────
//	    over      │ with falcon │   waiting   │ free
//
// A queue that is full slows down who sends, as long as the destination takes something now and
// then. When it did not for linkStall, everything in the queue is lost, and so is what is sent
// there until the destination is heard of again.

const (
	maxDatagram               = 4096  // bytes, the largest MTU
	linkQueue                 = 128   // datagrams that a link holds
	functionQueue             = 1024  // that all links of a function hold
	linkStall     falcon.Time = 100e6 // that a queue pair waits for a place in a link's queue
)

// datagram is one that a link took.
type datagram struct {
	opcode    wire.Opcode
	solicited bool
	to        uint32 // queue pair
	deth      wire.DETH
	imm       uint32
	sn        uint32
	work      uint32 // index of the work request of queue pair deth.SourceQP
	length    int
	data      [maxDatagram]byte
}

// outgoing is a link's queue.
type outgoing struct {
	held             []*datagram // ring by number; nil: over
	head, next, tail uint32
	sn               uint32          // RBTH sequence number of the next one that goes out
	progress         falcon.Time     // when the destination was heard of, or the queue began
	stalled          bool            // it was not for too long
	blocked          []*QP           // that wait for a place
	patience         timer.Handle    // of theirs
	holding          list.Node[Link] // in Function.holding
}

// stallDeadline ends the wait for a place in the queue of its link.
type stallDeadline struct{ l *Link }

func (s stallDeadline) Due(now falcon.Time) { s.l.giveUp(now) }

func (o *outgoing) place(number uint32) **datagram { return &o.held[number%linkQueue] }

// get returns a datagram with falcon, nil when it is over.
func (o *outgoing) get(number uint32) *datagram {
	if number-o.head >= o.next-o.head {
		return nil
	}
	return *o.place(number)
}

// room finds a place for another datagram of q in the link's queue. Where there is none q waits for
// it, or the datagram is lost: then the link is stalled.
func (l *Link) room(now falcon.Time, q *QP) bool {
	f := l.f
	if l.tail-l.head == linkQueue {
		l.block(now, q)
		return false
	}
	for f.held == functionQueue {
		// What the destination longest silent has is given up first; one that is not known yet need
		// not be waited for.
		o := f.holding.First()
		if o.state == linkOpen && now < o.progress+linkStall {
			o.block(now, q)
			return false
		}
		o.giveUp(now)
	}
	return true
}

// take copies the datagram of w. It reports false when the data is not to be had.
func (l *Link) take(now falcon.Time, q *QP, w *work) bool {
	f := l.f
	d := f.e.datagrams.get()
	if w.wqe.Flags&abi.SendInline != 0 {
		copy(d.data[:], w.inline)
	} else if w.sges.Gather(verbs.Cursor{}, d.data[:w.length]) != nil {
		f.e.datagrams.put(d)
		return false
	}
	x := &w.wqe
	d.opcode, d.solicited, d.to, d.imm, d.work, d.length = wire.UDSendOnly, x.Flags&abi.SendSolicited != 0, x.RemoteQPN, x.Imm, w.index, int(w.length)
	if x.Opcode == abi.OpSendImm {
		d.opcode = wire.UDSendOnlyImm
	}
	d.deth = wire.DETH{QKey: x.RemoteQKey, SourceQP: q.number}
	if x.RemoteQKey&abi.QKeyControlled != 0 {
		d.deth.QKey = q.attr.qkey // a program may use a controlled Q_Key only through its QP's (InfiniBand §10.2.5)
	}
	if l.held == nil {
		l.held = make([]*datagram, linkQueue)
	}
	if l.head == l.tail {
		l.advance(now)
	}
	*l.place(l.tail) = d
	l.tail++
	f.held++
	f.holding.PushBack(&l.holding, l)
	if f.Trace != nil {
		d.note(f, trace.Issued, trace.Owed)
	}
	l.send(now)
	return true
}

// send hands what waits to the connection.
func (l *Link) send(now falcon.Time) {
	for l.state == linkOpen && l.next != l.tail {
		d := *l.place(l.next)
		if d.length > l.segment {
			l.f.stats.DatagramsLost++
			l.next++
			l.over(l.next - 1)
			continue
		}
		d.sn = l.sn
		err := l.conn.PushLast(now, uint64(l.next), wire.PushLength(d.opcode, d.length))
		if err != nil {
			if errors.Is(err, falcon.ErrXoff) {
				l.f.stats.CreditWaits++
			}
			return // EvCredit or EvClosed follows
		}
		l.sn++
		l.next++
		l.f.stats.PushesTx++
		l.f.stats.BytesTx += uint64(d.length)
	}
}

// sent takes the end of the datagram called number. Whether it arrived is not the sender's to know,
// but that somebody is there.
func (l *Link) sent(now falcon.Time, number uint32, code falcon.Completion) {
	if l.get(number) != nil {
		l.over(number)
	}
	if code != falcon.CmplLocalTO && code != falcon.CmplDeadConn {
		l.advance(now)
		l.wake()
	}
}

// advance notes that the destination takes something, or may do so from now on.
func (l *Link) advance(now falcon.Time) {
	l.progress, l.stalled = now, false
	l.f.e.shared.Timers.Stop(&l.patience)
	if l.holding.On() != nil {
		l.holding.Remove()
		l.f.holding.PushBack(&l.holding, l)
	}
}

// over lets go of a datagram that was with falcon.
func (l *Link) over(number uint32) {
	at := l.place(number)
	if l.f.Trace != nil {
		(*at).note(l.f, trace.Acked, 0)
	}
	l.f.e.datagrams.put(*at)
	*at = nil
	l.f.held--
	for l.head != l.next && *l.place(l.head) == nil {
		l.head++
	}
	if l.head == l.tail {
		l.holding.Remove()
	}
}

// lose lets go of all the link holds. Falcon withdraws what it has of that.
func (l *Link) lose() {
	l.next = l.tail
	for n := l.head; n != l.tail; n++ {
		if *l.place(n) != nil {
			l.f.stats.DatagramsLost++
			l.over(n)
		}
	}
}

// giveUp loses what a destination that takes nothing was to get. While its connection is open the
// next datagrams are lost too.
func (l *Link) giveUp(now falcon.Time) {
	l.stalled = l.state == linkOpen || len(l.blocked) > 0
	l.lose()
	l.wake()
}

// block makes q wait for a place in the link's queue.
func (l *Link) block(now falcon.Time, q *QP) {
	q.waitCredit = true
	if q.blocked != l {
		q.blocked = l
		l.blocked = append(l.blocked, q)
	}
	if !l.patience.Armed() {
		l.f.e.shared.Timers.Set(&l.patience, stallDeadline{l}, max(now, l.progress+linkStall))
	}
}

// wake lets those that wait try again.
func (l *Link) wake() {
	for i, q := range l.blocked {
		l.blocked[i] = nil
		if q.blocked == l {
			q.blocked, q.waitCredit = nil, false
			q.wake()
		}
	}
	l.blocked = l.blocked[:0]
}

// fill implements endpoint.
func (l *Link) fill(t transport, kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	d := l.get(uint32(tag))
	if l.conn != t || d == nil || kind != falcon.TxnPush || len(dst) < wire.PushLength(d.opcode, d.length) {
		return 0, errGone
	}
	if l.f.Trace != nil {
		d.noteFilled(l)
	}
	h := &l.f.e.headers
	*h = wire.Headers{
		RBTH: wire.RBTH{
			Opcode: d.opcode, DestQP: d.to, SN: d.sn, Pad: uint8(wire.PadLen(d.length)), Solicited: d.solicited,
		},
		Datagram: d.deth,
	}
	h.Imm.Data = d.imm
	n := len(h.Append(dst[:0]))
	n += copy(dst[n:], d.data[:d.length])
	pad := wire.PadLen(d.length)
	clear(dst[n : n+pad])
	return n + pad, nil
}
