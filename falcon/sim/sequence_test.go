package sim

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestPacketsAreDescribedInWords(t *testing.T) {
	if got := ones(300, wire.Bitmap128{Lo: 0b1011, Hi: 1}); got != "300-301 303 364" {
		t.Errorf("bitmap: %q", got)
	}
	if got := ones(0xffffffff, wire.Bitmap128{Lo: 1 << 1}); got != "0" {
		t.Errorf("bitmap across the wrap: %q", got)
	}
	n := wire.Nack{CID: 1, PSN: 7, Code: wire.NackRNR}
	if got := Describe(n.Append(nil)); got != "NACK PSN 7, receiver not ready" {
		t.Errorf("NACK: %q", got)
	}
	if got := Describe([]byte{1, 2}); got == "" {
		t.Error("nothing about a short packet")
	}
}

// TestRunsOfSequenceNumbersCrossTheBitmap: runs of sequence numbers, to the ends of the bitmap and
// across its halves.
func TestRunsOfSequenceNumbersCrossTheBitmap(t *testing.T) {
	all := ^uint64(0)
	for want, m := range map[string]wire.Bitmap128{
		"none": {}, "300": {Lo: 1}, "427": {Hi: 1 << 63}, "300-427": {Lo: all, Hi: all}, "363-364": {Lo: 1 << 63, Hi: 1},
		"300-363": {Lo: all}, "364-427": {Hi: all}, "300 364": {Lo: 1, Hi: 1}, "301-302 426-427": {Lo: 6, Hi: 3 << 62},
	} {
		if got := ones(300, m); got != want {
			t.Errorf("%x: %q, want %q", m, got, want)
		}
	}
}
