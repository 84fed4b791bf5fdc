package rof

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/timer"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// One queue pair may use many connections of datagrams, and the reverse, so there is no flow
// control between them (Falcon §8.2.3): a link copies a datagram, and the send is complete. So no
// destination can hold up the datagrams to another, and guest memory is read only once. Each link
// has its own queue for its connection, which waits for Falcon's credits. A datagram is one push.
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

// opcode returns the opcode of the datagram's packet.
func (d *datagram) opcode() ib.Opcode {
	if d.HasImm {
		return ib.UD | ib.SendOnlyImm
	}
	return ib.UD | ib.SendOnly
}

// queue is the queue of a link.
type queue struct {
	held             []*datagram // ring by number; nil: finished
	head, next, tail uint32
	progress         vtime.Time     // when the destination was last heard of, or the queue began
	stalled          bool           // the destination has taken nothing for too long
	blocked          []verbs.Waiter // senders that wait for room
	patience         timer.Handle   // limits their wait
}

func (q *queue) empty() bool { return q.head == q.tail }

func (q *queue) full() bool { return q.tail-q.head == LinkQueue }

func (q *queue) place(number uint32) **datagram { return &q.held[number%LinkQueue] }

// get returns a datagram that falcon has, nil if it is finished.
func (q *queue) get(number uint32) *datagram {
	if number-q.head >= q.next-q.head {
		return nil
	}
	return *q.place(number)
}

// push adds a datagram. There must be room for it.
func (q *queue) push(d *datagram) {
	if q.held == nil {
		q.held = make([]*datagram, LinkQueue)
	}
	*q.place(q.tail) = d
	q.tail++
}

// take removes a datagram that is finished.
func (q *queue) take(number uint32) *datagram {
	at := q.place(number)
	d := *at
	*at = nil
	for q.head != q.next && *q.place(q.head) == nil {
		q.head++
	}
	return d
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
	case !l.keep(now, d):
		return verbs.Unreadable
	}
	return verbs.Taken
}

// loses reports whether the link drops a datagram of n bytes.
func (l *Link) loses(n int) bool {
	return l.queue.stalled || l.state == linkRefused || l.state == linkOpen && n > l.conn.segment
}

// room makes room for another datagram of q in the link's queue. If it returns false, q waits for
// room. To make room it may drop the datagrams of a link, also of l, which is then stalled.
func (l *Link) room(now vtime.Time, q verbs.Waiter) bool {
	in := l.in
	if l.queue.full() {
		l.block(now, q)
		return false
	}
	for in.held == FunctionQueue {
		// Give up first what waits for the destination that has been silent longest. A destination
		// that has no connection yet need not be waited for.
		o := in.holding.First()
		if o.state == linkOpen && now < o.queue.progress+LinkStall {
			o.block(now, q)
			return false
		}
		o.giveUp(now)
	}
	return true
}

// keep copies a datagram into the queue. It returns false if the data cannot be read.
func (l *Link) keep(now vtime.Time, x *verbs.Datagram) bool {
	in := l.in
	d := in.e.datagrams.Get()
	if x.Inline != nil {
		copy(d.data[:], x.Inline)
	} else if x.SGEs.Gather(verbs.Cursor{}, d.data[:x.Length]) != nil {
		in.e.datagrams.Put(d)
		return false
	}
	d.Datagram = x.Datagram
	if l.queue.empty() {
		l.advance(now)
	}
	l.queue.push(d)
	in.held++
	in.holding.PushBack(&l.holding, l)
	in.of.Account.NoteDatagram(trace.Issued, &d.Datagram, overFalcon, trace.Owed)
	l.send(now)
	return true
}

// send passes waiting datagrams to the connection.
func (l *Link) send(now vtime.Time) {
	q := &l.queue
	for l.state == linkOpen && q.next != q.tail {
		d := *q.place(q.next)
		if d.Length > l.conn.segment {
			l.in.of.Account.DatagramsLost++
			q.next++
			l.over(q.next - 1)
			continue
		}
		if !l.conn.send(now, q.next, d) {
			return // EvCredit or EvClosed follows
		}
		q.next++
	}
}

// resume continues after the connection opened or got credit.
func (l *Link) resume(now vtime.Time) {
	l.advance(now)
	l.send(now)
	l.wake()
}

// sent ends a datagram. heard reports whether the destination has answered at all.
func (l *Link) sent(now vtime.Time, number uint32, heard bool) {
	if l.queue.get(number) != nil {
		l.over(number)
	}
	if heard {
		l.advance(now)
		l.wake()
	}
}

// advance records that the destination takes datagrams, or may do so from now on.
func (l *Link) advance(now vtime.Time) {
	l.queue.progress, l.queue.stalled = now, false
	l.in.timers.Stop(&l.queue.patience)
	if l.holding.On() != nil {
		l.holding.MoveBack()
	}
}

