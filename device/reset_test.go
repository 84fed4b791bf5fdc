package device

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestAResetDeviceWorksOnTheSameStream resets functions under traffic and after a fault, and continues over the same
// stream (DEV-303).
func TestAResetDeviceWorksOnTheSameStream(t *testing.T) {
	w := newWorld(t)
	ctx := testContext(t)
	o := guestlib.Options{Memory: 64 << 20}
	da, db := w.openWith(0, "pf0.vf1", o), w.openWith(1, "pf0.vf1", o)
	for round := range 4 {
		a, b := newEndpoint(t, da), newEndpoint(t, db)
		connect(t, a, b, uint64(round))
		wr := guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		a.do(t, wr)
		for range 8 { // left in the middle
			if err := a.qp.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
		}
		want := guestlib.ErrClosed
		if round%2 == 1 {
			fault := control.FaultChange{Function: "pf0.vf1", Add: &fault.Rule{Kind: fault.FunctionFault, Limit: 1}}
			if _, err := w.nics[0].InjectFault(ctx, fault); err != nil {
				t.Fatal(err)
			}
			_ = a.qp.PostSend(&wr) // hits when work starts; earlier requests may complete
			select {
			case <-da.Done():
			case <-ctx.Done():
				t.Fatal("the fault was not told")
			}
			if err := da.Err(); !errors.Is(err, guestlib.ErrDeviceLost) {
				t.Fatalf("after a fault: %v", err)
			}
			want = guestlib.ErrDeviceLost
		}
		for _, d := range []*guestlib.Device{da, db} {
			if err := d.Reset(ctx); err != nil {
				t.Fatal(err)
			}
			if err := d.Err(); err != nil {
				t.Fatalf("after a reset: %v", err)
			}
		}
		if _, err := a.pd.RegMR(ctx, mustAlloc(t, da), guestlib.LocalWrite); !errors.Is(err, want) {
			t.Errorf("RegMR in a PD of before: %v, want %v", err, want)
		}
		if err := a.qp.PostSend(&wr); !errors.Is(err, guestlib.ErrClosed) {
			t.Errorf("PostSend on a QP of before: %v", err)
		}
		if _, err := a.cq.Poll(make([]guestlib.WC, 1)); !errors.Is(err, guestlib.ErrClosed) {
			t.Errorf("Poll of a CQ of before: %v", err)
		}
		for _, e := range []*endpoint{a, b} { // gives the memory back without a request
			if err := errors.Join(e.qp.Destroy(ctx), e.cq.Destroy(ctx), e.mr.Dereg(ctx), e.pd.Dealloc(ctx)); err != nil {
				t.Error(err)
			}
		}
	}
	if err := da.Close(); err != nil {
		t.Error(err)
	}
	if err := da.Reset(ctx); !errors.Is(err, guestlib.ErrClosed) {
		t.Errorf("reset of a closed device: %v", err)
	}
}

func mustAlloc(t testing.TB, d *guestlib.Device) *guestlib.Buffer {
	t.Helper()
	b, err := d.Alloc(abi.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Free() })
	return b
}
