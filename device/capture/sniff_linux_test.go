package capture

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/netns"
)

// veth makes a pair of links, one end of it a port of a bridge, in the current
// namespace, and returns a raw socket on the other end.
func veth(t *testing.T) (fd int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"all", "default"} { // the kernel must not speak on its own
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Logf("IPv6 stays on: %v", err)
		}
	}
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	br.Name = "br0"
	must(netlink.LinkAdd(br))
	for _, n := range []string{"a", "b"} {
		v := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: n + "1"}
		v.Name = n + "0"
		must(netlink.LinkAdd(v))
		must(netlink.LinkSetMaster(v, br))
		must(netlink.LinkSetUp(v))
		p, err := netlink.LinkByName(n + "1")
		must(err)
		must(netlink.LinkSetUp(p))
	}
	must(netlink.LinkSetUp(br))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(err)
	index, err := linkIndex(fd, "a1")
	must(err)
	must(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0, Ifindex: index}))
	return fd
}

func TestSniff(t *testing.T) {
	netns.Run(t, func() {
		fd := veth(t)
		defer func() { _ = unix.Close(fd) }()
		path := filepath.Join(t.TempDir(), "witness.pcapng")
		s, err := Sniff("br0", path)
		if err != nil {
			t.Fatal(err)
		}
		var want Counts
		all := frames(t)
		n := 0
		for _, f := range all {
			if f.name == "STP" { // consumed by the bridge's port
				continue
			}
			if _, err := unix.Write(fd, f.frame); err != nil {
				t.Fatal(f.name, err)
			}
			n++
			switch f.want {
			case PSP:
				want.PSP++
			case ARP:
				want.ARP++
			case ND:
				want.ND++
			case ICMPv6:
				want.ICMPv6++
			default:
				want.Other++
			}
		}
		if _, err := Sniff("br0", path); err == nil || !errors.Is(err, os.ErrExist) {
			t.Errorf("the file was overwritten: %v", err)
		}
		got, err := s.Close() // takes what is waiting
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Others) == 0 || len(got.Others) > maxOthers || !strings.Contains(strings.Join(got.Others, "\n"), "IPv4 protocol ") {
			t.Errorf("descriptions %q", got.Others)
		}
		// The kernel may add its own: IGMP for one.
		if got.PSP != want.PSP || got.ARP != want.ARP || got.ND < want.ND || got.ICMPv6 < want.ICMPv6 || got.Other < want.Other || got.Dropped != 0 {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		ng, packets := readAll(t, file)
		if len(packets) < n || uint64(len(packets)) != got.Total() {
			t.Errorf("%d packets in the file, sent %d, counted %d", len(packets), n, got.Total())
		}
		if nif, err := ng.Interface(0); err != nil || nif.Name != "br0" {
			t.Errorf("interface %+v, %v", nif, err)
		}
	})
}

func TestSniffRefuses(t *testing.T) {
	netns.Run(t, func() {
		dir := t.TempDir()
		if _, err := Sniff("nosuch0", filepath.Join(dir, "x")); err == nil || !strings.Contains(err.Error(), "nosuch0") {
			t.Errorf("missing link: %v", err)
		}
		if _, err := Sniff("a-name-that-is-too-long", filepath.Join(dir, "x")); err == nil {
			t.Error("a long name was taken")
		}
		if names, _ := os.ReadDir(dir); len(names) != 0 {
			t.Error("a refused Sniff leaves a file")
		}
	})
}
