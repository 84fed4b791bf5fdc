package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// A packet in flight is sent again for one of these reasons:
//
//   - its retransmission timeout has passed (onTimeout),
//   - an EACK shows that packets far enough above it arrived, or that packets beyond the window were
//     dropped (recoverLosses),
//   - a packet that was sent well after it has arrived (findLost),
//   - no acknowledgement arrives, and it is the one that probes (probe),
//   - the peer has it, and its ULP does not answer (onAnswerTimeout).

// reorder returns by how much a packet may be overtaken by packets sent later before it counts as
// lost. It grows when an early retransmission turns out to be for a packet that was only overtaken.
func (f *flight) reorder() Time {
	return max(f.cc.rtt()*Time(f.arrivals.reorder)/4, f.conn.e.profile.ReorderTime)
}

// maxReorder is a whole RTT. After needEarly early retransmissions that were needed, reordering
// counts as over.
const (
	maxReorder = 4
	needEarly  = 64
)

// arm arms the timer of the packets in flight and of those that wait for an answer. If the deadline
// moves to a later time, the timer still fires at the earlier one and is then armed anew.
func (f *flight) arm() {
	at := f.due()
	if at != never && (!f.timer.Armed() || at < f.conn.e.wheel.At(f.timer)) {
		f.conn.e.arm(&f.timer, f, at)
	}
}

// due returns when the next of these packets must be examined. All packets in flight have the same
// timeout, the current one, and are in the order of sending, so the first is due first.
func (f *flight) due() Time {
	at := never
	if t := f.unanswered.First(); t != nil {
		at = t.received + f.conn.e.profile.AnswerTimeout
	}
	if t := f.sent.First(); t != nil {
		at = min(at, t.lastSent+f.cc.rto(), f.lossDue())
	}
	return min(at, f.probeDue())
}

// lossDue returns when the packet that was sent longest ago counts as lost, if one sent later has
// arrived.
func (f *flight) lossDue() Time {
	for t := f.sent.First(); f.conn.e.profile.RACK && t != nil && t.lastSent < f.arrivals.sent; t = t.place.Next() {
		if t.early < f.conn.e.profile.EarlyLimit {
			return t.lastSent + f.arrivals.lag + f.reorder()
		}
	}
	return never
}

// probeDue returns when a tail loss probe is sent: two RTTs after the last packet was sent or
// acknowledgement received; each further probe doubles the wait. Packets that only wait for an
// answer count too, because the acknowledgement with that answer may be lost. While the window is
// below one packet, the gap between packets is added, as it is to the retransmission timeout.
func (f *flight) probeDue() Time {
	p := &f.conn.e.profile
	t := f.sent.Last()
	if t == nil {
		t = f.unanswered.Last()
	}
	if p.Probe == ProbeNone || t == nil {
		return never
	}
	wait := max(2*f.cc.rtt(), p.ProbeTime) + f.cc.gap()
	return max(t.lastSent, f.probeFrom) + wait<<f.probes
}

// queueResend queues a packet in flight for retransmission.
func (f *flight) queueResend(t *txn) {
	f.conn.e.wheel.Stop(&t.timer)
	f.uncountResent(t)
	if t.in == inNone || t.in == inFlight || t.in == inUnanswered {
		t.unlink()
		t.enlistByPSN(inResend)
	}
	f.conn.enqueue()
}

func (f *flight) uncountResent(t *txn) {
	if t.resent {
		t.resent = false
		f.window(t.kind).resent--
	}
}

// resync replaces the packet of t, which was sent, with a Resync of the same PSN and RSN.
func (f *flight) resync(t *txn, code wire.ResyncCode, completion Completion) {
	t.makeResync(code, completion)
	f.queueResend(t)
}

// expired implements timerOwner: it sends again what is due.
func (f *flight) expired(now Time) {
	for t := f.sent.First(); t != nil && t.lastSent+f.cc.rto() <= now; t = f.sent.First() {
		f.onTimeout(now, t)
	}
	for t := f.unanswered.First(); t != nil && t.received+f.conn.e.profile.AnswerTimeout <= now; t = f.unanswered.First() {
		f.onAnswerTimeout(now, t)
	}
	f.findLost(now)
	if f.probeDue() <= now {
		f.probe(now)
	}
	f.arm()
}

// onTimeout handles a packet in flight that was not acknowledged in time (Falcon §9.1.5, §11).
func (f *flight) onTimeout(now Time, t *txn) {
	f.conn.e.stats.TimeoutRetransmits++
	if limit := int32(f.conn.limit); limit != 0 && t.length > limit && t.resync == 0 {
		f.conn.shutdown(CmplDeadConn, CloseMTU)
		return
	}
	if f.exhausted(now, t) {
		return
	}
	t.cause = causeTimeout
	f.conn.e.rate.ev = rue.Event{Type: rue.TypeRetransmit, RetransmitCount: uint8(min(t.retries, maxRetransmitCount))}
	f.conn.e.rate.raise(now, f.conn)
	f.queueResend(t)
}

// onAnswerTimeout sends a push again that the peer has received; the answer, perhaps a NACK, may be
// lost. This is no sign of congestion.
func (f *flight) onAnswerTimeout(now Time, t *txn) {
	f.conn.e.stats.AnswerTimeouts++
	if !f.exhausted(now, t) {
		t.cause = causeAnswer
		f.queueResend(t)
	}
}

