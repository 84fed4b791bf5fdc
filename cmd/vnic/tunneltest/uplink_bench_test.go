package tunneltest_test

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
)

// uplinkRounds is how often each kind of uplink is measured.
const uplinkRounds = 7

// BenchmarkUplink compares the two kinds of uplink: NICs in two network namespaces with a veth
// between them, whose uplinks are TAPs in a bridge with it, or UDP sockets at its addresses;
// wireguard-go has the same veth. Each round measures all of them in turn. Quotients are medians of
// the rounds' own.
func BenchmarkUplink(b *testing.B) {
	vnictest.RequireRoot(b)
	_, err := exec.LookPath("iperf3")
	vnictest.Require(b, err == nil, "iperf3 is not installed (make deps)")
	vnictest.Program(b)
	wireguard := buildWireguard(b)
	for _, mtu := range []int{1500, 9000} {
		b.Run(fmt.Sprintf("mtu%d", mtu), func(b *testing.B) {
			netns.Run(b, func() {
				for b.Loop() {
					compareUplinks(b, mtu, wireguard)
				}
			})
		})
	}
}

func compareUplinks(b *testing.B, mtu int, wireguard string) {
	x := newBoxes(b, mtu)
	x.unpaced()
	at, rdmaMTU := "", 1024
	if mtu == 9000 {
		at, rdmaMTU = "_mtu9000", 4096
	}
	own := []int{0, 1}
	plain := []*tunnel{
		x.vnic(1, vnicOptions{name: "tap", superframes: config.SuperframesAuto, processors: own, inside: true}),
		x.vnic(2, vnicOptions{superframes: config.SuperframesAuto, processors: own, inside: true, udp: true}),
		x.wireguard(3, wireguard),
	}
	rdma := []*tunnel{
		x.vnic(4, vnicOptions{name: "tap", superframes: config.SuperframesAuto, rdmaMTU: rdmaMTU, processors: own, inside: true}),
		x.vnic(5, vnicOptions{superframes: config.SuperframesAuto, rdmaMTU: rdmaMTU, processors: own, inside: true, udp: true}),
	}
	defer func() {
		for _, w := range slices.Concat(plain, rdma) {
			w.end()
		}
	}()
	x.must(x.serve())
	x.warm(plain)
	hurry(b)
	samples := samples{}
	for range uplinkRounds {
		for _, w := range plain {
			samples.add("uplink/tcp_gbps"+at, w, x.tcp(w, "cubic"))
		}
		for _, w := range rdma {
			rate, lat := writes(b, w)
			samples.add("uplink/write64k_mbs"+at, w, rate)
			samples.add("uplink/write64_lat_us"+at, w, lat)
		}
	}
	for quotient, of := range map[string]string{"tcp_udp_over_tap": "tcp_gbps", "write64k_udp_over_tap": "write64k_mbs", "write64_lat_udp_over_tap": "write64_lat_us"} {
		for i, tap := range samples["uplink/"+of+at+"@tap"] {
			name := "uplink/" + quotient + at
			samples[name] = append(samples[name], samples["uplink/"+of+at][i]/tap)
		}
	}
	samples.report(b)
}

// writes returns how much WRITEs of 64 KiB carry, in MB/s, and the median time of one of 64 bytes, in µs, of a
// client that sleeps until they are complete. One that polled would take the NICs' threads their processors, and
// be what is measured.
func writes(b *testing.B, t *tunnel) (rate, latency float64) {
	b.Helper()
	w := newWriter(b, t.devices)
	defer w.close()
	const count, size = 3000, 64 << 10
	w.write(100, size, 32)
	start := time.Now()
	w.write(count, size, 32)
	rate = count * size / 1e6 / time.Since(start).Seconds()
	w.write(100, 64, 1)
	took := make([]float64, 1000)
	for i := range took {
		start := time.Now()
		w.write(1, 64, 1)
		took[i] = float64(time.Since(start)) / 1e3
	}
	return rate, vnictest.Median(took)
}
