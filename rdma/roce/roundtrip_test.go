package roce

import (
	"testing"

	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestRoundTripIsOfOnePacket: only an answer to the packet that is timed measures, and each timing
// measures once (RFC 6298 §3: none of a packet that may have been sent twice).
func TestRoundTripIsOfOnePacket(t *testing.T) {
	var r roundTrip
	if r.answered(50, 8) {
		t.Error("measured without a packet")
	}
	r.sent(100, 7)
	r.sent(150, 8)
	if r.answered(160, 7) || r.smoothed != 0 {
		t.Error("measured by an answer to what was before")
	}
	if !r.answered(400, 8) || r.smoothed != 300 {
		t.Errorf("round trip of %d, want 300", r.smoothed)
	}
	if r.answered(900, 9) || r.smoothed != 300 {
		t.Error("measured twice")
	}
}

// TestRetryPause: the pause before a retry follows RFC 6298: the first round trip and half of it, of
// the further ones an eighth, and of what they are off a quarter.
func TestRetryPause(t *testing.T) {
	const ms = 1_000_000
	var r roundTrip
	if r.rto() != 100*ms {
		t.Errorf("%d before the first round trip", r.rto())
	}
	now := transport.Time(ms)
	for i, c := range []struct{ took, smoothed, pause transport.Time }{
		{80 * ms, 80 * ms, 240 * ms},
		{160 * ms, 90 * ms, 90*ms + 4*50*ms},
		{10 * ms, 80 * ms, 80*ms + 4*(50+7.5)*ms},
		{80 * ms, 80 * ms, 80*ms + 4*43_125_000},
	} {
		psn := wire.PSN(i)
		r.sent(now, psn)
		now += c.took
		if !r.answered(now, psn+1) || r.smoothed != c.smoothed || r.rto() != c.pause {
			t.Errorf("round trip %d: smoothed %d, pause %d, want %d, %d", i, r.smoothed, r.rto(), c.smoothed, c.pause)
		}
	}
	r = roundTrip{}
	r.sent(0, 0)
	if r.answered(3*ms, 1); r.rto() != 10*ms {
		t.Errorf("pause %d after a short round trip, at least 10 ms", r.rto())
	}
	r = roundTrip{}
	r.sent(0, 0)
	if r.answered(4*ms, 1); r.rto() != 12*ms {
		t.Errorf("pause %d after one of 4 ms", r.rto())
	}
}
