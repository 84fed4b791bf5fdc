package rof

import (
	"testing"

	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestWithFalcon: only datagrams that falcon has are found by their number. One that waits is not,
// and neither is one that was given up, though another has its place by now. (F65)
func TestWithFalcon(t *testing.T) {
	head := ^uint32(0) - 2 // numbers wrap
	o := outgoing{held: make([]*datagram, LinkQueue), head: head, next: head + 5, tail: head + 9}
	for n := o.head; n != o.tail; n++ {
		*o.place(n) = &datagram{Datagram: transport.Datagram{Serial: n}}
	}
	for i := range uint32(3 * LinkQueue) {
		n := head - LinkQueue + i
		d, with := o.get(n), i >= LinkQueue && i < LinkQueue+5
		if (d != nil) != with || with && d.Serial != n {
			t.Errorf("number head%+d: found is %t, want %t", int32(n-head), d != nil, with)
		}
	}
	*o.place(head + 2) = nil
	if o.get(head+2) != nil {
		t.Error("one that is over is found")
	}
}