// over frees a datagram that is finished.
func (l *Link) over(number uint32) {
	d := l.queue.take(number)
	l.in.of.Account.NoteDatagram(trace.Acked, &d.Datagram, overFalcon, 0)
	l.in.e.datagrams.Put(d)
	l.in.held--
	if l.queue.empty() {
		l.holding.Remove()
	}
}

// lose drops all datagrams that the link holds. Falcon withdraws those that it has.
func (l *Link) lose() {
	q := &l.queue
	q.next = q.tail
	for n := q.head; n != q.tail; n++ {
		if *q.place(n) != nil {
			l.in.of.Account.DatagramsLost++
			l.over(n)
		}
	}
}

// giveUp drops the datagrams to a destination that takes nothing. While its connection is open,
// later datagrams are lost too.
func (l *Link) giveUp(now vtime.Time) {
	l.queue.stalled = l.state == linkOpen || len(l.queue.blocked) > 0
	l.lose()
	l.wake()
}

// block makes a sender wait for room in the link's queue.
func (l *Link) block(now vtime.Time, sender verbs.Waiter) {
	q := &l.queue
	if sender.Wait(l) {
		q.blocked = append(q.blocked, sender)
	}
	if !q.patience.Armed() {
		l.in.timers.Set(&q.patience, stallDeadline{l}, max(now, q.progress+LinkStall))
	}
}

// stallDeadline is a timer that ends the wait for room in the queue of its link.
type stallDeadline struct{ l *Link }

func (s stallDeadline) Due(now vtime.Time) { s.l.giveUp(now) }

// wake lets the waiting senders try again.
func (l *Link) wake() {
	q := &l.queue
	for i, sender := range q.blocked {
		q.blocked[i] = nil
		sender.Resume(l)
	}
	q.blocked = q.blocked[:0]
}

// datagramConn is the connection of a link.
type datagramConn struct {
	link    *Link // nil: the link has closed it
	e       *Engine
	pipe    Pipe
	account *transport.Account
	wire    uint8  // of its trace events
	flags   uint8  // of them
	segment int    // maximum of data bytes in one datagram that the network carries
	sn      uint32 // RBTH sequence number of the next datagram sent
	heard   uint32 // least RBTH sequence number of the next datagram received
}

var _ User = (*datagramConn)(nil)

func newDatagramConn(l *Link, pipe Pipe) *datagramConn {
	_, leaves := pipe.(*falcon.Conn)
	c := &datagramConn{
		link: l, e: l.in.e, pipe: pipe, account: &l.in.of.Account,
		segment: datagramIn(pipe.Config().MTU), sn: 1, heard: 1,
	}
	c.wire, c.flags = traced(leaves)
	pipe.SetUser(c)
	return c
}

// datagramIn returns the most data of a datagram in a packet with mtu bytes of RDMA headers and data.
func datagramIn(mtu int) int { return mtu - wire.Opcodes[ib.UD|ib.SendOnlyImm].Len }

// close ends the connection for the link.
func (c *datagramConn) close(now falcon.Time) {
	c.link = nil
	c.pipe.Close(now)
}

// send passes a datagram to the pipe. If it returns false, EvCredit or EvClosed follows.
func (c *datagramConn) send(now falcon.Time, number uint32, d *datagram) bool {
	d.Serial = c.sn
	err := c.pipe.PushLast(now, uint64(number), wire.PushLength(d.opcode(), d.Length))
	if err != nil {
		if errors.Is(err, falcon.ErrXoff) {
			c.account.CreditWaits++
		}
		return false
	}
	c.sn++
	c.account.PushesTx++
	c.account.BytesTx += uint64(d.Length)
	return true
}

// Fill implements User.
func (c *datagramConn) Fill(kind falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	if c.link == nil || kind != falcon.TxnPush {
		return 0, errGone
	}
	d := c.link.queue.get(uint32(tag))
	if d == nil || len(dst) < wire.PushLength(d.opcode(), d.Length) {
		return 0, errGone
	}
	c.account.NoteDatagram(trace.Scheduled, &d.Datagram, c.wire, c.flags)
	pad := ib.PadLen(d.Length)
	h := &c.e.headers
	*h = wire.Headers{RBTH: wire.RBTH{Opcode: d.opcode(), DestQP: d.To, SN: d.Serial, Pad: uint8(pad), Solicited: d.Solicited}}
	h.Datagram = ib.DETH{QKey: d.QKey, SourceQP: d.From}
	h.Imm.Data = d.Imm
	n := len(h.Append(dst[:0]))
	n += copy(dst[n:], d.data[:d.Length])
	clear(dst[n : n+pad])
	return n + pad, nil
}

