package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/cc"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// RACK-TLP (Falcon §9.1.6, RFC 8985): a packet is lost when one sent well after it has arrived, and
// when acknowledgements stay away a probe asks for one. The list of packets in flight is in the
// order they were sent in, which is all that it takes to find the lost ones.

// heard is what acknowledgements say about when packets arrive.
type heard struct {
	sent Time // when the newest packet that arrived was sent
	lag  Time // how much later that was known

	reorder uint8 // quarters of an RTT by which packets may overtake each other
	needed  uint8 // early retransmissions since the last that was not needed
}

// maxReorder is a whole RTT; after needEarly early retransmissions that were needed overtaking
// counts as over.
const (
	maxReorder = 4
	needEarly  = 64
)

// delivered notes that an acknowledgement with timestamp t1, that of the packet the peer received
// last, covers t. If that packet was sent before t was sent for the last time, it is an earlier
// copy of t that arrived.
func (c *Conn) delivered(now Time, t *txn, t1 uint32) {
	h := &c.heard
	needed := int32(t1-FalconTime(t.lastSent)) >= 0
	switch {
	case t.lastSent == t.firstSent:
	case t.why == whyTimeout && !needed:
		c.e.stats.SpuriousTimeouts++
	case t.why == whyEarly && !needed:
		c.e.stats.SpuriousEarly++
		h.reorder, h.needed = min(h.reorder+1, maxReorder), 0
	case t.why == whyEarly && h.reorder > 0:
		if h.needed++; h.needed == needEarly {
			h.reorder, h.needed = 0, 0
		}
	}
	if needed && t.lastSent > h.sent {
		h.sent, h.lag = t.lastSent, now-t.lastSent
	}
}

// noteReceived takes packets out of those in flight that the peer has and its ULP has not answered
// (rx without ack in an EACK). Only the answer can be lost, so they have a timer of their own,
// longer than the one of packets that may be lost themselves. Of a push that was once refused with
// RNR nothing is known: what the bitmap has is the copy refused.
func (c *Conn) noteReceived(now Time, base uint32, ack, rx wire.Bitmap128, t1 uint32) {
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

// reorder is how much later another packet may be sent and arrive before, and this one not be lost.
// It grows while packets are sent again early that were only overtaken.
func (c *Conn) reorder() Time {
	return max(fromFU(c.cc.RTT)*Time(c.heard.reorder)/4, c.e.profile.ReorderTime)
}

// lossDue is when the packet in flight that was sent longest ago counts as lost, if one sent later
// has arrived.
func (c *Conn) lossDue() Time {
	for t := c.flight().First(); c.e.profile.RACK && t != nil && t.lastSent < c.heard.sent; t = t.place.Next() {
		if t.early < c.e.profile.EarlyLimit {
			return t.lastSent + c.heard.lag + c.reorder()
		}
	}
	return never
}

// findLost sends the packets again that count as lost.
func (c *Conn) findLost(now Time) {
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

// probeDue is when a tail loss probe goes: two RTTs after the last sign of life in either
// direction, and after a probe later and later. Packets that only wait for an answer count too: the
// acknowledgement that has it may be lost. While the window is below one packet the gap between
// packets is added, as to the retransmission timeout.
func (c *Conn) probeDue() Time {
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

// maxProbes bounds the doubling of the time between probes.
const maxProbes = 10

// probe sends a packet again, to be told what the peer has.
func (c *Conn) probe(now Time) {
	c.probes, c.lively = min(c.probes+1, maxProbes), now
	t := c.probed()
	c.e.stats.Probes++
	t.why = whyProbe
	c.sendLater(t)
}

// probed is the packet of the next probe, of those in flight or that wait for an answer.
func (c *Conn) probed() *txn {
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
