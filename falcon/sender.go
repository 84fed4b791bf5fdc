package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// sender holds what a connection waits to send, and decides which packet is next and when it may go.
type sender struct {
	conn      *Conn
	flight    *flight
	nextSend  Time         // no packet is sent before this time
	timer     timer.Handle // queues the connection at nextSend
	arSpacing uint32       // packets until the next AR
	random    uint32
	dataFirst bool // retransmit pull data before initiator packets next time

	unsent [txnKinds]list.List[txn] // never sent, by TxnKind
	resend [txnKinds]list.List[txn] // to be sent again, by TxnKind, in PSN order

	retransmits uint64
}

// Bits of Conn.busy say what a connection has to send: acknowledgements, or the transactions of one
// of the sender's lists.
const (
	wantAck uint8 = 1 << iota
	wantNack
	wantPush // of unsent; the bits of the other kinds follow
	wantPull
	wantPullData
	wantPushResend // of resend; the bits of the other kinds follow
	wantPullResend
	wantPullDataResend
)

// firstUnsent returns the first transaction of a kind that was never sent, nil if there is none. It
// reads the list only if the list is not empty: most lists of a connection are empty and not in the
// cache.
func (s *sender) firstUnsent(kind TxnKind) *txn {
	if s.conn.busy&(wantPush<<kind) == 0 {
		return nil
	}
	return s.unsent[kind].First()
}

// firstResend does the same for those to be sent again.
func (s *sender) firstResend(kind TxnKind) *txn {
	if s.conn.busy&(wantPushResend<<kind) == 0 {
		return nil
	}
	return s.resend[kind].First()
}

// awaitGap starts a timer that queues the connection when the gap after the last packet is over.
func (s *sender) awaitGap() { s.conn.e.arm(&s.timer, s, s.nextSend) }

// expired implements timerOwner: the gap is over.
func (s *sender) expired(Time) { s.conn.enqueue() }

// pace sets the gap after a packet: the larger of the gap of congestion control, which is not 0
// while fcwnd is below one packet, and the profile's OpGap.
func (s *sender) pace(now Time) {
	s.nextSend = now + max(s.flight.cc.gap(), s.conn.e.profile.OpGap)
}

// nextRequest returns the initiator's next new packet, nil if none may be sent. An ordered
// connection sends in RSN order across both windows, and sends retransmissions before new packets
// (Falcon §9.1.3).
func (s *sender) nextRequest() *txn {
	if s.conn.cfg.Ordered && s.conn.busy&(wantPushResend|wantPullResend) != 0 {
		return nil
	}
	first, second := inOrder(s.firstUnsent(TxnPush), s.firstUnsent(TxnPull))
	if first != nil && s.flight.maySend(first.kind) {
		return first
	}
	if second != nil && !s.conn.cfg.Ordered && s.flight.maySend(second.kind) {
		return second
	}
	return nil
}

// nextResponse returns the target's next new packet, nil if none may be sent.
func (s *sender) nextResponse() *txn {
	t := s.firstUnsent(TxnPullData)
	if t != nil && !s.flight.maySend(TxnPullData) {
		return nil
	}
	return t
}

// nextResend returns the packet to retransmit next. Pull data is independent of the initiator's
// packets. An ordered connection sends the initiator's packets in RSN order.
func (s *sender) nextResend() *txn {
	first, second := inOrder(s.firstResend(TxnPush), s.firstResend(TxnPull))
	var request *txn
	if first != nil && s.flight.mayResend(first) {
		request = first
	} else if second != nil && !s.conn.cfg.Ordered && s.flight.mayResend(second) {
		request = second
	}
	data := s.firstResend(TxnPullData)
	if data != nil && !s.flight.mayResend(data) {
		data = nil
	}
	if request == nil || data != nil && s.dataFirst {
		return data
	}
	return request
}

// inOrder sorts two transactions by RSN; nil comes last.
func inOrder(a, b *txn) (first, second *txn) {
	if a == nil || b != nil && int32(b.rsn-a.rsn) < 0 {
		return b, a
	}
	return a, b
}

