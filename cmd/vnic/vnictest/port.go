package vnictest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// PortConfig writes the configuration of a NIC whose VFs have ports of type vhost-user, with
// sockets in dir.
func PortConfig(t testing.TB, dir string, host, vfs, queues int, more string) (path string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `
nic: {host: %[1]d, name: host%[1]d}
control: %[2]s/ctl%[1]d
uplink: {backend: memory, name: up%[1]d, mtu: 4500, address: 10.99.0.%[1]d/24}
rdma: {mtu: 1024}
%[3]s
functions:
  - pf: 0
    vf_count: %[4]d
    vfs:
`, host, dir, more, vfs)
	for vf := 1; vf <= vfs; vf++ {
		fmt.Fprintf(&b, "      - {vf: %d, tenant: 100, address: 192.168.%d.1%d, port: {type: vhost-user, socket: %s, queues: %d, mtu: 1500}}\n",
			vf, 100, 10*(host-1)+vf, PortSocket(dir, host, vf), queues)
	}
	path = filepath.Join(dir, fmt.Sprintf("host%d.yaml", host))
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func PortSocket(dir string, host, vf int) string {
	return filepath.Join(dir, fmt.Sprintf("port%d.%d", host, vf))
}

// PortGuest is a guest on a port of type vhost-user. The test itself makes and reads its packets.
type PortGuest struct {
	T     testing.TB
	Guest *vhosttest.NetGuest
	MAC   [6]byte
	IP    netip.Addr
	gw    [6]byte // the gateway's MAC
}

func NewPortGuest(t testing.TB, dir string, host, vf int, o vhosttest.NetOptions) *PortGuest {
	t.Helper()
	var s *PortGuest
	Eventually(t, "the port's socket", func() error {
		g, err := vhosttest.ConnectNet(PortSocket(dir, host, vf), o)
		if err != nil {
			return err
		}
		s = &PortGuest{T: t, Guest: g, IP: netip.MustParseAddr(fmt.Sprintf("192.168.100.1%d", 10*(host-1)+vf))}
		return nil
	})
	t.Cleanup(func() { _ = s.Guest.Kill() })
	s.MAC = MACOf(host, vf)
	return s
}

// Ask asks for the MAC address of a neighbour by ARP. The answer is the gateway's.
func (s *PortGuest) Ask(other netip.Addr) {
	s.T.Helper()
	f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, s.MAC[:]...)
	f = append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(append(f, s.MAC[:]...), s.IP.AsSlice()...)
	f = append(append(f, 0, 0, 0, 0, 0, 0), other.AsSlice()...)
	Eventually(s.T, "an answer to ARP", func() error {
		s.Guest.Transmit(0, vhosttest.Header{}, f)
		for range 100 {
			if _, r := s.Receive(10 * time.Millisecond); len(r) >= 42 && r[12] == 8 && r[13] == 6 && r[21] == 2 {
				s.gw = [6]byte(r[22:])
				return nil
			}
		}
		return fmt.Errorf("none for %v", other)
	})
}

// Receive returns the next frame, or nil if none comes in time.
func (s *PortGuest) Receive(limit time.Duration) (vhosttest.Header, []byte) {
	s.T.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Microsecond) {
		h, f, err := s.Guest.Receive(0)
		if err != nil {
			s.T.Fatal(err)
		}
		if f != nil || time.Now().After(end) {
			return h, f
		}
	}
}

// receiveIP returns the next frame that is not ARP's: Ask may have asked twice.
func (s *PortGuest) receiveIP() []byte {
	s.T.Helper()
	for {
		if _, f := s.Receive(20 * time.Second); len(f) < 14 || f[12] != 8 || f[13] != 6 {
			return f
		}
	}
}

// UDP returns a frame with a datagram for another guest.
func (s *PortGuest) UDP(to netip.Addr, payload []byte) []byte {
	f := append(s.gw[:6:6], s.MAC[:]...)
	f = append(f, 8, 0, 0x45, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(28+len(payload)))
	f = append(f, 0, 0, 0x40, 0, 64, 17, 0, 0)
	f = append(append(f, s.IP.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(f[24:], ^OnesSum(f[14:34]))
	f = append(f, 0x10, 0, 0x20, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(8+len(payload)))
	return append(append(f, 0, 0), payload...)
}

func OnesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// Exchange sends datagrams to another guest and compares what arrives.
func (s *PortGuest) Exchange(to *PortGuest, frames int) {
	s.T.Helper()
	for i := range frames {
		payload := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 1+i%700)
		if !s.Guest.Transmit(0, vhosttest.Header{}, s.UDP(to.IP, payload)) {
			s.T.Fatal("no room")
		}
		got := to.receiveIP()
		if len(got) < 42 || !bytes.Equal(got[42:], payload) || [6]byte(got) != to.MAC || [6]byte(got[6:]) != to.gw {
			s.T.Fatalf("frame %d: got %x", i, got[:min(len(got), 60)])
		}
	}
}

func MACOf(host, vf int) [6]byte {
	return [6]byte(config.FunctionMAC(strconv.Itoa(host), 0, uint16(vf)))
}
