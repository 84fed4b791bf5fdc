package device

import (
	"encoding/binary"
	"log/slog"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

// TestCutFillsSuperframes: a guest behind a bridge sends 64 KiB at once, which at MTU 1500 is 47 segments, and no superframe holds more than
// 44 of them sealed (65507 / 1472). What is left of one frame leaves with the next while there is one, and at once where there is none.
func TestCutFillsSuperframes(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	const segments, segment, full = 47, 1380, 44
	v := newPortWorldWith(t, 31, func(_ int, c *config.Config) {
		c.Uplink.MTU, c.RDMA.MTU = 1500, 1024
		for _, vf := range []int{0, 3} {
			c.Functions[0].VFs[vf].Port.Mode, c.Functions[0].VFs[vf].Port.MTU = config.PortBridged, 1432
		}
	})
	netns.Run(t, func() {
		s := v.shards[0]
		uplink, err := tap.Open(tap.Config{Name: "up1", MTU: 1500, Superframes: true})
		if err != nil {
			t.Fatal(err)
		}
		defer uplink.Close()
		if !uplink.Capabilities().USO {
			t.Skip("this kernel has no UDP segmentation offload for TAPs (Linux 6.2)")
		}
		clock := func() int64 { return v.now }
		l, err := newLoop(s, uplink, clock, func(uint8, []byte) {}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer l.park.close()
		if l.ports, err = openPorts(s, nil, clock, l.log); err != nil {
			t.Fatal(err)
		}
		defer l.ports.close()
		for l.turn() { // what the kernel says over new links
		}
		for _, c := range []struct{ frames, superframes int }{{1, 2}, {4, 5}, {20, 22}} {
			before := uplink.Stats()
			for range c.frames {
				sendSegments(t, "vp1", s.plain.ports[0], segments, segment)
			}
			for l.turn() {
			}
			after := uplink.Stats()
			if n := int(after.TxFrames - before.TxFrames); n != c.frames*segments {
				t.Errorf("%d frames: %d packets left, want %d", c.frames, n, c.frames*segments)
			}
			if n := int(after.TxSuperframes - before.TxSuperframes); n != c.superframes {
				t.Errorf("%d frames: %d superframes of at most %d, want %d", c.frames, n, full, c.superframes)
			}
			if n := len(s.tx.pending()); n != 0 {
				t.Errorf("%d packets were kept", n)
			}
		}
	})
}

// sendSegments has the kernel send a TCP frame of so many segments out of a port's device, as its bridge does with one of a guest.
func sendSegments(t *testing.T, device string, p *functionPort, segments, size int) {
	t.Helper()
	dev, err := net.InterfaceByName(device)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal(err)
	}
	const vnet, headers = 10, 14 + 20 + 32 // TCP with timestamps
	b := make([]byte, vnet+headers+segments*size)
	b[0], b[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_TCPV4
	for at, n := range map[int]int{2: headers, 4: size, 6: 34, 8: 16} {
		binary.LittleEndian.PutUint16(b[at:], uint16(n))
	}
	f := b[vnet:]
	copy(f, p.Gateway[:])
	copy(f[6:], p.MAC[:])
	f[12] = 8
	ip := f[14:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], host1[:])
	copy(ip[16:], host2[:])
	finishHeader(ip[:20])
	ip[32], ip[33] = 8<<4, 0x10
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index}); err != nil {
		t.Fatal(err)
	}
}