// exhausted counts a timeout of a packet. After too many it gives the packet up and returns true.
func (f *flight) exhausted(now Time, t *txn) bool {
	t.retries++
	p := &f.conn.e.profile
	limit := f.conn.cfg.GiveUp
	if t.resync != 0 {
		limit = p.ResyncGiveUp
	}
	since := max(t.firstSent, f.lastRNR) // a peer that is not ready is alive
	if (p.MaxRetransmits == 0 || limit == Forever || int(t.retries) <= p.MaxRetransmits) && (limit == 0 || now-since < limit) {
		return false
	}
	if t.resync != 0 {
		f.conn.shutdown(CmplDeadConn, CloseResync)
	} else {
		f.resync(t, wire.ResyncRetransmit, CmplLocalTO)
	}
	return true
}

// maxRetransmitCount is the saturation value of the retransmission count in the RUE's event, a
// field of 3 bits (Falcon §10.6.2.1).
const maxRetransmitCount = 6

// RACK-TLP (Falcon §9.1.6, RFC 8985): a packet is lost when one that was sent well after it has
// arrived. When acknowledgements fail to arrive, a probe asks for one. The list of packets in
// flight is in the order of sending; nothing else is needed to find the lost ones.

// noteReceived moves packets that the peer has received, but its ULP has not answered (rx without
// ack in an EACK), from those in flight to those that wait for an answer. Only the answer can be
// lost, so they have a separate timer, longer than that of packets that may be lost themselves. A
// push that was once refused with RNR stays in flight: the bitmap may show the copy that was
// refused.
func (f *flight) noteReceived(base uint32, ack, rx wire.Bitmap128, times *ackTimes) {
	for half, m := range [...]uint64{rx.Lo &^ ack.Lo, rx.Hi &^ ack.Hi} {
		for ; m != 0; m &= m - 1 {
			t := f.data.at(base + uint32(64*half+bits.TrailingZeros64(m)))
			if t == nil || t.resync != 0 || t.rnrSeen || t.in == inUnanswered {
				continue
			}
			f.delivered(t, times)
			f.uncountResent(t)
			t.unlink()
			t.received = times.now
			t.enlist(inUnanswered)
		}
	}
}

// findLost sends the packets again that count as lost.
func (f *flight) findLost(now Time) {
	if !f.conn.e.profile.RACK {
		return
	}
	latest := min(now-f.arrivals.lag-f.reorder(), f.arrivals.sent-1)
	for t := f.sent.First(); t != nil && t.lastSent <= latest; {
		next := t.place.Next()
		f.sendEarly(t)
		t = next
	}
}

// maxProbes limits how often the time between probes doubles.
const maxProbes = 10

// probe sends a packet again, so that the peer reports what it has received.
func (f *flight) probe(now Time) {
	f.probes, f.probeFrom = min(f.probes+1, maxProbes), now
	t := f.probed()
	f.conn.e.stats.Probes++
	t.cause = causeProbe
	f.queueResend(t)
}

// probed returns the packet for the next probe, from those in flight or, if there are none, from
// those that wait for an answer.
func (f *flight) probed() *txn {
	l := &f.sent
	if l.Empty() {
		l = &f.unanswered
	}
	switch f.conn.e.profile.Probe {
	case ProbeLast:
		return l.Last()
	case ProbeFirstUnacked:
		w := f.window(l.First().kind)
		if t := w.at(w.base); t.in == inFlight || t.in == inUnanswered {
			return t
		}
	}
	return l.First()
}

// recoverLosses performs early retransmission (Falcon §9.1.4) for one window of an EACK. rx holds
// what the peer received from base on. It reports whether the bitmap shows a loss.
func (f *flight) recoverLosses(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, own bool) (lost bool) {
	rtt := f.cc.rtt()
	lost = f.recoverHoles(now, w, base, rx, rtt)
	if own {
		f.recoverOutside(now, w, base, rx, rtt)
		w.paused = true // until maySend finds few enough packets in flight
	}
	return lost
}

// recoverHoles sends packets again that are missing far enough below the highest one received, if
// they were not sent within an RTT. At the first packet sent within an RTT it stops, unless
// Profile.ScanAll is set: later ones were sent as recently, or were sent again together with it.
func (f *flight) recoverHoles(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) (lost bool) {
	for n := range f.lossLimit(rx) {
		if bit(rx, uint32(n)) {
			continue
		}
		t := w.at(base + uint32(n))
		if t == nil || t.rnrDelay {
			continue
		}
		lost = true
		if t.lastSent+rtt < now {
			f.sendEarly(t)
		} else if !f.conn.e.profile.ScanAll {
			break
		}
	}
	return lost
}

// lossLimit returns the first index at which a missing packet does not count as lost: it is too
// close to the highest one received and, with Profile.OOOCount, too few behind it were received.
func (f *flight) lossLimit(rx *wire.Bitmap128) int {
	p := &f.conn.e.profile
	limit := highest(rx) - int(p.OOODistance) + 1
	if p.OOOCount > 0 {
		limit = max(limit, nthHighest(rx, p.OOOCount))
	}
	return limit
}

// recoverOutside handles an out-of-window notification. It sends every packet again that is not
// known as received and was not sent within an RTT. With Profile.OWNBypass the first notification
// within an RTO does not wait for the RTT.
func (f *flight) recoverOutside(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) {
	for psn := w.base; psn != w.next; psn++ {
		t := w.at(psn)
		if t == nil || t.rnrDelay || bit(rx, psn-base) {
			continue
		}
		bypass := f.conn.e.profile.OWNBypass && (t.bypassed < 0 || t.bypassed+f.cc.rto() <= now)
		if t.lastSent+rtt >= now && !bypass {
			continue
		}
		t.bypassed = now
		f.sendEarly(t)
	}
}

func (f *flight) sendEarly(t *txn) {
	if t.in != inFlight || t.early >= f.conn.e.profile.EarlyLimit {
		return
	}
	t.early++
	t.cause = causeEarly
	f.conn.e.stats.EarlyRetransmits++
	f.queueResend(t)
}
