package security

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/psp"
)

// TestPlain: a packet of the gateway class is an IP packet of the version that PSP's header says.
func TestPlain(t *testing.T) {
	v4, v6 := nextHeader(false), nextHeader(true)
	for _, c := range []struct {
		clear []byte
		next  uint8
		ok    bool
	}{
		{[]byte{0x45, 1}, v4, true},
		{[]byte{0x60, 1}, v6, true},
		{[]byte{0x4f}, v4, true},
		{[]byte{0x45, 1}, v6, false},
		{[]byte{0x60, 1}, v4, false},
		{nil, v4, false},
		{nil, v6, false},
		{[]byte{0x54, 1}, v4, false},
		{[]byte{0x50, 1}, v6, false},
		{[]byte{0x06, 1}, v6, false},
		{[]byte{0x45}, 17, false},
	} {
		o := Opened{hdr: psp.Header{NextHeader: c.next}, clear: c.clear}
		if p, ok := o.Plain(); ok != c.ok || ok && &p[0] != &c.clear[0] {
			t.Errorf("% x under next header %d: %t", c.clear, c.next, ok)
		}
	}
}
