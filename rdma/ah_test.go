package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Links outlive the handles that use them. A driver that keeps making and destroying handles, to
// ever new addresses, holds no more links than its limits allow.
func TestLinksOfDestroyedAHs(t *testing.T) {
	w := newWorld(t, worldConfig{limits: verbs.Limits{Objects: verbs.Counts{abi.ObjectAH: 4}, Links: 8}})
	h := w.hosts[0]
	pd, st := h.fn.AllocPD()
	ok(t, st)
	gid := w.hosts[1].gid()
	for i := range 5000 {
		if i%100 == 0 {
			gid[3]++
		}
		ahn := h.createAH(pd, gid, uint8(i%64)<<2, uint8(i/64))
		if i%3 == 0 { // the device has been asked already
			for l := h.rof().NextLink(); l != nil; l = h.rof().NextLink() {
				if i%2 == 0 {
					l.Refused(h.w.now)
				}
			}
		}
		ok(t, h.fn.DestroyAH(h.w.now, ahn))
		if n := h.fn.Links.Len(); n > 8+8+64 {
			t.Fatalf("%d links after %d handles, none of which is left", n, i+1)
		}
	}
	h.createAH(pd, w.hosts[1].gid(), 0, 0)
	if h.fn.Links.Find(rof.LinkKey{GID: w.hosts[1].gid(), Ordered: true}) == nil {
		t.Error("a handle has no link")
	}
}
