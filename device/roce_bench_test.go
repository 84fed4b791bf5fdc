package device

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/guestlib"
)

// The data path over RoCEv2, beside Falcon: functions of two NICs with ports, bare clients, the
// same uplinks, sealed, with superframes. See datapath_bench_test.go.

// wires measures over both wires.
func wires(b *testing.B, metric string, measure func(b *testing.B, r *rig) float64) {
	b.Helper()
	over := func(transport string) func(i int, c *config.Config) {
		return func(i int, c *config.Config) {
			c.RDMA.Transport = transport
			devicetest.AddPort(c, 0, &config.Port{Name: fmt.Sprintf("vp%d", i+1)})
		}
	}
	onRigs(b, metric, []rigKind{
		{superframes: config.SuperframesAuto, change: over(config.TransportRoCE), connect: wired},
		{suffix: "@falcon", superframes: config.SuperframesAuto, change: over(config.TransportFalcon), connect: wired},
	}, func(b *testing.B, r *rig) float64 {
		before := r.w.counter(0, "roce.sent")
		v := measure(b, r)
		if sent, roce := r.w.counter(0, "roce.sent") > before, r.w.nics[0].cfg.RDMA.Transport == config.TransportRoCE; sent != roce {
			b.Errorf("by RoCEv2: %v, want %v", sent, roce)
		}
		return v
	})
}

// wired connects two ends by numbers and GIDs, without a connection manager.
func wired(b *testing.B, x, y *endpoint) {
	b.Helper()
	for _, e := range [][2]*endpoint{{x, y}, {y, x}} {
		if err := e[0].qp.Wire(testContext(b), e[1].qp.Address()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRoCEWrite64K(b *testing.B) {
	wires(b, "roce/write64k_gbps", func(b *testing.B, r *rig) float64 {
		b.SetBytes(65536)
		return medianOf(b.N, func(n int) float64 { return gbps(65536, n, r.stream(b, guestlib.Write, 65536, n)) })
	})
}

func BenchmarkRoCEWrite64(b *testing.B) {
	wires(b, "roce/write64_msgs_per_s", func(b *testing.B, r *rig) float64 {
		return medianOf(b.N, func(n int) float64 { return float64(n) / r.stream(b, guestlib.Write, 64, n).Seconds() })
	})
}