// Handle implements User.
func (c *datagramConn) Handle(now falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPull { // no datagram
		c.refuse(now, ev)
		return
	}
	l := c.link
	if l == nil {
		return
	}
	switch ev.Kind {
	case falcon.EvPushDone:
		l.sent(now, uint32(ev.Tag), ev.Code != falcon.CmplLocalTO && ev.Code != falcon.CmplDeadConn)
	case falcon.EvPush:
		c.receive(now, ev)
	case falcon.EvCredit:
		l.resume(now)
	case falcon.EvLimit:
		c.segment = datagramIn(min(ev.Length, c.pipe.Config().MTU))
	case falcon.EvClosed:
		c.link, l.conn = nil, nil
		l.close(now)
	}
	l.in.of.Settle(now)
}

// refuse answers a request that is not for datagrams: the connection belongs to no connected queue
// pair (RDMA over Falcon §6.9).
func (c *datagramConn) refuse(now falcon.Time, ev *falcon.Event) {
	c.account.CIDMismatches++
	c.pipe.NackPush(now, ev.RSN, falconwire.NackCID, 0, 0)
}

// receive handles a received datagram. A datagram that cannot be delivered is dropped without
// telling the sender or the receiver (InfiniBand §9.8.3). Only the counters show it.
func (c *datagramConn) receive(now falcon.Time, ev *falcon.Event) {
	h := &c.e.headers
	n, err := h.Parse(ev.Data)
	op := h.RBTH.Opcode
	if err == nil && op&ib.ServiceMask != ib.UD {
		c.refuse(now, ev)
		return
	}
	c.pipe.AckPush(now, ev.RSN)
	data, ok := h.RBTH.Data(ev.Data, n)
	if err != nil || !ok || !c.inOrder(h.RBTH.SN) {
		c.account.DatagramsLost++
		return
	}
	l, d := c.link, &c.e.datagram
	*d = transport.Datagram{
		To: h.RBTH.DestQP, From: h.Datagram.SourceQP, QKey: h.Datagram.QKey, Imm: h.Imm.Data,
		HasImm: op == ib.UD|ib.SendOnlyImm, Solicited: h.RBTH.Solicited, Length: len(data),
	}
	length := len(data)
	if d.HasImm {
		length += ib.ImmDtLen
	}
	l.putGRH(&c.e.grh, length)
	c.e.delivered = verbs.Arrival{
		Datagram: d, Data: data, GRH: &c.e.grh, SL: l.packetType(), Conn: c.pipe.Config().LocalCID, ID: ev.RSN, Opcode: uint8(op), Wire: c.wire, TraceFlags: c.flags,
	}
	l.in.of.Deliver(now, &c.e.delivered)
}

// inOrder checks the sequence number of a datagram (RDMA over Falcon §8.2). On an ordered
// connection the numbers only rise. A number is missing if the sender gave its datagram up.
func (c *datagramConn) inOrder(sn uint32) bool {
	if !c.pipe.Config().Ordered {
		return true
	}
	if int32(sn-c.heard) < 0 {
		return false
	}
	c.heard = sn + 1
	return true
}

// NoteConcluded implements User.
func (c *datagramConn) NoteConcluded(rsn uint32) {
	noteConcluded(c.account, c.pipe.Config().LocalCID, rsn)
}

// packetType returns the service level for receive completions: the RoCE packet type, as hardware
// reports it (low bits 1 IPv6, 2 IPv4; bit 3 UDP).
func (l *Link) packetType() uint8 {
	if verbs.IsIPv4(l.to.GID) {
		return abi.SLRoCEIPv4
	}
	return abi.SLRoCEIPv6
}

const (
	ipv6Len  = 40
	ipv4Len  = 20
	protoUDP = 17
	envelope = 8 + 12 + 8 + 4 // UDP, BTH, DETH, ICRC: the headers of RoCEv2 around the data
)

// putGRH writes what real NICs put before a datagram of n bytes of data and immediate data: the
// IPv6 header, or 20 zero bytes and the IPv4 header (RoCEv2, Annex A17.4.5). Programs expect the
// headers of RoCEv2, so these have the same contents. Verbs libraries check the IPv4 checksum to
// tell the two apart.
func (l *Link) putGRH(b *[verbs.GRHSize]byte, n int) {
	clear(b[:])
	length := envelope + ib.Padded(n)
	if !verbs.IsIPv4(l.to.GID) {
		binary.BigEndian.PutUint32(b[0:], 6<<28|uint32(l.to.TrafficClass)<<20)
		binary.BigEndian.PutUint16(b[4:], uint16(length))
		b[6], b[7] = protoUDP, l.to.HopLimit
		copy(b[8:], l.to.GID[:])
		copy(b[24:], l.own[:])
		return
	}
	h := b[ipv6Len-ipv4Len:]
	h[0], h[1] = 0x45, l.to.TrafficClass
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Len+length))
	h[6] = 0x40 // do not fragment
	h[8], h[9] = l.to.HopLimit, protoUDP
	copy(h[12:], l.to.GID[12:])
	copy(h[16:], l.own[12:])
	var sum uint32
	for i := 0; i < ipv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16 // the carry of that
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}
