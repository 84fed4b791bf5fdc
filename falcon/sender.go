package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/list"
)

// sender decides which packet may be sent, and writes it.
type sender struct {
	transactions

	retransmits uint64
}

// awaitGap starts a timer that kicks the connection when the gap after the last packet is over.
func (c *sender) awaitGap() { c.e.wheel.Arm(&c.paceTimer, c.self(), timerPace, c.nextSend) }

// pace sets the gap after a packet: the larger of IPG, which is not 0 while fcwnd is below one
// packet, and the profile's OpGap.
func (c *sender) pace(now Time) {
	c.nextSend = now + max(Time(c.ipg)*cc.TUNanos, c.e.profile.OpGap)
}

// fcwnd returns the fabric window in whole packets, at least one. Below one packet, packets are
// spaced instead (Falcon §10.3.5).
func (c *sender) fcwnd() uint32 { return max(c.cc.Fcwnd>>10, 1) }

func (c *sender) ncwnd() uint32 { return max(c.cc.Ncwnd, 1) }

// maySend is the gating function for new packets (Falcon §9.1.2).
func (c *sender) maySend(kind TxnKind) bool {
	w, size, slack := &c.dataTx, c.e.profile.DataTxWindow, c.e.profile.DataOWNSlack
	if kind == TxnPull {
		w, size, slack = &c.reqTx, c.e.profile.ReqTxWindow, c.e.profile.ReqOWNSlack
	}
	inFlight := w.next - w.base
	if w.paused {
		if inFlight > slack {
			return false
		}
		w.paused = false
	}
	return inFlight < min(c.fcwnd(), size) && (kind == TxnPullData || w.outstanding < c.ncwnd())
}

// maySendAgain is the gating function for retransmissions.
func (c *sender) maySendAgain(t *txn) bool {
	w := c.window(t.kind)
	return t.psn-w.base < c.fcwnd() && (t.kind == TxnPullData || w.retransmitted < c.ncwnd())
}

// nextRequest returns the initiator's next new packet, nil if none may be sent. An ordered
// connection sends in RSN order across both windows, and sends retransmissions before new packets
// (Falcon §9.1.3).
func (c *sender) nextRequest() *txn {
	if c.ordered && c.busy&(wantPush<<3|wantPull<<3) != 0 {
		return nil
	}
	first, second := inOrder(c.fresh(TxnPush), c.fresh(TxnPull))
	if first != nil && c.maySend(first.kind) {
		return first
	}
	if second != nil && !c.ordered && c.maySend(second.kind) {
		return second
	}
	return nil
}

