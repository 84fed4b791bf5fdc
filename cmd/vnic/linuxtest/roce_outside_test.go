package linuxtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/netns"
)

// outsideSetting describes how a host outside is connected to the NIC (docs/roce.md, "A host with a
// RoCE NIC"). The outside is a network namespace with a bridge and the stock guest. A veth, which
// stands for the physical interface, leads there; its near end is in bridge gbr2.
type outsideSetting struct {
	function string    // VF 2's configuration
	address  string    // of the stock guest
	commands []string  // of ip, on the host
	guests   [2]string // further commands for each guest's shell, besides setting its address
}

// switched puts the outside into the network of the function's port.
var switched = outsideSetting{
	function: `      - {vf: 2, tenant: 100, address: 192.168.100.12, trust: true, port: {mode: bridged, name: vp2, bridge: gbr2, addresses: [192.168.100.22]}}
`,
	address: "192.168.100.22", guests: [2]string{"true", "true"},
}

// routed puts a router between: the host's own namespace.
var routed = outsideSetting{
	function: `      - {vf: 2, tenant: 100, address: 192.168.100.12, port: {mode: direct, name: vp2}}
tenants:
  - tenant: 100
    routes:
      - {prefix: 10.20.0.0/16, via: 192.168.100.12}
`,
	address:  "10.20.0.22",
	commands: []string{"addr add 192.168.100.12/24 dev vp2", "link set vp2 up", "addr add 10.20.0.1/16 dev gbr2", "link set gbr2 arp on"},
	guests:   [2]string{"ip route add 10.20.0.0/16 dev eth0", "ip route add 192.168.100.0/24 via 10.20.0.1"},
}

// outsideCells has one program of each kind. Packets of ibv_…_pingpong do not pass routers, because
// their hop limit is 1.
var outsideCells = []cell{
	{"ib_write_bw " + reliable.flags + " -s 9000 -n 50", 1},
	{"ib_read_bw " + reliable.flags + " -s 9000 -o 16 -n 50", 1},
	{"ib_atomic_bw " + reliable.flags + " -o 16 -n 50", 1},
	{"ib_send_lat " + datagrams.flags + " -s 1000 -n 50", 1},
	{command: "rping -s -V -C 30 -S 60000{any}|rping -c -V -C 30 -S 60000 -a {peer}"},
	{command: "fi_pingpong -p verbs -e msg -c -I 20 -S 60000"},
}

// TestLongRoCEOutside: the function reaches hosts outside, and they reach it.
func TestLongRoCEOutside(t *testing.T) {
	for name, o := range map[string]*outsideSetting{"switched": &switched, "routed": &routed} {
		t.Run(name, func(t *testing.T) {
			onTheWire(t, linuxSetting{gid: "192.168.100.11", outside: o}, outsideCells)
		})
	}
}

// goOutside creates the outside.
func (l *wiredLab) goOutside(t testing.TB, commands []string) {
	t.Helper()
	lan, err := netns.NewSpace()
	if err != nil {
		t.Fatal(err)
	}
	l.ends = append(l.ends, func() { _ = lan.Close() })
	ip(t, "link add phys mtu 4400 type veth peer name lan mtu 4400", "link set phys master gbr2 up")
	ip(t, commands...)
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if err := lan.Take("lan"); err != nil {
		t.Fatal(err)
	}
	if err := lan.Do(func() error {
		for _, c := range []string{"link add gbr2 type bridge", "link set gbr2 up", "link set lan master gbr2"} {
			if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w %s", c, err, out)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.lan = lan
}
