package device

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
)

// TestAGuestOnMacvtapReachesAPeer checks that a guest plugged in by macvtap, as QEMU and libvirt do it, resolves a
// peer's address and gets answers.
func TestAGuestOnMacvtapReachesAPeer(t *testing.T) {
	onPorts(t, func(int, *config.Config) {}, func(w *world, a, _ *namespace) {
		if out, err := a.try("ip addr flush dev vp1 && ip link add link vp1 name mv0 type macvtap mode passthru && ip link set mv0 up"); err != nil {
			if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
				t.Fatal(out)
			}
			t.Skip(out) // a kernel without macvtap
		}
		g := &macvtap{t: t, fd: openMacvtap(t, a, "mv0"), mac: w.nics[0].cfg.Functions[0].VFs[0].MAC}
		defer unix.Close(g.fd)

		arp := g.frame(bytes.Repeat([]byte{0xff}, 6), 0x0806, append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, bytes.Join([][]byte{g.mac[:], devicetest.Host1[:], make([]byte, 6), devicetest.Host2[:]}, nil)...))
		answer := g.ask(arp, func(f []byte) bool {
			return f[12] == 8 && f[13] == 6 && f[21] == 2 && bytes.Equal(f[28:32], devicetest.Host2[:])
		})
		gateway := answer[22:28]

		ping := make([]byte, 28+56)
		ping[0], ping[6], ping[8], ping[9] = 0x45, 0x40, 64, unix.IPPROTO_ICMP
		binary.BigEndian.PutUint16(ping[2:], uint16(len(ping)))
		copy(ping[12:], devicetest.Host1[:])
		copy(ping[16:], devicetest.Host2[:])
		devicetest.FinishHeader(ping[:20])
		ping[20], ping[24], ping[25] = 8, 0x12, 0x34
		for i := range ping[28:] {
			ping[28+i] = byte(i)
		}
		var sum uint32
		for i := 20; i < len(ping); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ping[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(ping[22:], ^uint16(sum>>16+sum))
		g.ask(g.frame(gateway, 0x0800, ping), func(f []byte) bool {
			return len(f) >= 14+len(ping) && f[12] == 8 && f[13] == 0 && f[34] == 0 && bytes.Equal(f[26:30], devicetest.Host2[:]) && bytes.Equal(f[42:14+len(ping)], ping[28:])
		})
	})
}

// macvtap holds the descriptor of a guest's interface.
type macvtap struct {
	t   *testing.T
	fd  int
	mac [6]byte
}

// openMacvtap opens the character device of a macvtap interface in a namespace.
func openMacvtap(t *testing.T, s *namespace, name string) int {
	t.Helper()
	numbers := s.sh("unshare -m sh -c 'mount -t sysfs sysfs /sys && cat /sys/class/net/%s/macvtap/tap*/dev'", name)
	var major, minor uint32
	if _, err := fmt.Sscanf(numbers, "%d:%d", &major, &minor); err != nil {
		t.Fatalf("%q: %v", numbers, err)
	}
	path := filepath.Join(t.TempDir(), "tap")
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

const vnetLen = 10 // virtio-net header in front of each frame

func (g *macvtap) frame(to []byte, etherType uint16, body []byte) []byte {
	f := append(make([]byte, vnetLen), to...)
	f = binary.BigEndian.AppendUint16(append(f, g.mac[:]...), etherType)
	return append(f, body...)
}

// ask sends a frame, again and again, until is accepts an answer, which it returns.
func (g *macvtap) ask(frame []byte, is func(f []byte) bool) []byte {
	g.t.Helper()
	b := make([]byte, 1<<16)
	for deadline := time.Now().Add(testTime); time.Now().Before(deadline); {
		if _, err := unix.Write(g.fd, frame); err != nil {
			g.t.Fatal(err)
		}
		for {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}, 200); n == 0 || err != nil {
				break
			}
			n, err := unix.Read(g.fd, b)
			if err != nil {
				g.t.Fatal(err)
			}
			if f := b[vnetLen:n]; len(f) >= 14+28 && is(f) {
				return f
			}
		}
	}
	g.t.Fatal("no answer")
	return nil
}
