package device

import (
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// TestWiredQPsCarryDataThoughOneStartsLate wires queue pairs of real clients, between two NICs and within one; one side
// starts a while after the other.
func TestWiredQPsCarryDataThoughOneStartsLate(t *testing.T) {
	w := newWorld(t)
	for _, peer := range []struct {
		nic      int
		function string
	}{{1, "pf0.vf1"}, {0, "pf0.vf2"}} {
		a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(peer.nic, peer.function))
		ctx := testContext(t)
		if err := a.qp.Wire(ctx, b.qp.Address()); err != nil {
			t.Fatal(err)
		}
		copy(a.mr.Bytes(), "wired")
		err := a.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{a.mr.SGE(0, 5)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if err := b.qp.Wire(ctx, a.qp.Address()); err != nil {
			t.Fatal(err)
		}
		var wc [1]guestlib.WC
		for n := 0; n == 0; {
			if n, err = a.cq.Poll(wc[:]); err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				if err := a.cq.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := wc[0].Err(); err != nil || string(b.mr.Bytes()[:5]) != "wired" {
			t.Fatalf("%v, %q", err, b.mr.Bytes()[:5])
		}
		a.dev.Close()
		b.dev.Close()
	}
}
