package device

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/netns"
)

// TestWhatTheMachineLacksIsReported checks that everything that a configuration needs and the machine lacks is
// reported, with the configuration key, and nothing else.
func TestWhatTheMachineLacksIsReported(t *testing.T) {
	dir := t.TempDir()
	good, none, file := filepath.Join(dir, "x"), filepath.Join(dir, "none", "x"), filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	here, elsewhere := netip.MustParseAddrPort("127.0.0.1:9"), netip.MustParseAddrPort("192.0.2.1:9")
	for name, x := range map[string]struct {
		change func(c *config.Config)
		want   []string // beginning of each line
	}{
		"nothing special": {func(*config.Config) {}, nil},
		"all is there": {func(c *config.Config) {
			c.Capture, c.Control, c.PSP.KeyLog, c.Metrics.Listen = &config.Capture{File: good}, good, good, here
		}, nil},
		"no control socket":  {func(c *config.Config) { c.Control, c.Attach[0].Socket = "", "" }, nil},
		"processor":          {func(c *config.Config) { c.NIC.CPU = []int{1000} }, []string{"nic.cpu: processor 1000 is not there"}},
		"bridge":             {func(c *config.Config) { c.Uplink.Bridge = "vnicnone0" }, []string{`uplink.bridge: bridge "vnicnone0" does not exist`}},
		"identity of the CM": {func(c *config.Config) { c.Peers = make([]config.Peer, 1) }, []string{"cm.identity: "}},
		"address of the CM": {func(c *config.Config) {
			c.Peers, c.CM.Listen = make([]config.Peer, 1), elsewhere
		}, []string{"cm.identity: ", "cm.listen: 192.0.2.1 is not an address of this host"}},
		"identity in a fleet": {func(c *config.Config) {
			c.Directory.Etcd, c.CM.Listen = &config.Etcd{}, elsewhere
		}, []string{"cm.identity: ", "cm.listen: 192.0.2.1 is not an address of this host"}},
		"key log":           {func(c *config.Config) { c.PSP.KeyLog = none }, []string{"psp.keylog: "}},
		"capture":           {func(c *config.Config) { c.Capture = &config.Capture{File: none} }, []string{"capture.file: " + none + ": there is no folder"}},
		"capture in a file": {func(c *config.Config) { c.Capture = &config.Capture{File: file + "/x"} }, []string{"capture.file: open " + file}},
		"metrics":           {func(c *config.Config) { c.Metrics.Listen = elsewhere }, []string{"metrics.listen: 192.0.2.1 is not an address of this host"}},
		"control":           {func(c *config.Config) { c.Control = none }, []string{"control: " + none + ": there is no folder"}},
		"attachments": {func(c *config.Config) { c.Attach[0].Socket, c.Attach[1].Socket = none, none }, []string{
			"attach[0].socket: " + none + ": there is no folder", "attach[1].socket: " + none + ": there is no folder",
		}},
		"ports, and more": {func(c *config.Config) {
			vfs := c.Functions[0].VFs
			vfs[0].Port, vfs[1].Port, vfs[2].Port = &config.Port{}, &config.Port{Bridge: "vnicnone0"}, &config.Port{Netns: "vnicnone0"}
			c.Control = none
		}, []string{`pf0.vf2.port.bridge: bridge "vnicnone0"`, `pf0.vf3.port.netns: network namespace "vnicnone0"`, "control: "}},
	} {
		t.Run(name, func(t *testing.T) {
			c := devicetest.Config(t, 1, good, [2]string{"127.0.0.1:1", "127.0.0.1:2"})
			c.Peers = nil
			x.change(c)
			var lines []string
			err := CheckMachine(c, func(check func() error) error { return check() })
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			same := len(lines) == len(x.want)
			for i := 0; same && i < len(lines); i++ {
				same = strings.HasPrefix(lines[i], x.want[i])
			}
			if !same {
				t.Errorf("%v, want %q", err, x.want)
			}
		})
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("it made files: %v, %v", left, err)
	}
}

// TestANICAwaitsItsNewAddress: a NIC that starts while the kernel still finds out whether somebody
// else has its IPv6 address (RFC 4862 §5.4) waits for that, and listens there.
func TestANICAwaitsItsNewAddress(t *testing.T) {
	netns.Run(t, func() {
		at := netip.MustParseAddrPort("[fd96::2]:1000")
		for path, value := range map[string]string{"accept_dad": "1", "dad_transmits": "2"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/"+path, []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire0", MTU: 1500}, PeerName: "wire1"}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(netns.Up("wire0"), netns.Up("wire1")); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName("wire0")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: at.Addr().AsSlice(), Mask: net.CIDRMask(64, 128)}}); err != nil {
			t.Fatal(err)
		}
		if err := checkAddress(at.Addr().String()); err == nil {
			t.Error("the address is not new")
		}
		c := devicetest.Config(t, 1, filepath.Join(t.TempDir(), "ctl"), [2]string{"127.0.0.1:1", "127.0.0.1:2"})
		c.Uplink = config.Uplink{Type: config.UplinkUDP, Listen: at, MTU: 1500}
		awaitAddresses(c)
		if err := checkAddress(at.Addr().String()); err != nil {
			t.Error(err)
		}
	})
}
