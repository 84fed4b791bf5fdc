package roce

import "testing"

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