// Transmit writes the next Falcon packet, header and payload, into dst and returns its length and
// connection. It returns 0 if nothing may be sent now. dst needs room for wire.MaxHeaderLen bytes
// and the largest MTU of the connections. A connection whose packet does not fit is skipped until
// another event queues it again.
func (e *Engine) Transmit(now Time, dst []byte) (int, *Conn) {
	for {
		class, ok := e.schedule.pick()
		if !ok {
			return 0, nil
		}
		q := &e.schedule.queues[class]
		e.schedule.urgent = q.round.Urgent()
		c := q.pop()
		if c.closed {
			q.endTurn(c)
			q.settle(c, 0)
			continue
		}
		n := c.send(now, class, dst)
		if n == 0 {
			q.endTurn(c)
			q.settle(c, 0)
			continue // blocked: the event that unblocks it queues it again
		}
		c.requeue(class, n)
		q.settle(c, n)
		e.schedule.charge(class)
		e.stats.PacketsSent++
		return n, c
	}
}

// Urgent reports whether the packet that Transmit returned last was within its function's
// guarantee. Such a packet should be sent at once, without waiting for others to share its frame.
func (e *Engine) Urgent() bool { return e.schedule.urgent }

// requeue queues the connection, which has sent n bytes, for its next packet of the class: in front
// while its turn lasts, else at the end. A turn is one packet, or several small ones up to
// Profile.TurnBytes. Consecutive packets of one connection are cheaper for both ends and share a
// superframe.
func (c *Conn) requeue(class txClass, n int) {
	q := &c.share.conns[class]
	q.bytes += n
	if q.bytes+n <= c.e.profile.TurnBytes && c.wants(class) && q.pushFront(c) {
		return
	}
	q.endTurn()
	if c.wants(class) {
		q.push(c)
	}
}

// send writes the connection's next packet of a class and returns its length, 0 if there is none
// that may go now.
func (c *Conn) send(now Time, class txClass, dst []byte) int {
	if class == classAck {
		return c.rx.sendAck(now, dst)
	}
	if now < c.tx.nextSend {
		c.tx.awaitGap()
		return 0
	}
	switch class {
	case classRetransmit:
		return c.sendAgain(now, c.tx.nextResend(), dst)
	case classInitiator:
		return c.sendNew(now, c.tx.nextRequest(), dst)
	default:
		return c.sendNew(now, c.tx.nextResponse(), dst)
	}
}

// sendNew sends a transaction's packet for the first time and assigns its PSN.
func (c *Conn) sendNew(now Time, t *txn, dst []byte) int {
	if t == nil {
		return 0
	}
	w := c.flight.window(t.kind)
	t.psn = w.next
	last := t.place.Next() == nil && t.kind == TxnPush && c.busy&wantPull == 0
	n := c.build(t, c.tx.ackRequest(t, last), dst)
	if n == 0 {
		return 0
	}
	t.unlink()
	w.add(t)
	switch t.kind {
	case TxnPush:
		w.outstanding++
		t.state = pushDataTx
	case TxnPull:
		w.outstanding++
		t.state = pullReqTx
	case TxnPullData:
		t.state = pullDataTx
	}
	c.e.stats.DataSent++
	c.sent(now, t)
	return n
}

// sendAgain sends a transaction's packet again, with its old PSN.
func (c *Conn) sendAgain(now Time, t *txn, dst []byte) int {
	if t == nil {
		return 0
	}
	n := c.build(t, c.tx.asksForAcks(), dst)
	if n == 0 {
		return 0
	}
	t.unlink()
	c.tx.retransmits++
	c.tx.dataFirst = t.kind != TxnPullData
	if t.kind != TxnPullData {
		c.flight.window(t.kind).resent++
		t.resent = true
	}
	c.sent(now, t)
	c.enqueue() // new packets may have waited for this one
	return n
}

