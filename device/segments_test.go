package device

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
)

// TestSegmentsOfTwoDefaults: a NIC whose packets carry 8 KiB of data and one whose packets carry 4 KiB
// use 4 KiB between them, whichever asks for the connection; two that carry 8 KiB use that. Messages of
// every length around a segment's border, and of lengths beyond it, come byte for byte.
func TestSegmentsOfTwoDefaults(t *testing.T) {
	for _, mtu := range [][2]int{{4096, 8192}, {8192, 4096}, {8192, 8192}} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			w := newWorldWith(t, fabric.New(9000).Port, func(i int, c *config.Config) { c.Uplink.MTU, c.RDMA.MTU = 9000, mtu[i] })
			a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
			connect(t, a, b, 1)
			segment := min(mtu[0], mtu[1])
			for i := range a.mr.Len() {
				a.mr.Bytes()[i], b.mr.Bytes()[i] = byte(i*7+i>>8), byte(i*11+i>>9)
			}
			for nic, x := range []struct{ from, to *endpoint }{{a, b}, {b, a}} {
				if got := x.from.dev.Info().MTU; got != 4096 {
					t.Errorf("the driver is told of a path MTU of %d, want 4096", got)
				}
				for _, border := range []int{4096, 8192, 12288, 16384, 65536} {
					for n := border - 5; n <= border+5; n++ {
						before := w.counter(nic, "falcon.data_sent")
						copied(t, x.from, x.to, guestlib.Write, n)
						if packets := w.counter(nic, "falcon.data_sent") - before; packets != uint64((n+segment-1)/segment) {
							t.Fatalf("%d bytes went in %d packets of up to %d", n, packets, segment)
						}
					}
					copied(t, x.from, x.to, guestlib.Read, border+1)
					copied(t, x.from, x.to, guestlib.Send, border-1)
				}
			}
		})
	}
}

// copied has one end copy n bytes to, or with a READ from, the other, and checks that they are there and
// that nothing around them has changed.
func copied(t *testing.T, from, to *endpoint, op guestlib.Opcode, n int) {
	t.Helper()
	const at = 1<<20 + 3 // of the copy
	wr := guestlib.SendWR{Opcode: op, Flags: guestlib.Signaled, SGL: []guestlib.SGE{from.mr.SGE(0, n)}, RemoteAddr: to.mr.Addr() + at, RKey: to.mr.RKey()}
	src, dst := from.mr.Bytes()[:n], to.mr.Bytes()[at-1:at+n+1]
	switch op {
	case guestlib.Read:
		wr.SGL[0], wr.RemoteAddr = from.mr.SGE(at, n), to.mr.Addr()
		src, dst = to.mr.Bytes()[:n], from.mr.Bytes()[at-1:at+n+1]
	case guestlib.Send:
		must(t, to.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{to.mr.SGE(at, n)}}))
		wr.RemoteAddr, wr.RKey = 0, 0
	}
	for i := range dst {
		dst[i] = 0xee
	}
	must(t, from.qp.PostSend(&wr))
	if wc := from.next(t); wc.Err() != nil {
		t.Fatalf("%v of %d bytes: %v", op, n, wc.Err())
	}
	if op == guestlib.Send {
		if wc := to.next(t); wc.Err() != nil || int(wc.ByteLen) != n {
			t.Fatalf("receive of %d bytes: %d bytes, %v", n, wc.ByteLen, wc.Err())
		}
	}
	if !bytes.Equal(dst[1:n+1], src) || dst[0] != 0xee || dst[n+1] != 0xee {
		t.Fatalf("%v of %d bytes: the copy differs, or what is around it", op, n)
	}
}
