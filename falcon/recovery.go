package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// delivery tracks the packets in flight: it acknowledges them, retransmits them, gives them up, and
// controls their rate.
type delivery struct {
	outcome

	heard  heard // arrival times learnt from acknowledgements
	probes uint8 // tail loss probes since the last acknowledgement
	lively Time  // when an acknowledgement was last received, or a probe sent
}

// heard holds what acknowledgements say about when packets arrive.
type heard struct {
	sent Time // when the newest packet that arrived was sent
	lag  Time // time from then until its acknowledgement

	reorder uint8 // quarters of an RTT by which packets may overtake each other
	needed  uint8 // needed early retransmissions since the last one that was not needed
}

func (c *delivery) rto() Time { return max(fromFU(c.cc.RTO), 1) }

// reorder returns by how much a packet may be overtaken by packets sent later before it counts as
// lost. It grows when an early retransmission turns out to be for a packet that was only overtaken.
func (c *delivery) reorder() Time {
	return max(fromFU(c.cc.RTT)*Time(c.heard.reorder)/4, c.e.profile.ReorderTime)
}

// maxReorder is a whole RTT. After needEarly early retransmissions that were needed, reordering
// counts as over.
const (
	maxReorder = 4
	needEarly  = 64
)

// timeFlight arms the timer of the packets in flight and of those that wait for an answer. If the
// deadline moves to a later time, the timer still fires at the earlier one and is then armed anew.
func (c *delivery) timeFlight() {
	at := c.flightDue()
	if at != never && (!c.flightTimer.Armed() || at < c.e.wheel.At(c.flightTimer)) {
		c.e.wheel.Arm(&c.flightTimer, c.self(), timerFlight, at)
	}
}

// flightDue returns when the next of these packets must be examined. All packets in flight have the
// same timeout, the current one, and are in the order of sending, so the first is due first.
func (c *delivery) flightDue() Time {
	at := never
	if t := c.answers().First(); t != nil {
		at = t.received + c.e.profile.AnswerTimeout
	}
	if t := c.flight().First(); t != nil {
		at = min(at, t.lastSent+c.rto(), c.lossDue())
	}
	return min(at, c.probeDue())
}

// lossDue returns when the packet that was sent longest ago counts as lost, if one sent later has
// arrived.
func (c *delivery) lossDue() Time {
	for t := c.flight().First(); c.e.profile.RACK && t != nil && t.lastSent < c.heard.sent; t = t.place.Next() {
		if t.early < c.e.profile.EarlyLimit {
			return t.lastSent + c.heard.lag + c.reorder()
		}
	}
	return never
}

// probeDue returns when a tail loss probe is sent: two RTTs after the last packet was sent or
// acknowledgement received; each further probe doubles the wait. Packets that only wait for an
// answer count too, because the acknowledgement with that answer may be lost. While the window is
// below one packet, the gap between packets is added, as it is to the retransmission timeout.
func (c *delivery) probeDue() Time {
	p := &c.e.profile
	t := c.flight().Last()
	if t == nil {
		t = c.answers().Last()
	}
	if p.Probe == ProbeNone || t == nil {
		return never
	}
	wait := max(2*fromFU(c.cc.RTT), p.ProbeTime) + Time(c.ipg)*cc.TUNanos
	return max(t.lastSent, c.lively) + wait<<c.probes
}

// sendLater queues a packet in flight for retransmission.
func (c *delivery) sendLater(t *txn) {
	c.e.wheel.Stop(&t.timer)
	c.uncountAgain(t)
	if t.in == inNone || t.in == inFlight || t.in == inAnswer {
		t.unlink()
		t.enlistByPSN(inRetx + listID(t.kind))
	}
	c.kick()
}

func (c *delivery) uncountAgain(t *txn) {
	if t.again {
		t.again = false
		c.window(t.kind).retransmitted--
	}
}

// makeResync turns the packet of t into a Resync (Falcon §9.1.8) and resets its retransmission
// counters.
func (t *txn) makeResync(code wire.ResyncCode, completion Completion) {
	t.resync, t.code = code, completion
	t.retries, t.firstSent, t.early, t.rnr = 0, -1, 0, false
}

// resync replaces the packet of t, which was sent, with a Resync of the same PSN and RSN.
func (c *delivery) resync(t *txn, code wire.ResyncCode, completion Completion) {
	t.makeResync(code, completion)
	c.sendLater(t)
}

func (c *delivery) onFlightTimer(now Time) {
	for t := c.flight().First(); t != nil && t.lastSent+c.rto() <= now; t = c.flight().First() {
		c.onTimeout(now, t)
	}
	for t := c.answers().First(); t != nil && t.received+c.e.profile.AnswerTimeout <= now; t = c.answers().First() {
		c.onAnswerTimeout(now, t)
	}
	c.findLost(now)
	if c.probeDue() <= now {
		c.probe(now)
	}
	c.timeFlight()
}

// onTimeout handles a packet in flight that was not acknowledged in time (Falcon §9.1.5, §11).
func (c *delivery) onTimeout(now Time, t *txn) {
	c.e.stats.TimeoutRetransmits++
	if c.exhausted(now, t) {
		return
	}
	t.why = whyTimeout
	c.e.rate.ev = rue.Event{Type: rue.TypeRetransmit, RetransmitCount: uint8(min(t.retries, maxRetransmitCount))}
	c.congestion(now)
	c.sendLater(t)
}

