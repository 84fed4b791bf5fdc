package device

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/guestlib"
)

// BenchmarkWrite measures RDMA WRITE end to end between two clients on two
// NICs over an in-memory fabric: latency with one in flight for the small
// sizes, rate for the large.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{64, 4096, 64 << 10, 1 << 20} {
		for _, op := range []guestlib.Opcode{guestlib.Write, guestlib.Read} {
			b.Run(fmt.Sprintf("%s/%d", op, size), func(b *testing.B) {
				w := newWorld(b)
				x, y := newEndpoint(b, w.open(0, "pf0.vf1")), newEndpoint(b, w.open(1, "pf0.vf1"))
				connect(b, x, y, 1)
				b.SetBytes(int64(size))
				b.ResetTimer()
				for range b.N {
					x.do(b, guestlib.SendWR{Opcode: op, SGL: []guestlib.SGE{x.mr.SGE(0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
				}
			})
		}
	}
}
