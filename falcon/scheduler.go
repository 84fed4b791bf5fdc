package falcon

import "github.com/falcon-vnic/vnic/falcon/cc"

// txClass is what a connection waits to send. Requests of the initiator and responses of the target
// are apart so that neither can block the other (Falcon §8.3, CR rule 2).
type txClass uint8

const (
	classAck txClass = iota // ACK and NACK
	classRetransmit
	classInitiator // new push data and pull requests
	classTarget    // new pull data
	numClasses
)

// arbiter shares transmission between acknowledgements, retransmissions and new packets by weight;
// between initiator and target packets it is round robin, between functions weighted deficit round
// robin (fair.go), between the connections of one round robin (Falcon §8.3).
type arbiter struct {
	left        [3]int // of the current round: ack, retransmit, new
	targetFirst bool
}

// pick returns the class to serve next. Its queue is not empty.
func (e *Engine) pick() (txClass, bool) {
	a := &e.arbiter
	for range 2 {
		if a.left[0] > 0 && !e.queues[classAck].empty() {
			return classAck, true
		}
		if a.left[1] > 0 && !e.queues[classRetransmit].empty() {
			return classRetransmit, true
		}
		if a.left[2] > 0 {
			first, second := classInitiator, classTarget
			if a.targetFirst {
				first, second = second, first
			}
			if !e.queues[first].empty() {
				return first, true
			}
			if !e.queues[second].empty() {
				return second, true
			}
		}
		a.left = [3]int{e.profile.WeightAck, e.profile.WeightRetransmit, e.profile.WeightNew}
	}
	return 0, false
}

// charge books one packet of the class.
func (a *arbiter) charge(class txClass) {
	switch class {
	case classAck, classRetransmit:
		a.left[class]--
	default:
		a.left[2]--
		a.targetFirst = class == classInitiator
	}
}

// Transmit writes the next Falcon packet, header and payload, into dst and returns its length and
// connection; 0 when nothing may be sent now. dst needs room for wire.MaxHeaderLen bytes and the
// largest MTU of the connections; a connection whose packet does not fit is passed over until
// something else happens to it.
func (e *Engine) Transmit(now Time, dst []byte) (int, *Conn) {
	for {
		class, ok := e.pick()
		if !ok {
			return 0, nil
		}
		q := &e.queues[class]
		e.urgent = q.round.Urgent()
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
			continue // blocked: what unblocks it queues it again
		}
		c.requeue(class, n)
		q.settle(c, n)
		e.arbiter.charge(class)
		e.stats.PacketsSent++
		return n, c
	}
}

// Urgent reports whether the packet that Transmit returned last was within what is guaranteed to
// its function: it should leave at once, not in company.
func (e *Engine) Urgent() bool { return e.urgent }

// requeue queues the connection, which sent n bytes, for its next packet of the class: in front
// while its turn allows more, or at the end. A turn is a packet, and more while they are small:
// packets of one connection behind one another are cheaper for both ends, and share a superframe.
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

func (q *connQueue) endTurn() { q.bytes = 0 }

func (c *Conn) send(now Time, class txClass, dst []byte) int {
	if class == classAck {
		return c.sendAck(now, dst)
	}
	if !c.paced(now) {
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

// What a connection has to send, bits of Conn.busy: acknowledgements, or transactions in a list.
const (
	wantAck  = 1 << 0
	wantNack = 1 << 1
)

// wantOf is the bit of a list, 0 for one that waits for nothing to be sent.
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

// wanted are the bits of each class.
var wanted = [numClasses]uint8{
	classAck: wantAck | wantNack, classRetransmit: wantRetransmit, classInitiator: wantPush | wantPull, classTarget: wantPullData,
}

// wants reports whether the connection has something of the class, eligible or not.
func (c *Conn) wants(class txClass) bool { return c.busy&wanted[class] != 0 }

// kick queues the connection for everything it has to send: called whenever a packet may have
// become eligible.
func (c *Conn) kick() {
	if c.closed || c.busy == 0 {
		return
	}
	for class := range numClasses {
		if c.wants(class) {
			c.e.queues[class].push(c)
		}
	}
}

// paced reports whether the gap since the last packet is over; if not, a timer kicks the
// connection.
func (c *Conn) paced(now Time) bool {
	if now >= c.nextSend {
		return true
	}
	c.e.wheel.Arm(&c.paceTimer, c, timerPace, c.nextSend)
	return false
}

// pace sets the gap after a packet: IPG while fcwnd is below one packet, else the profile's.
func (c *Conn) pace(now Time) {
	if gap := max(Time(c.ipg)*cc.TUNanos, c.e.profile.OpGap); gap > 0 {
		c.nextSend = now + gap
	}
}

// fcwnd is the fabric window in whole packets, at least one: below that packets are spaced instead
// (Falcon §10.3.5).
func (c *Conn) fcwnd() uint32 { return max(c.cc.Fcwnd>>10, 1) }

func (c *Conn) ncwnd() uint32 { return max(c.cc.Ncwnd, 1) }

// maySend is the gating function for new packets (Falcon §9.1.2).
func (c *Conn) maySend(kind TxnKind) bool {
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
func (c *Conn) maySendAgain(t *txn) bool {
	w := c.window(t.kind)
	return t.psn-w.base < c.fcwnd() && (t.kind == TxnPullData || w.retransmitted < c.ncwnd())
}

// nextRequest picks the initiator's next new packet, nil if none may go. An ordered connection
// sends in RSN order across both windows, also behind what must be sent again (Falcon §9.1.3).
func (c *Conn) nextRequest() *txn {
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

// nextAgain picks the packet to send again. Pull data is independent of the initiator's packets;
// among these an ordered connection keeps RSN order.
func (c *Conn) nextAgain() *txn {
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
