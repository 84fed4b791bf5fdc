package tunneltest_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/guestlib/perf"
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
			samples.add("uplink/write64k_mbs"+at, w, x.perf(w, "write_bw", "-s", "65536", "-n", "3000", "-t", "64", "-Q", "32"))
			samples.add("uplink/write64_lat_us"+at, w, latency(b, w))
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

// latency returns the median time of a WRITE of 64 bytes, in µs, of a client that sleeps until it is
// complete. One that polled would take the NICs' threads their processors, and be what is measured.
func latency(b *testing.B, t *tunnel) float64 {
	b.Helper()
	w := newWriter(b, t.devices)
	defer w.close()
	w.write(100, 64, 1)
	took := make([]float64, 1000)
	for i := range took {
		start := time.Now()
		w.write(1, 64, 1)
		took[i] = float64(time.Since(start)) / 1e3
	}
	return vnictest.Median(took)
}

// perf lets a client of the first NIC write to one of the second, and returns MB/s.
func (b *boxes) perf(w *tunnel, test string, args ...string) float64 {
	b.t.Helper()
	command := func(box int, more ...string) *exec.Cmd {
		return exec.Command(vnictest.Program(b.t), slices.Concat([]string{"guest", "perf", "-d", w.devices[box], test, "--json"}, args, more)...)
	}
	server, err := labkit.StartCommand("server", command(1))
	b.must(err)
	defer server.Stop(time.Second)
	out, err := command(0, boxAddress(w.net, 2)).Output()
	if err != nil {
		b.t.Fatalf("%s of %s: %v: %s", test, w.name, err, out)
	}
	<-server.Done
	b.must(server.Err)
	var rows []perf.Row
	b.must(json.Unmarshal(out, &rows))
	return rows[0].BWMBs
}
