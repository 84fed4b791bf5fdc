package device

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib"
)

// BenchmarkSealed measures RDMA between two bare clients of two NICs in this
// process, sealed, over two TAPs on a bridge in a private network namespace:
// underlay MTU 9000, RDMA MTU 4096. Clients sleep on their CQs: a client that
// polls in the NICs' own process would only take their processors. Nothing is
// pinned.
func BenchmarkSealed(b *testing.B) {
	netns.Run(b, func() {
		const mtu = 9000
		if err := tap.NewBridge("vbr0", mtu); err != nil {
			b.Fatal(err)
		}
		open := func(name string) (tap.Port, error) {
			return tap.Open(tap.Config{Name: name, MTU: mtu, Bridge: "vbr0"})
		}
		w := newWorldWith(b, open, func(_ int, c *config.Config) { c.Uplink.MTU = mtu })
		x, y := newEndpoint(b, w.open(0, "pf0.vf1")), newEndpoint(b, w.open(1, "pf0.vf1"))
		connect(b, x, y, 1)
		for _, c := range []struct {
			name     string
			op       guestlib.Opcode
			size     int
			inFlight int // requests
			metric   string
		}{
			{"write64", guestlib.Write, 64, 48, "rdma/write64_msgs_per_s"},
			{"write4k", guestlib.Write, 4 << 10, 48, "rdma/write4k_gbps"},
			{"write64k", guestlib.Write, 64 << 10, 16, "rdma/write64k_gbps"},
			{"write1m", guestlib.Write, 1 << 20, 4, "rdma/write1m_gbps"},
			{"read64k", guestlib.Read, 64 << 10, 16, "rdma/read64k_gbps"},
			{"send64k", guestlib.Send, 64 << 10, 16, "rdma/send64k_gbps"},
		} {
			b.Run(c.name, func(b *testing.B) {
				b.SetBytes(int64(c.size))
				took := x.stream(b, y, c.op, c.size, c.inFlight)
				rate := float64(b.N) / took.Seconds()
				if c.size > 64 {
					rate *= float64(c.size) * 8 / 1e9
				}
				b.ReportMetric(rate, c.metric)
			})
		}
		b.Run("write64latency", func(b *testing.B) {
			times := x.latencies(b, y, 64)
			b.ReportMetric(percentile(times, 50), "rdma/write64_lat_p50_us")
			b.ReportMetric(percentile(times, 99), "rdma/write64_lat_p99_us")
		})
	})
}
