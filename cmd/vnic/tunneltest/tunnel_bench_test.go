package tunneltest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
)

// Limits of a comparison. Each round measures each tunnel once.
const (
	tunnelRounds = 7
	tcpSeconds   = "1"
	udpSeconds   = "1"
)

// tunnelCase is a set of measurements at one MTU of the underlay.
type tunnelCase struct {
	mtu      int
	tcp, bbr string // metrics of TCP, with CUBIC and with BBR
	rest     bool   // UDP and ping as well
}

// BenchmarkTunnel compares tunnels for plain IP from one network namespace to another, all over one
// Linux bridge of one MTU: two NICs with function ports and sealed superframes, each NIC's thread
// on a processor of its own; the same left to the scheduler, and without superframes; wireguard-go;
// the kernel's VXLAN without encryption; and the bridge alone. Each round measures all of them in
// turn. The report is the median.
func BenchmarkTunnel(b *testing.B) {
	for _, bc := range []tunnelCase{
		{mtu: 1500, tcp: "tunnel/tcp_gbps", rest: true},
		{mtu: 9000, tcp: "tunnel/tcp_gbps_mtu9000", bbr: "tunnel/tcp_bbr_gbps_mtu9000"},
	} {
		b.Run(fmt.Sprintf("mtu%d", bc.mtu), func(b *testing.B) {
			vnictest.RequireRoot(b)
			for _, tool := range []string{"iperf3", "ping"} {
				_, err := exec.LookPath(tool)
				vnictest.Require(b, err == nil, tool+" is not installed (make deps)")
			}
			vnictest.Program(b)
			wireguard := buildWireguard(b)
			netns.Run(b, func() {
				for b.Loop() {
					compareTunnels(b, bc, wireguard)
				}
			})
		})
	}
}

func compareTunnels(b *testing.B, bc tunnelCase, wireguard string) {
	x := newBoxes(b, bc.mtu)
	x.unpaced()
	own := []int{0, 1}
	ways := []*tunnel{
		x.vnic(1, vnicOptions{superframes: config.SuperframesAuto, processors: own}),
		x.vnic(2, vnicOptions{name: "unpinned", superframes: config.SuperframesAuto}),
		x.vnic(3, vnicOptions{name: "singly", superframes: config.SuperframesOff, processors: own}),
		x.wireguard(4, wireguard), x.vxlan(5), x.bridge(6),
	}
	defer func() {
		for _, w := range ways {
			w.end()
		}
	}()
	x.must(x.serve())
	x.warm(ways)
	hurry(b)
	samples := samples{}
	var cipher []float64 // ns for a packet
	for round := range tunnelRounds {
		cipher = append(cipher, float64(cipherTime(b, bc.mtu)))
		for _, w := range ways {
			samples.add(bc.tcp, w, x.tcp(w, "cubic"))
			if bc.bbr != "" && knowsCongestionControl("bbr") {
				samples.add(bc.bbr, w, x.tcp(w, "bbr"))
			}
			if !bc.rest {
				continue
			}
			pps, loss := x.udp(w)
			samples.add("tunnel/udp1400_pps", w, pps)
			samples.add("tunnel/udp1400_loss", w, loss)
			samples.add("tunnel/ping_p50_us", w, x.ping(w))
			for _, nc := range ndrCases {
				if round < ndrRounds {
					samples.add("tunnel/"+nc.metric, w, x.ndr(w, nc.size))
				}
			}
		}
	}
	samples.limit(bc, vnictest.Median(cipher))
	samples.report(b)
}

// limit adds the rate of TCP, in Gbit/s, that cipher and bridge together would allow, computed from
// each one's rate alone, and our tunnel's share of it. Two processors do the work of both: the
// bridge's rate is that of two, and the two share the time that a packet takes to seal and open.
func (s samples) limit(bc tunnelCase, cipher float64) {
	at := strings.TrimPrefix(bc.tcp, "tunnel/tcp_gbps")
	perBit := 1/vnictest.Median(s[bc.tcp+"@bridge"]) + cipher/2/float64(8*bc.mtu)
	s["tunnel/tcp_limit_gbps"+at] = []float64{1 / perBit}
	s["tunnel/tcp_over_limit"+at] = []float64{vnictest.Median(s[bc.tcp]) * perBit}
}

