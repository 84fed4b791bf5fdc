package guestlib

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/internal/allocs"
)

// TestAListIsPostedWithOneDoorbell: a list of requests is posted in order, up to the first invalid one, with one
// doorbell even for a device that wants a doorbell for each change.
func TestAListIsPostedWithOneDoorbell(t *testing.T) {
	r := newSilentRig(t)
	list := func(n int) []SendWR {
		wrs := make([]SendWR, n)
		for i := range wrs {
			wrs[i] = SendWR{ID: uint64(i), Opcode: Write, Flags: Signaled, SGL: make([]SGE, 1)}
		}
		return wrs
	}
	posted := func(want uint32, rung uint64) {
		t.Helper()
		if n, err := r.sq.Poll(); n != want || err != nil || r.qp.sq.rung != rung {
			t.Errorf("the device finds %d requests (%v) after %d doorbells, want %d after %d", n, err, r.qp.sq.rung, want, rung)
		}
	}
	if n, err := r.qp.PostSends(list(4)); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	posted(4, 1)
	bad := list(4)
	bad[2].SGL = make([]SGE, 17)
	if n, err := r.qp.PostSends(bad); n != 2 || !errors.Is(err, ErrInvalid) {
		t.Errorf("%d posted, %v", n, err)
	}
	bad[0].SGL = bad[2].SGL
	if n, err := r.qp.PostSends(bad); n != 0 || !errors.Is(err, ErrInvalid) {
		t.Errorf("%d posted, %v", n, err)
	}
	if n, err := r.qp.PostSends(nil); n != 0 || err != nil {
		t.Errorf("%d posted, %v", n, err)
	}
	posted(6, 2)
	if n, err := r.qp.PostSends(list(64)); n != 58 || !errors.Is(err, ErrQueueFull) {
		t.Errorf("%d posted, %v", n, err)
	}
	posted(64, 3)
	var wc [1]WC
	for i, id := range []uint64{0, 1, 2, 3, 0, 1, 0} { // accounted for like those posted one by one
		r.done(t, id)
		if n, err := r.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].ID != id {
			t.Fatal(i, n, err, wc[0].ID)
		}
	}
	again := list(1)
	if n := allocs.PerRun(6, func() {
		if n, err := r.qp.PostSends(again); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
