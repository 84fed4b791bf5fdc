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
			samples.add("uplink/write64_lat_us"+at, w, x.perf(w, "write_lat", "-s", "64", "-n", "1000"))
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

// perf lets a client of the first NIC measure against one of the second. It returns MB/s, or µs for
// a latency.
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
	if rows[0].BWMBs > 0 {
		return rows[0].BWMBs
	}
	return rows[0].TTypical
}
