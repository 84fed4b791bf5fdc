package sim

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/wire"
)

func TestDescribe(t *testing.T) {
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
