package device

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/guestlib"
)

// The data path over iWARP, beside Falcon and RoCEv2: functions of two NICs with ports, bare clients, the
// same uplinks, sealed, with superframes. See datapath_bench_test.go.

// threeWires measures over each wire, on uplinks with an MTU.
func threeWires(b *testing.B, metric string, mtu int, measure func(b *testing.B, r *rig) float64) {
	b.Helper()
	over := func(transport string) func(i int, c *config.Config) {
		return func(i int, c *config.Config) {
			c.RDMA.Transport, c.Uplink.MTU = transport, mtu
			for c.RDMADataFor(mtu) < c.RDMA.MTU {
				c.RDMA.MTU /= 2
			}
			devicetest.AddPort(c, 0, &config.Port{Name: fmt.Sprintf("vp%d", i+1)})
		}
	}
	onRigs(b, metric, []rigKind{
		{superframes: config.SuperframesAuto, change: over(config.TransportIWARP), connect: byCM},
		{suffix: "@falcon", superframes: config.SuperframesAuto, change: over(config.TransportFalcon), connect: byCM},
		{suffix: "@roce", superframes: config.SuperframesAuto, change: over(config.TransportRoCE), connect: wired},
	}, func(b *testing.B, r *rig) float64 {
		before := r.w.counter(0, "iwarp.sent")
		v := measure(b, r)
		if sent, iwarp := r.w.counter(0, "iwarp.sent") > before, r.w.nics[0].cfg.RDMA.Transport == config.TransportIWARP; sent != iwarp {
			b.Errorf("by iWARP: %v, want %v", sent, iwarp)
		}
		return v
	})
}

func BenchmarkIWARPWrite64K(b *testing.B) {
	for metric, mtu := range map[string]int{"iwarp/write64k_gbps": 1500, "iwarp/write64k_gbps_mtu9000": tapMTU} {
		b.Run(fmt.Sprint("mtu", mtu), func(b *testing.B) {
			threeWires(b, metric, mtu, func(b *testing.B, r *rig) float64 {
				b.SetBytes(65536)
				return medianOf(b.N, func(n int) float64 { return gbps(65536, n, r.stream(b, guestlib.Write, 65536, n)) })
			})
		})
	}
}

// BenchmarkIWARPLatency measures one 64 B WRITE at a time, from PostSend to its completion, polled. TCP
// acknowledges it, which is when iWARP knows that it is done.
func BenchmarkIWARPLatency(b *testing.B) {
	threeWires(b, "iwarp/write64_lat_us", tapMTU, func(b *testing.B, r *rig) float64 {
		took := r.oneByOne(b, max(b.N, 1000))
		return float64(took[len(took)/2].Nanoseconds()) / 1e3
	})
}
