package tunneltest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
)

// boxed is a load from one box to the other over a network device of the kernel. Packets go into
// the device as they are, past IP and queueing, many with one system call. It counts the datagrams
// that UDP of the other box receives.
type boxed struct {
	t    *boxes
	fd   int
	out  []message
	into *netns.Space
	sink int // a socket that nobody reads
	last int // what its UDP had seen
	at   time.Time
}

// kernelLoad returns a load of packets of size bytes, with an Ethernet header, over a tunnel.
func (b *boxes) kernelLoad(w *tunnel, size int) (l *boxed, end func()) {
	b.t.Helper()
	l = &boxed{t: b, fd: -1, into: b.spaces[1]}
	from, to := netip.MustParseAddr(boxAddress(w.net, 1)), netip.MustParseAddr(boxAddress(w.net, 2))
	b.must(b.spaces[1].Do(func() (err error) {
		if l.sink, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(l.sink, unix.SOL_SOCKET, unix.SO_RCVBUF, 1), unix.Bind(l.sink, &unix.SockaddrInet4{Addr: to.As4(), Port: loadPort}))
	}))
	b.must(b.spaces[0].Do(func() (err error) {
		dev, mac, err := wayTo(to)
		if err != nil {
			return err
		}
		if l.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		l.out = messages(trialBurst, dev, mac, datagram(from, to, make([]byte, size-42)))
		return unix.SetsockoptInt(l.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	}))
	l.take()
	return l, func() { b.must(errors.Join(unix.Close(l.fd), unix.Close(l.sink))) }
}

const loadPort = 0x2000

// wayTo returns the device and the neighbour's MAC by which the calling thread's namespace reaches
// an address.
func wayTo(to netip.Addr) (device int, mac net.HardwareAddr, err error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, nil, fmt.Errorf("route to %v: %w", to, err)
	}
	device = routes[0].LinkIndex
	list, err := netlink.NeighList(device, netlink.FAMILY_V4)
	for _, n := range list {
		if n.IP.Equal(to.AsSlice()) {
			mac = n.HardwareAddr
		}
	}
	return device, mac, err
}

// datagram returns an IP packet with a UDP datagram that has no checksum.
func datagram(from, to netip.Addr, payload []byte) []byte {
	p := []byte{0x45, 0}
	p = binary.BigEndian.AppendUint16(p, uint16(28+len(payload)))
	p = append(p, 0, 0, 0x40, 0, 64, 17, 0, 0)
	p = append(append(p, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(p[10:], ^vnictest.OnesSum(p))
	p = append(p, 0x10, 0)
	p = binary.BigEndian.AppendUint16(p, loadPort)
	p = binary.BigEndian.AppendUint16(p, uint16(8+len(payload)))
	return append(append(p, 0, 0), payload...)
}

func (l *boxed) send(n int) int {
	if n <= 0 {
		return 0
	}
	return sendMessages(l.fd, l.out[:n])
}

// take reads the counter only every few milliseconds, because that costs as much as some dozens of
// packets.
func (l *boxed) take() int {
	if time.Since(l.at) < 3*time.Millisecond {
		return 0
	}
	l.at = time.Now()
	before := l.last
	l.t.must(l.into.Do(func() (err error) {
		l.last, err = datagramsSeen()
		return err
	}))
	return l.last - before
}

// datagramsSeen returns how many datagrams UDP of the thread's namespace has received, including
// those for ports that nobody had open.
func datagramsSeen() (n int, err error) {
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	var names []string
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if f[0] != "Udp:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			switch name {
			case "InDatagrams", "NoPorts", "InErrors":
				v, _ := strconv.Atoi(f[i])
				n += v
			}
		}
	}
	return n, err
}
