package tunneltest_test

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// benchGuest is the guest of the benchmarks: QEMU's longest ring for received frames, its default
// for sent ones. A port that falls behind then takes fewer frames and loses none, as hardware does.
var benchGuest = vhosttest.NetOptions{Merge: true, Size: 1024, SendSize: 256}

// BenchmarkPorts measures ports in guests' memory by RFC 2544 §26.1: it searches for the highest
// rate at which no more than lossAllowed of the frames are lost. The NIC has one processor to
// itself. Our own driver polls on another processor, sends through one port and receives through
// another. Beside it, on the same processor, runs a driver by others: DPDK's.
func BenchmarkPorts(b *testing.B) {
	for _, bc := range []struct {
		metric string
		cpu    string  // metric of the NIC's processor time for a frame
		size   int     // bytes of a frame
		scale  float64 // of the metric to frames a second
	}{
		{"ports/local64_pps", "ports/local64_cpu_ns", 64, 1},
		{"ports/local1500_gbps", "ports/local1500_cpu_ns", 1514, 1514 * 8 / 1e9},
	} {
		b.Run(bc.metric, func(b *testing.B) {
			dir, err := os.MkdirTemp("", "ports")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			path := vnictest.PortConfig(b, dir, 1, 4, 1, "")
			vnictest.ServeOn(b, fabric.New(4500), path)
			from, to := vnictest.NewPortGuest(b, dir, 1, 1, benchGuest), vnictest.NewPortGuest(b, dir, 1, 2, benchGuest)
			from.Ask(to.IP)
			to.Ask(from.IP)
			l := portLoad{from, to, from.UDP(to.IP, make([]byte, bc.size-42))}
			cpu := apart(b)
			for b.Loop() {
				b.ReportMetric(bc.scale*ndr(l, 20e6), bc.metric)
				b.ReportMetric(cost(b, l), bc.cpu)
				if pps := bounced(b, dir, bc.size, cpu); pps > 0 {
					b.ReportMetric(bc.scale*pps, bc.metric+"@testpmd")
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// bounced returns how many frames per second a NIC carries between two ports of one testpmd, which
// has a processor of its own and sends each frame back; 0 without testpmd. A testpmd that loses
// frames is replaced, because ever fewer would circulate. If several in a row lose some, there is
// no figure.
func bounced(b *testing.B, dir string, size, cpu int) float64 {
	b.Helper()
	if !hasPMD() {
		return 0
	}
	for range 5 {
		pps, err := bounce(b, dir, size, cpu)
		if err == nil {
			return pps
		}
		b.Logf("frames of %d bytes: %v", size, err)
	}
	return 0
}

// aroundBursts is how many bursts of 32 frames each of the two ports sends first. All 512 frames
// together are half of what a ring holds, so that no port has to drop any.
const aroundBursts = 8

// bounce takes one measurement with one testpmd.
func bounce(t testing.TB, dir string, size, cpu int) (pps float64, err error) {
	one, two := pmdOptions{mac: vnictest.MACOf(1, 3), socket: vnictest.PortSocket(dir, 1, 3)}, pmdOptions{mac: vnictest.MACOf(1, 4), socket: vnictest.PortSocket(dir, 1, 4)}
	one.peer, two.peer = gatewayOf(one.mac), gatewayOf(two.mac)
	one.from, one.to, one.size, one.mode, one.cpu, one.twin = "192.168.100.13", "192.168.100.14", size, "5tswap", strconv.Itoa(cpu), &two
	p := startPMD(t, one)
	defer p.end()
	p.warm()
	p.do(fmt.Sprintf("start tx_first %d", aroundBursts), "packet forwarding")
	before, began := p.counts()["RX-packets"], time.Now()
	time.Sleep(time.Second)
	after, took := p.counts()["RX-packets"], time.Since(began)
	going := false
	for end := time.Now().Add(10 * time.Second); !going && time.Now().Before(end); { // a busy machine takes its time
		time.Sleep(10 * time.Millisecond)
		going = p.counts()["RX-packets"] > after
	}
	switch dropped := dropsOf(p.do("stop", "Done.")); {
	case dropped > 0:
		return 0, fmt.Errorf("testpmd dropped %d that it could not send", dropped)
	case !going:
		return 0, fmt.Errorf("testpmd's no longer go round after %d", after)
	}
	return 2 * float64(after-before) / took.Seconds(), nil // as many by the other port
}

// warm sends frames until some have gone back and forth. DPDK's driver cannot know when the NIC
// begins to serve its rings: frames sent before that are lost and do not circulate.
func (p *pmd) warm() {
	const burst = 32 // frames that a port sends first
	sent := 0
	vnictest.Eventually(p.t, "frames that go round", func() error {
		p.do("start tx_first 1", "packet forwarding")
		sent += burst
		back := p.counts()["RX-packets"]
		p.do("stop", "Done.")
		if back <= sent { // no more than the other port sent first
			return fmt.Errorf("%d frames came of %d", back, sent)
		}
		return nil
	})
}

// BenchmarkPortsTunnel is BenchmarkPorts through two NICs, each a process of its own, whose uplinks
// are TAPs on one bridge: driver, ring, seal, kernel, seal, ring, driver share the machine's
// processors. Beside it, in turn and over the same bridge, run our TAP ports, wireguard-go, and the
// kernel's VXLAN, which does not encrypt. The same search drives those through devices of the
// kernel.
func BenchmarkPortsTunnel(b *testing.B) {
	vnictest.RequireRoot(b)
	vnictest.Program(b)
	wireguard := buildWireguard(b)
	netns.Run(b, func() {
		x := newBoxes(b, 1500)
		own := []int{0, 1}
		guests := x.vnic(1, vnicOptions{superframes: config.SuperframesAuto, processors: own, guestPorts: true})
		ways := []*tunnel{x.vnic(2, vnicOptions{name: "tap", superframes: config.SuperframesAuto, processors: own}), x.wireguard(3, wireguard), x.vxlan(4)}
		defer func() {
			for _, w := range append(ways, guests) {
				w.end()
			}
		}()
		x.warm(ways)
		pair := x.portGuests(guests)
		hurry(b)
		samples := samples{}
		for b.Loop() {
			for range ndrRounds {
				for _, bc := range ndrCases {
					samples.add("ports/"+bc.metric, guests, ndr(portLoad{pair[0], pair[1], pair[0].UDP(pair[1].IP, make([]byte, bc.size-42))}, ndrMost))
					for _, w := range ways {
						samples.add("ports/"+bc.metric, w, x.ndr(w, bc.size))
					}
				}
			}
		}
		samples.report(b)
	})
}

// portGuests returns guests on the ports of two NICs.
func (b *boxes) portGuests(w *tunnel) (s [2]*vnictest.PortGuest) {
	b.t.Helper()
	for i := range s {
		g, err := vhosttest.ConnectNet(w.ports[i], benchGuest)
		b.must(err)
		b.t.Cleanup(func() { _ = g.Kill() })
		s[i] = &vnictest.PortGuest{T: b.t, Guest: g, MAC: vnictest.MACOf(int(boxHost(w.net, i+1)), 1), IP: netip.MustParseAddr(boxAddress(w.net, i+1))}
	}
	for i := range s {
		s[i].Ask(s[1-i].IP)
	}
	return s
}

// The searches through tunnels.
const (
	ndrRounds = 3
	ndrMost   = 4e6
)

var ndrCases = []struct {
	metric string
	size   int
}{{"ndr64_pps", 64}, {"ndr1400_pps", 1400}}

// ndr returns the highest rate that a tunnel carries.
func (b *boxes) ndr(w *tunnel, size int) float64 {
	b.t.Helper()
	l, end := b.kernelLoad(w, size)
	defer end()
	return ndr(l, ndrMost)
}
