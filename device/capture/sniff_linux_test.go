package capture

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	waitForwarding(t, fd)
	return fd
}

// waitForwarding sends probes into fd until the bridge forwards them. The kernel lets a port
// forward some time after its link is up.
func waitForwarding(t *testing.T, fd int) {
	t.Helper()
	far, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(far) }()
	index, err := linkIndex(far, "b1")
	if err == nil {
		const localExperiment = 0x88b5
		err = unix.Bind(far, &unix.SockaddrLinklayer{Protocol: htons(localExperiment), Ifindex: index})
	}
	if err != nil {
		t.Fatal(err)
	}
	probe := make([]byte, 60)
	copy(probe, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err := unix.Write(fd, probe); err != nil {
			t.Fatal(err)
		}
		if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(far), Events: unix.POLLIN}}, 10); n > 0 {
			return
		}
	}
	t.Fatal("the bridge does not forward")
}

// patience is how long a test waits for the kernel.
const patience = 2 * time.Minute

// waitCounted waits until a sniffer has counted so many of each class.
func waitCounted(t *testing.T, s *Sniffer, want Counts) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		c := s.Counts()
		if c.PSP >= want.PSP && c.ARP >= want.ARP && c.ND >= want.ND && c.ICMPv6 >= want.ICMPv6 && c.Other >= want.Other {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("counted %+v, want %+v", c, want)
		}
	}
}

// TestEveryFrameOnABridgeIsCountedAndWritten: every frame that crosses a bridge is counted by its class and written to the
// file.
func TestEveryFrameOnABridgeIsCountedAndWritten(t *testing.T) {
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
		if _, err := Sniff("br0", path); !errors.Is(err, os.ErrExist) || !strings.Contains(err.Error(), "choose another name") {
			t.Errorf("the file was overwritten: %v", err)
		}
		waitCounted(t, s, want)
		got, err := s.Close()
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

// TestCloseTakesWhatWaits: frames that arrived before Close are written to the file.
func TestCloseTakesWhatWaits(t *testing.T) {
	netns.Run(t, func() {
		fd := veth(t)
		defer func() { _ = unix.Close(fd) }()
		dir := t.TempDir()
		witness, err := Sniff("br0", filepath.Join(dir, "witness.pcapng"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := newSniffer("br0", filepath.Join(dir, "late.pcapng")) // opened later: the kernel gives it each frame first
		if err != nil {
			t.Fatal(err)
		}
		const n = 20
		for range n {
			if _, err := unix.Write(fd, []byte("\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb6 what waits")); err != nil {
				t.Fatal(err)
			}
		}
		waitCounted(t, witness, Counts{Other: n})
		if _, err := witness.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.sock.SetReadDeadline(time.Unix(1, 0)); err != nil { // as if it were closed before it read anything
			t.Fatal(err)
		}
		go s.run()
		if got, err := s.Close(); err != nil || got.Total() < n {
			t.Errorf("%+v, %v: want %d frames", got, err, n)
		}
	})
}

func TestARefusedSniffLeavesNoFile(t *testing.T) {
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

func TestAPrivilegedProcessGetsALargerReceiveBuffer(t *testing.T) {
	netns.Run(t, func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		if err := receiveBuffer(fd); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil || n < sniffQueue {
			t.Errorf("room for %d bytes, %v; want %d", n, err, sniffQueue)
		}
	})
}
