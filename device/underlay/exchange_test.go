package underlay

import "testing"

// TestCountersOfAnExchange: each verdict of a known exchange is counted exactly.
func TestCountersOfAnExchange(t *testing.T) {
	a, b := newStack(t, macA, "10.0.0.1/24"), newStack(t, macB, "10.0.0.2/24")
	introduce(t, 0, a, b)
	f, n := payload("direct")
	if _, ok := a.Output(0, ipB, 0xC000, false, f, n); !ok {
		t.Fatal("not sent")
	}
	b.Input(0, f)
	f[24] ^= 1 // header checksum
	b.Input(0, f)
	for _, tc := range []struct {
		name      string
		got, want Stats
	}{
		{"a", *a.Stats(), Stats{Parked: 1, ARP: 1, Sent: 2}},
		{"b", *b.Stats(), Stats{ARP: 1, Deliver: 2, DropIPHeader: 1}},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v\nwant %v", tc.name, tc.got, tc.want)
		}
	}
}