// sent updates a transaction whose packet was sent and starts the retransmission timer (Falcon
// §9.1.3).
func (c *Conn) sent(now Time, t *txn) {
	c.initiator.unpark(t)
	t.lastSent = now
	if t.firstSent < 0 {
		t.firstSent = now
	}
	if t.started < 0 {
		t.started = now
		c.initiator.arm(now)
	}
	t.enlist(inFlight)
	if t == c.flight.sent.First() { // otherwise an earlier packet is due first, and the timer runs for it
		c.flight.arm()
	}
	c.tx.pace(now)
	c.rx.piggybacked()
}

// build writes the packet of t and returns its length, 0 if dst is too small. If the ULP cannot
// supply the data, the packet becomes a Resync.
func (c *Conn) build(t *txn, ackReq bool, dst []byte) int {
	var p wire.PushData // the other packets' headers begin with the same fields
	h := &p.Header
	h.CID, h.Function, h.Protocol, h.Type = c.cfg.RemoteCID, c.cfg.RemoteFunction, c.cfg.Protocol, t.packetType()
	h.AckReq, h.DataBase, h.ReqBase, h.PSN, h.RSN = ackReq, c.rx.data.base, c.rx.requests.base, t.psn, t.rsn
	if t.resync == 0 {
		header := headerLen(t.kind)
		end := header + int(t.length)
		if len(dst) < end {
			return 0
		}
		n, err := c.e.ulp.Fill(c, t.kind, t.tag, dst[header:end:end])
		if err == nil && n >= 0 && n <= int(t.length) {
			switch t.kind {
			case TxnPush:
				p.RequestLength = uint16(n)
				p.Append(dst[:0])
			case TxnPull:
				r := wire.PullRequest{Header: *h, RequestLength: uint16(t.pullLength)}
				r.Append(dst[:0])
			case TxnPullData:
				h.Append(dst[:0])
			}
			return header + n
		}
		c.e.stats.FillErrors++
		t.makeResync(wire.ResyncLocalXLR, CmplLocalXlr)
	}
	if len(dst) < wire.ResyncLen {
		return 0
	}
	r := wire.Resync{Header: *h, Code: t.resync, Original: h.Type}
	r.Type = wire.TypeResync
	c.e.stats.ResyncsSent++
	return len(r.Append(dst[:0]))
}

func headerLen(kind TxnKind) int {
	switch kind {
	case TxnPush:
		return wire.PushDataLen
	case TxnPull:
		return wire.PullRequestLen
	default:
		return wire.PullDataLen
	}
}

// asksForAcks reports whether the profile uses the AR bit at all.
func (s *sender) asksForAcks() bool {
	p := &s.conn.e.profile
	return p.ARBurst || p.ARPercent > 0 || p.ARFcwnd > 0
}

// ackRequest decides whether a new packet has the AR bit (Falcon §9.1.3.1): every packet while
// fcwnd is small, a share of the packets above that, and a packet with nothing waiting behind it.
func (s *sender) ackRequest(t *txn, last bool) bool {
	p := &s.conn.e.profile
	if p.ARBurst && (last || t.last) {
		return true
	}
	if s.flight.cc.state.Fcwnd <= p.ARFcwnd<<10 {
		return true
	}
	if p.ARPercent == 0 {
		return false
	}
	s.arSpacing--
	if s.arSpacing > 0 {
		return false
	}
	s.drawSpacing()
	return true
}

// drawSpacing draws the distance to the next AR at random, uniform with the mean that the profile's
// percentage asks for.
func (s *sender) drawSpacing() {
	if pct := uint32(s.conn.e.profile.ARPercent); pct > 0 {
		s.arSpacing = 1 + s.nextRandom()%max(200/pct-1, 1)
	}
}

// nextRandom is a small xorshift generator. Only the spacing of AR bits depends on it.
func (s *sender) nextRandom() uint32 {
	s.random ^= s.random << 13
	s.random ^= s.random >> 17
	s.random ^= s.random << 5
	return s.random
}
