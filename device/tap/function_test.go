package tap_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

func withFunction(t *testing.T, cfg tap.FunctionConfig, f func(p *tap.Function)) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	netns.Run(t, func() {
		p, err := tap.OpenFunction(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		f(p)
	})
}

var functionMAC = [6]byte{2, 0, 0, 0, 0, 7}

// A frame with offload reaches the kernel whole, and a frame from the kernel comes with its
// offload.
func TestOffloadsPassToAndFromTheKernel(t *testing.T) {
	withFunction(t, tap.FunctionConfig{Name: "fn0", MAC: functionMAC, MTU: 1432, Segs: 44}, func(p *tap.Function) {
		link, err := netlink.LinkByName("fn0")
		if err != nil {
			t.Fatal(err)
		}
		a := link.Attrs()
		if !bytes.Equal(a.HardwareAddr, functionMAC[:]) || a.MTU != 1432 || a.GSOMaxSegs != 44 || a.Flags&net.FlagUp == 0 {
			t.Errorf("%+v", a)
		}
		// A packet socket on the device receives written frames, superframes uncut.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, 0x0300)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: a.Index}); err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 14+20+20, 2000)
		copy(head, functionMAC[:])
		copy(head[6:], []byte{2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0})
		const payload = 3 * 1000
		total := 40 + payload
		copy(head[16:], []byte{byte(total >> 8), byte(total), 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
		head[46], head[47] = 0x50, 0x10
		parts := [][]byte{head, bytes.Repeat([]byte{1}, 1000), bytes.Repeat([]byte{2}, 1000), bytes.Repeat([]byte{3}, 1000)}
		if !p.Write(parts, tap.Offload{GSO: unix.VIRTIO_NET_HDR_GSO_TCPV4, NeedsCsum: true, Size: 1000, CsumStart: 34, CsumOffset: 16}) {
			t.Fatal("not taken")
		}
		got := make([]byte, 1<<16)
		n, _, err := unix.Recvfrom(fd, got, 0)
		for err == nil && !bytes.Equal(got[6:12], head[6:12]) { // what the kernel says by itself
			n, _, err = unix.Recvfrom(fd, got, 0)
		}
		if err != nil || !bytes.Equal(got[:n], bytes.Join(parts, nil)) {
			t.Errorf("%d bytes, %v", n, err)
		}
		if p.Write([][]byte{head[:54]}, tap.Offload{NeedsCsum: true, CsumStart: 60000}) {
			t.Error("nonsense was taken")
		}
		if s := p.Stats(); s.TxFrames != 1 || s.TxBytes != uint64(len(head)+payload) || s.TxSuperframes != 1 || s.TxDropped != 1 {
			t.Errorf("%+v", s)
		}
		frame := append(bytes.Repeat([]byte{0xff}, 12), bytes.Repeat([]byte{0x88, 0xb5, 1}, 20)...)
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: a.Index, Halen: 6}); err != nil {
			t.Fatal(err)
		}
		n, o, err := p.Read(got)
		for err == nil && n > 0 && !bytes.Equal(got[:12], frame[:12]) { // what the kernel says by itself
			n, o, err = p.Read(got)
		}
		if err != nil || !bytes.Equal(got[:n], frame) || o != (tap.Offload{}) {
			t.Errorf("%x %+v %v", got[:n], o, err)
		}
	})
}

// The carrier follows SetLink, and the device disappears with the port.
func TestAFunctionsDeviceFollowsItsPort(t *testing.T) {
	withFunction(t, tap.FunctionConfig{Name: "fn1", MAC: functionMAC, MTU: 9000}, func(p *tap.Function) {
		for _, up := range []bool{false, true} {
			if err := p.SetLink(up); err != nil {
				t.Fatal(err)
			}
			link, err := netlink.LinkByName("fn1")
			if err != nil || link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 != up {
				t.Errorf("link %v: %#x %v", up, link.Attrs().RawFlags, err)
			}
		}
		if _, err := tap.OpenFunction(tap.FunctionConfig{Name: "fn1", MAC: functionMAC, MTU: 1500}); err == nil || !strings.Contains(err.Error(), "exists already") {
			t.Error("opened twice:", err)
		}
		for _, bad := range []tap.FunctionConfig{
			{Name: "fn2", MAC: functionMAC, MTU: 1500, Bridge: "nobridge"},
			{Name: "fn3", MAC: functionMAC, MTU: 1500, Netns: "no-such-netns"},
			{Name: "fn4", MAC: functionMAC, MTU: 10},
			{Name: "fn5", MAC: [6]byte{1}, MTU: 1500},
			{Name: "a/b", MTU: 1500},
		} {
			if f, err := tap.OpenFunction(bad); err == nil {
				t.Errorf("%+v was opened", bad)
				_ = f.Close()
			} else if _, missing := netlink.LinkByName(bad.Name); missing == nil {
				t.Errorf("%+v: left behind: %v", bad, err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := netlink.LinkByName("fn1"); err == nil {
			t.Error("the device is still there")
		}
		if err := p.Close(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}
