package falcon

import "github.com/falcon-vnic/vnic/falcon/cc"

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
