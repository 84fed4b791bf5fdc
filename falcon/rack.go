package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/wire"
)

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
