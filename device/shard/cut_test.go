package shard_test

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
)

// onCutLoop runs f with the thread of a NIC whose guest is behind a bridge, at MTU 1500, and its
// uplink. The test takes the turns. What send puts into the port can be read when send returns, and
// the kernel sends nothing of its own.
func onCutLoop(t *testing.T, f func(l *thread.Thread, s *shard.Shard, uplink *fullUplink, send func(frames, segments int))) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s, clock := shard.Bridged(t)
	netns.Run(t, func() {
		for _, name := range []string{"all", "default"} { // no neighbour discovery
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
		uplink, err := tap.Open(tap.Config{Name: "up1", MTU: 1500, Superframes: true})
		if err != nil {
			t.Fatal(err)
		}
		defer uplink.Close()
		if !uplink.Capabilities().USO {
			t.Skip("this kernel has no UDP segmentation offload for TAPs (Linux 6.2)")
		}
		set, err := ports.Open(s.Ports(), ports.Sources{}, clock, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		full := &fullUplink{Uplink: uplink}
		l, err := thread.New(thread.Config{Shard: s, Uplink: full, Queue: s.Queue(), Ports: set, Clock: clock, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port, err := netlink.LinkByName("vp1")
		if err != nil {
			t.Fatal(err)
		}
		// A queue in front of the device may be emptied later, by a thread of the kernel.
		noQueue := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: port.Attrs().Index, Parent: netlink.HANDLE_ROOT}, QdiscType: "noqueue"}
		if err := netlink.QdiscReplace(noQueue); err != nil {
			t.Fatal(err)
		}
		for l.Turn() { // what the kernel sends over new links
		}
		f(l, s, full, func(frames, segments int) {
			for range frames {
				sendSegments(t, "vp1", slices.Collect(s.Ports().All())[0], segments, 1380)
			}
		})
	})
}

// TestCutFillsSuperframes: a guest behind a bridge sends 64 KiB at once, which at MTU 1500 is 47
// segments, and a superframe holds at most 44 of them sealed (65507 / 1472). The rest of one frame
// is sent with the next one if there is one, and otherwise at once.
func TestCutFillsSuperframes(t *testing.T) {
	onCutLoop(t, func(l *thread.Thread, s *shard.Shard, uplink *fullUplink, send func(frames, segments int)) {
		for _, c := range []struct{ frames, segments, superframes int }{
			{1, 47, 2},
			{4, 47, 5},
			{20, 47, 22},
			{20, 35, 16}, // 42 packets are kept in a turn that read nothing
		} {
			before := uplink.Stats()
			send(c.frames, c.segments)
			for l.Turn() {
			}
			after := uplink.Stats()
			if n := int(after.TxFrames - before.TxFrames); n != c.frames*c.segments {
				t.Errorf("%d frames: %d packets left, want %d", c.frames, n, c.frames*c.segments)
			}
			if n := int(after.TxSuperframes - before.TxSuperframes); n != c.superframes {
				t.Errorf("%d frames: %d superframes of at most 44, want %d", c.frames, n, c.superframes)
			}
			if n := len(s.Queue().Pending()); n != 0 {
				t.Errorf("%d packets were kept", n)
			}
		}
	})
}

// TestSleepSendsWhatWasKept checks that packets that wait for others to fill a superframe are sent
// before the thread sleeps.
func TestSleepSendsWhatWasKept(t *testing.T) {
	onCutLoop(t, func(l *thread.Thread, s *shard.Shard, uplink *fullUplink, send func(frames, segments int)) {
		before := uplink.Stats()
		left := func() int { return int(uplink.Stats().TxFrames - before.TxFrames) }
		send(4, 47) // after what a turn reads there may be more
		for left()+len(s.Queue().Pending()) < 4*47 {
			if !l.Turn() {
				t.Fatal("not all was read")
			}
		}
		if len(s.Queue().Pending()) == 0 {
			t.Fatal("nothing was kept")
		}
		l.Halt() // Sleep returns when it would wait
		l.Sleep(l.Clock())
		if n := len(s.Queue().Pending()); n != 0 {
			t.Errorf("%d packets were kept in a sleep", n)
		}
		if n := left(); n != 4*47 {
			t.Errorf("%d packets left, want %d", n, 4*47)
		}
	})
}

// TestSleepAfterFullQueue: the uplink is full, and so is the queue in front of it, with frames of a
// port still to be sealed. When the uplink takes the waiting frames just before the thread sleeps,
// the thread must go on sealing: nothing else would wake it.
func TestSleepAfterFullQueue(t *testing.T) {
	onCutLoop(t, func(l *thread.Thread, s *shard.Shard, uplink *fullUplink, send func(frames, segments int)) {
		before := uplink.Stats()
		uplink.full = true
		send(4, 47)
		for l.Turn() {
		}
		if s.Queue().Slot() != nil || !s.Ports().Busy() {
			t.Fatal("the queue is not full")
		}
		uplink.full = false
		if !l.Sleep(l.Clock()) {
			t.Error("the thread slept with frames to seal")
		}
		for l.Turn() {
		}
		if n := int(uplink.Stats().TxFrames - before.TxFrames); n != 4*47 {
			t.Errorf("%d packets left, want %d", n, 4*47)
		}
	})
}

// fullUplink is a port that takes nothing while it is full.
type fullUplink struct {
	tap.Uplink
	full bool
}

func (p *fullUplink) Write(frames [][]byte, more bool) (int, error) {
	if p.full {
		return 0, nil
	}
	return p.Uplink.Write(frames, more)
}

// sendSegments makes the kernel send a TCP frame of segments segments out of a port's device, as
// its bridge does with a frame of a guest.
func sendSegments(t *testing.T, device string, p *shard.Port, segments, size int) {
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
	copy(ip[12:], devicetest.Host1[:])
	copy(ip[16:], devicetest.Host2[:])
	devicetest.FinishHeader(ip[:20])
	ip[32], ip[33] = 8<<4, 0x10
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index}); err != nil {
		t.Fatal(err)
	}
}