// warm sends the first packets, so that addresses are resolved and keys exchanged.
func (b *boxes) warm(ways []*tunnel) {
	b.t.Helper()
	for _, w := range ways {
		if _, err := b.in(0, "ping", "-c", "5", "-i", "0.2", "-W", "5", boxAddress(w.net, 2)); err != nil {
			b.t.Fatalf("%s: %v", w.name, err)
		}
	}
}

// samples holds measured values by metric.
type samples map[string][]float64

func (s samples) add(metric string, w *tunnel, v float64) {
	if w.name != "" {
		metric += "@" + w.name
	}
	s[metric] = append(s[metric], v)
}

// report reports the medians.
func (s samples) report(b *testing.B) {
	for metric, v := range s {
		b.ReportMetric(vnictest.Median(v), metric)
	}
	b.ReportMetric(0, "ns/op") // says nothing
}

func (t *tunnel) end() {
	for _, stop := range t.stop {
		stop()
	}
}

// serve starts iperf3's server in the second box.
func (b *boxes) serve() error {
	return b.spaces[1].Do(func() error {
		p, err := labkit.StartCommand("iperf3", exec.Command("iperf3", "-s", "--forceflush"))
		if err == nil {
			b.t.Cleanup(func() { p.Stop(0) })
		}
		return err
	})
}

// iperf holds the fields of iperf3's report that are used.
type iperf struct {
	End struct {
		Received struct {
			BitsPerSecond float64 `json:"bits_per_second"`
			Bytes         float64
		} `json:"sum_received"`
		Sum struct {
			Seconds     float64
			Packets     float64
			LostPackets float64 `json:"lost_packets"`
		}
	}
}

func (b *boxes) iperf(w *tunnel, args ...string) (r iperf) {
	b.t.Helper()
	argv := append([]string{"iperf3", "-J", "-c", boxAddress(w.net, 2)}, args...)
	vnictest.Eventually(b.t, "iperf3 "+w.name, func() error { // the server may not be free yet
		r = iperf{}
		out, err := b.in(0, argv...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		return err
	})
	return r
}

// unpaced makes Reno the default of sockets in the boxes, which every namespace may choose. Where
// the machine's default is BBR, sockets would stay paced by a timer for each frame, even after
// another algorithm is chosen for them.
func (b *boxes) unpaced() {
	b.t.Helper()
	for _, s := range b.spaces {
		b.must(s.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte("reno"), 0) }))
	}
}

func knowsCongestionControl(name string) bool {
	list, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return slices.Contains(strings.Fields(string(list)), name)
}

// tcp returns the rate of one TCP stream in Gbit/s.
func (b *boxes) tcp(w *tunnel, congestionControl string) float64 {
	return b.iperf(w, "-t", tcpSeconds, "-C", congestionControl).End.Received.BitsPerSecond / 1e9
}

// udp sends datagrams of 1400 bytes as fast as iperf3 can, and returns the rate that arrives and
// the share that is lost.
func (b *boxes) udp(w *tunnel) (pps, loss float64) {
	s := b.iperf(w, "-t", udpSeconds, "-u", "-l", "1400", "-b", "0").End.Sum
	return (s.Packets - s.LostPackets) / s.Seconds, s.LostPackets / s.Packets
}

var pingTime = regexp.MustCompile(`time=([\d.]+) ms`)

// ping returns the median round trip time of pings 2 ms apart, in µs.
func (b *boxes) ping(w *tunnel) float64 {
	out, err := b.in(0, "ping", "-n", "-i", "0.002", "-c", "150", boxAddress(w.net, 2))
	b.must(err)
	var us []float64
	for _, m := range pingTime.FindAllStringSubmatch(out, -1) {
		ms, err := strconv.ParseFloat(m[1], 64)
		b.must(err)
		us = append(us, ms*1000)
	}
	if len(us) == 0 {
		b.t.Fatalf("%s: no answers to pings\n%s", w.name, out)
	}
	slices.Sort(us)
	return us[len(us)/2]
}