// onAnswerTimeout sends a push again that the peer has received; the answer, perhaps a NACK, may be
// lost. This is no sign of congestion.
func (c *delivery) onAnswerTimeout(now Time, t *txn) {
	c.e.stats.AnswerTimeouts++
	if !c.exhausted(now, t) {
		t.why = whyAnswer
		c.sendLater(t)
	}
}

// exhausted counts a timeout of a packet. After too many it gives the packet up and returns true.
func (c *delivery) exhausted(now Time, t *txn) bool {
	t.retries++
	p := &c.e.profile
	limit := c.cfg.GiveUp
	if t.resync != 0 {
		limit = p.ResyncGiveUp
	}
	since := max(t.firstSent, c.lastRNR) // a peer that is not ready is alive
	if (p.MaxRetransmits == 0 || limit == Forever || int(t.retries) <= p.MaxRetransmits) && (limit == 0 || now-since < limit) {
		return false
	}
	if t.resync != 0 {
		c.fail()
	} else {
		c.resync(t, wire.ResyncRetransmit, CmplLocalTO)
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
func (c *delivery) noteReceived(now Time, base uint32, ack, rx wire.Bitmap128, t1 uint32) {
	for half, m := range [...]uint64{rx.Lo &^ ack.Lo, rx.Hi &^ ack.Hi} {
		for ; m != 0; m &= m - 1 {
			t := c.packetAt(&c.dataTx, base+uint32(64*half+bits.TrailingZeros64(m)))
			if t == nil || t.resync != 0 || t.rnred || t.in == inAnswer {
				continue
			}
			c.delivered(now, t, t1)
			c.uncountAgain(t)
			t.unlink()
			t.received = now
			t.enlist(inAnswer)
		}
	}
}

// findLost sends the packets again that count as lost.
func (c *delivery) findLost(now Time) {
	if !c.e.profile.RACK {
		return
	}
	latest := min(now-c.heard.lag-c.reorder(), c.heard.sent-1)
	for t := c.flight().First(); t != nil && t.lastSent <= latest; {
		next := t.place.Next()
		c.sendEarly(t)
		t = next
	}
}

// maxProbes limits how often the time between probes doubles.
const maxProbes = 10

// probe sends a packet again, so that the peer reports what it has received.
func (c *delivery) probe(now Time) {
	c.probes, c.lively = min(c.probes+1, maxProbes), now
	t := c.probed()
	c.e.stats.Probes++
	t.why = whyProbe
	c.sendLater(t)
}

// probed returns the packet for the next probe, from those in flight or, if there are none, from
// those that wait for an answer.
func (c *delivery) probed() *txn {
	list := c.flight()
	if list.Empty() {
		list = c.answers()
	}
	switch c.e.profile.Probe {
	case ProbeLast:
		return list.Last()
	case ProbeFirstUnacked:
		w := c.window(list.First().kind)
		if t := c.packetAt(w, w.base); t.in == inFlight || t.in == inAnswer {
			return t
		}
	}
	return list.First()
}

// recoverLosses performs early retransmission (Falcon §9.1.4) for one window of an EACK. rx holds
// what the peer received from base on. It reports whether the bitmap shows a loss.
func (c *delivery) recoverLosses(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, own bool) (lost bool) {
	rtt := fromFU(c.cc.RTT)
	lost = c.recoverHoles(now, w, base, rx, rtt)
	if own {
		c.recoverOutside(now, w, base, rx, rtt)
		w.paused = true // until maySend finds few enough packets in flight
	}
	return lost
}

// recoverHoles sends packets again that are missing far enough below the highest one received, if
// they were not sent within an RTT. At the first packet sent within an RTT it stops, unless
// Profile.ScanAll is set: later ones were sent as recently, or were sent again together with it.
func (c *delivery) recoverHoles(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) (lost bool) {
	for n := range c.lossLimit(rx) {
		if bit(rx, uint32(n)) {
			continue
		}
		t := c.packetAt(w, base+uint32(n))
		if t == nil || t.rnr {
			continue
		}
		lost = true
		if t.lastSent+rtt < now {
			c.sendEarly(t)
		} else if !c.e.profile.ScanAll {
			break
		}
	}
	return lost
}

// lossLimit returns the first index at which a missing packet does not count as lost: it is too
// close to the highest one received and, with Profile.OOOCount, too few behind it were received.
func (c *delivery) lossLimit(rx *wire.Bitmap128) int {
	p := &c.e.profile
	limit := highest(rx) - int(p.OOODistance) + 1
	if p.OOOCount > 0 {
		limit = max(limit, nthHighest(rx, p.OOOCount))
	}
	return limit
}

// recoverOutside handles an out-of-window notification. It sends every packet again that is not
// known as received and was not sent within an RTT. With Profile.OWNBypass the first notification
// within an RTO does not wait for the RTT.
func (c *delivery) recoverOutside(now Time, w *txWindow, base uint32, rx *wire.Bitmap128, rtt Time) {
	for psn := w.base; psn != w.next; psn++ {
		t := c.packetAt(w, psn)
		if t == nil || t.rnr || bit(rx, psn-base) {
			continue
		}
		bypass := c.e.profile.OWNBypass && (t.bypassed < 0 || t.bypassed+c.rto() <= now)
		if t.lastSent+rtt >= now && !bypass {
			continue
		}
		t.bypassed = now
		c.sendEarly(t)
	}
}

func (c *delivery) sendEarly(t *txn) {
	if t.in != inFlight || t.early >= c.e.profile.EarlyLimit {
		return
	}
	t.early++
	t.why = whyEarly
	c.e.stats.EarlyRetransmits++
	c.sendLater(t)
}