// nextAgain returns the packet to retransmit next. Pull data is independent of the initiator's
// packets. An ordered connection sends the initiator's packets in RSN order.
func (c *sender) nextAgain() *txn {
	first, second := inOrder(c.retx(TxnPush), c.retx(TxnPull))
	var request *txn
	if first != nil && c.maySendAgain(first) {
		request = first
	} else if second != nil && !c.ordered && c.maySendAgain(second) {
		request = second
	}
	data := c.retx(TxnPullData)
	if data != nil && !c.maySendAgain(data) {
		data = nil
	}
	if request == nil || data != nil && c.dataFirst {
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
func (c *sender) requeue(class txClass, n int) {
	q := &c.share.conns[class]
	q.bytes += n
	if q.bytes+n <= c.e.profile.TurnBytes && c.wants(class) && q.pushFront(c.self()) {
		return
	}
	q.endTurn()
	if c.wants(class) {
		q.push(c.self())
	}
}

func (c *sender) send(now Time, class txClass, dst []byte) int {
	if class == classAck {
		return c.sendAck(now, dst)
	}
	if now < c.nextSend {
		c.awaitGap()
		return 0
	}
	switch class {
	case classRetransmit:
		return c.sendAgain(now, dst)
	case classInitiator:
		return c.sendFresh(now, c.nextRequest(), dst)
	default:
		t := c.fresh(TxnPullData)
		if t != nil && !c.maySend(TxnPullData) {
			t = nil
		}
		return c.sendFresh(now, t, dst)
	}
}

// sendFresh sends a transaction's packet for the first time and assigns its PSN.
func (c *sender) sendFresh(now Time, t *txn, dst []byte) int {
	if t == nil {
		return 0
	}
	w := c.window(t.kind)
	t.psn = w.next
	last := t.place.Next() == nil && t.kind == TxnPush && c.busy&wantPull == 0
	n := c.build(t, c.ackRequest(t, last), dst)
	if n == 0 {
		return 0
	}
	t.unlink()
	c.assignPSN(w, t)
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
	c.sentTxn(now, t)
	return n
}

// sendAgain retransmits the next eligible packet with its old PSN.
func (c *sender) sendAgain(now Time, dst []byte) int {
	t := c.nextAgain()
	if t == nil {
		return 0
	}
	n := c.build(t, c.asksForAcks(), dst)
	if n == 0 {
		return 0
	}
	t.unlink()
	c.retransmits++
	c.dataFirst = t.kind != TxnPullData
	if t.kind != TxnPullData {
		c.window(t.kind).retransmitted++
		t.again = true
	}
	c.sentTxn(now, t)
	c.kick() // new packets may have waited for this one
	return n
}

// sentTxn updates a transaction whose packet was sent and starts the retransmission timer (Falcon
// §9.1.3).
func (c *sender) sentTxn(now Time, t *txn) {
	c.unpark(t)
	t.lastSent = now
	if t.firstSent < 0 {
		t.firstSent = now
	}
	if t.started < 0 {
		t.started = now
		c.timeTxn(now)
	}
	t.enlist(inFlight)
	if t == c.flight().First() { // otherwise an earlier packet is due first, and the timer runs for it
		c.timeFlight()
	}
	c.pace(now)
	c.piggybacked()
}

// build writes the packet of t and returns its length, 0 if dst is too small. If the ULP cannot
// supply the data, the packet becomes a Resync.
func (c *sender) build(t *txn, ackReq bool, dst []byte) int {
	var p wire.PushData // the other packets' headers begin with the same fields
	h := &p.Header
	h.CID, h.Function, h.Protocol, h.Type = c.remoteCID, c.remoteFunction, c.protocol, t.packetType()
	h.AckReq, h.DataBase, h.ReqBase, h.PSN, h.RSN = ackReq, c.dataRx.base, c.reqRx.base, t.psn, t.rsn
	if t.resync == 0 {
		header := headerLen(t.kind)
		end := header + int(t.length)
		if len(dst) < end {
			return 0
		}
		n, err := c.e.ulp.Fill(c.self(), t.kind, t.tag, dst[header:end:end])
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
func (c *sender) asksForAcks() bool {
	p := &c.e.profile
	return p.ARBurst || p.ARPercent > 0 || p.ARFcwnd > 0
}

// ackRequest decides whether a new packet has the AR bit (Falcon §9.1.3.1): every packet while
// fcwnd is small, a share of the packets above that, and a packet with nothing waiting behind it.
func (c *sender) ackRequest(t *txn, last bool) bool {
	p := &c.e.profile
	if p.ARBurst && (last || t.last) {
		return true
	}
	if c.cc.Fcwnd <= p.ARFcwnd<<10 {
		return true
	}
	if p.ARPercent == 0 {
		return false
	}
	c.arSpacing--
	if c.arSpacing > 0 {
		return false
	}
	c.drawSpacing()
	return true
}

// drawSpacing draws the distance to the next AR at random, uniform with the mean that the profile's
// percentage asks for.
func (c *state) drawSpacing() {
	if pct := uint32(c.e.profile.ARPercent); pct > 0 {
		c.arSpacing = 1 + c.nextRandom()%max(200/pct-1, 1)
	}
}

// nextRandom is a small xorshift generator. Only the spacing of AR bits depends on it.
func (c *state) nextRandom() uint32 {
	c.random ^= c.random << 13
	c.random ^= c.random >> 17
	c.random ^= c.random << 5
	return c.random
}

// Bits of Conn.busy say what a connection has to send: acknowledgements, or the transactions of a
// list.
const (
	wantAck  = 1 << 0
	wantNack = 1 << 1
)

// wantOf returns the busy bit of a list, 0 if its transactions do not wait to be sent.
func wantOf(id listID) uint8 {
	if id < inFresh || id >= inAnswer {
		return 0
	}
	return 1 << id
}

const (
	wantPush       = 1 << (inFresh + listID(TxnPush))
	wantPull       = 1 << (inFresh + listID(TxnPull))
	wantPullData   = 1 << (inFresh + listID(TxnPullData))
	wantRetransmit = wantPush<<3 | wantPull<<3 | wantPullData<<3
)

func (c *state) list(id listID) *list.List[txn] {
	if id == inStalled {
		return &c.e.waiting.stalled
	}
	return &c.lists[id-inFlight]
}

func (c *state) flight() *list.List[txn] { return &c.lists[0] }

func (c *state) answers() *list.List[txn] { return &c.lists[inAnswer-inFlight] }

func (c *state) fresh(kind TxnKind) *txn { return c.first(inFresh + listID(kind)) }

func (c *state) retx(kind TxnKind) *txn { return c.first(inRetx + listID(kind)) }

// first returns the first transaction of a list that waits to be sent, nil if there is none. It
// reads the list only if the list is not empty: most lists of a connection are empty and not in the
// cache.
func (c *state) first(id listID) *txn {
	if c.busy&wantOf(id) == 0 {
		return nil
	}
	return c.list(id).First()
}

// enlist appends t, which is in no list, to a list.
func (t *txn) enlist(id listID) {
	t.in = id
	t.conn.list(id).PushBack(&t.place, t)
	t.conn.busy |= wantOf(id)
}

// enlistByPSN inserts t into a list in PSN order. Packets mostly come in order, so the search
// starts at the end.
func (t *txn) enlistByPSN(id listID) {
	l := t.conn.list(id)
	at := l.Last() // t is inserted after it
	for at != nil && int32(at.psn-t.psn) > 0 {
		at = at.place.Prev()
	}
	t.in = id
	if at == nil {
		l.PushFront(&t.place, t)
	} else {
		t.place.InsertAfter(&at.place, t)
	}
	t.conn.busy |= wantOf(id)
}

// unlink removes t from its list, if it is in one.
func (t *txn) unlink() {
	if t.in == inNone {
		return
	}
	t.place.Remove()
	if t.conn.list(t.in).Empty() {
		t.conn.busy &^= wantOf(t.in)
	}
	t.in = inNone
}
