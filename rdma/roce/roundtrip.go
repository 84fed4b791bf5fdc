package roce

import (
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

const (
	leastRTO transport.Time = 10e6  // hosts without real-time scheduling stall for milliseconds
	firstRTO transport.Time = 100e6 // before the first answer
)

// roundTrip measures how long answers take (RFC 6298). It times one packet at a time, and never one
// that was sent again (Karn).
type roundTrip struct {
	smoothed, varies transport.Time
	timing           bool
	of               wire.PSN
	since            transport.Time
}

// sent records that a packet that asks for an answer was sent for the first time.
func (t *roundTrip) sent(now transport.Time, psn wire.PSN) {
	if !t.timing {
		t.timing, t.of, t.since = true, psn, now
	}
}

// answered records that everything before psn was answered. It reports whether that measured a
// round trip.
func (t *roundTrip) answered(now transport.Time, psn wire.PSN) bool {
	if !t.timing || psn.Sub(t.of) <= 0 {
		return false
	}
	t.timing = false
	took := now - t.since
	if t.smoothed == 0 {
		t.smoothed, t.varies = took, took/2
		return true
	}
	off := took - t.smoothed
	if off < 0 {
		off = -off
	}
	t.varies += (off - t.varies) / 4
	t.smoothed += (took - t.smoothed) / 8
	return true
}

// rto returns the retransmission timeout.
func (t *roundTrip) rto() transport.Time {
	if t.smoothed == 0 {
		return firstRTO
	}
	return max(t.smoothed+4*t.varies, leastRTO)
}
