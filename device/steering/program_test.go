package steering_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/steering"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/udp"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// outer adds Ethernet, IP and UDP headers to sealed data.
func outer(v6 bool, port uint16, sealed []byte) []byte {
	f := make([]byte, 14, 200)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1})
	udp := make([]byte, 8)
	binary.BigEndian.PutUint16(udp, 0xC000)
	binary.BigEndian.PutUint16(udp[2:], port)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(sealed)))
	ip := make([]byte, 20)
	if v6 {
		f[12], f[13] = 0x86, 0xdd
		ip = make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, 17, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(8+len(sealed)))
	} else {
		f[12] = 8
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(28+len(sealed)))
	}
	f = append(append(append(f, ip...), udp...), sealed...)
	for len(f) < 60 {
		f = append(f, 0)
	}
	return f
}

// falcon returns the clear-text part of a sealed packet with a CID.
func falcon(transport, v6 bool, cid uint32) []byte {
	h := psp.Header{NextHeader: psp.NextHeaderIPv4, CryptOffset: 8, HasVC: true, SPI: 0x77}
	inner := underlay.InnerLen
	switch {
	case transport:
		h, inner = psp.Header{NextHeader: psp.NextHeaderFalcon, CryptOffset: 1, SPI: 0x77}, 0
	case v6:
		h.NextHeader, h.CryptOffset, inner = psp.NextHeaderIPv6, 13, underlay.InnerLen6
	}
	b := append(h.Append(nil), make([]byte, inner)...)
	return append(binary.BigEndian.AppendUint32(b, 1<<28|cid), make([]byte, 40)...)
}

// gateway returns a sealed packet of the gateway class.
func gateway(spi uint32) []byte {
	return append((&psp.Header{NextHeader: psp.NextHeaderIPv4, CryptOffset: 2, HasVC: true, SPI: spi}).Append(nil), make([]byte, 60)...)
}

// TestTheKernelSteersFramesToTheirShard: the kernel puts every kind of frame into the queue of its shard, as this
// program's own reading of the CID says.
func TestTheKernelSteersFramesToTheirShard(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	const shards = 3
	for _, transport := range []bool{false, true} {
		t.Run(fmt.Sprintf("transport %v", transport), func(t *testing.T) {
			netns.Run(t, func() { testKernelSteers(t, transport, shards) })
		})
	}
}

func testKernelSteers(t *testing.T, transport bool, shards int) {
	if err := tap.NewBridge("br0", 1500); err != nil {
		t.Fatal(err)
	}
	from, err := tap.Open(tap.Config{Name: "up1", MTU: 1500, Bridge: "br0"})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := tap.Open(tap.Config{Name: "up2", MTU: 1500, Bridge: "br0", Queues: shards})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := tap.Split(to, shards)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		defer p.Close()
	}
	if err := tap.Steer(parts[0], steering.Program(transport, shards)); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skip(err) // this kernel lets nobody load programs; shards hand frames over
		}
		t.Fatal(err)
	}
	encap := security.Encap(security.Tunnel{})
	if transport {
		encap = security.Transport{}
	}
	type sent struct {
		frame []byte
		queue int
	}
	list := []sent{
		{outer(false, 4791, falcon(transport, false, 2<<20)), 0}, // not PSP
		{outer(true, 53, falcon(transport, false, 2<<20)), 0},
		{append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6}, make([]byte, 46)...), 0}, // ARP
		{outer(false, underlay.SealedPort, nil), 0},                                        // ends before its header
	}
	for shard := range shards {
		for _, outer6 := range []bool{false, true} {
			for _, inner6 := range []bool{false, true} {
				packet := falcon(transport, inner6, uint32(shard)<<20|0x4123)
				if cid, ok := encap.PeekCID(packet); !ok || cid != uint32(shard)<<20|0x4123 {
					t.Fatalf("CID %#x, %v", cid, ok)
				}
				list = append(list, sent{outer(outer6, underlay.SealedPort, packet), shard})
			}
			list = append(list, sent{outer(outer6, underlay.SealedPort, gateway(uint32(shard+30))), (shard + 30) % shards})
		}
	}
	bufs, got := [][]byte{make([]byte, tap.BufferSize(parts[0]))}, make([]tap.Received, 1)
	for i, s := range list {
		if n, err := from.Write([][]byte{s.frame}, false); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		ready := []unix.PollFd{}
		for _, p := range parts {
			ready = append(ready, unix.PollFd{Fd: int32(p.FD()), Events: unix.POLLIN})
		}
		n, err := 0, error(unix.EINTR)
		for err == unix.EINTR {
			n, err = unix.Poll(ready, 60_000)
		}
		if n != 1 || err != nil || ready[s.queue].Revents == 0 {
			t.Fatalf("frame %d is not in queue %d: %v, %v", i, s.queue, ready, err)
		}
		if n, err := parts[s.queue].Read(bufs, got); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
}

// TestProgramIsShort: old kernels accept at most 4096 instructions; jumps go forward and stay
// inside.
func TestProgramIsShort(t *testing.T) {
	for _, transport := range []bool{false, true} {
		code := steering.Program(transport, 16)
		for i, c := range code {
			if class := c & 7; class == 5 && c&0xf0 != 0x90 {
				if to := i + 1 + int(int16(c>>16)); to <= i || to >= len(code) {
					t.Errorf("instruction %d jumps to %d", i, to)
				}
			}
		}
		if len(code) > 100 {
			t.Errorf("%d instructions", len(code))
		}
	}
}

// TestKernelSteersDatagrams: the kernel gives every kind of datagram to the socket of its shard.
func TestKernelSteersDatagrams(t *testing.T) {
	const shards = 3
	for _, transport := range []bool{false, true} {
		free, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := free.LocalAddr().(*net.UDPAddr).AddrPort()
		free.Close()
		ports, err := udp.Open(udp.Config{Listen: at, MTU: 1500, Shards: shards, Steer: steering.Sockets(transport, shards)})
		if err != nil {
			t.Fatal(err)
		}
		from, err := net.Dial("udp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		bufs, got := [][]byte{make([]byte, tap.BufferSize(ports[0]))}, make([]tap.Received, 1)
		send := func(packet []byte, want int) {
			t.Helper()
			if _, err := from.Write(packet); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(ports[want].FD()), Events: unix.POLLIN}}, 10_000); err != nil && err != unix.EINTR {
				t.Fatal(err)
			}
			if n, err := ports[want].Read(bufs, got); n != 1 || err != nil {
				t.Errorf("transport %v: a packet for shard %d is not in its socket: %v", transport, want, err)
			}
		}
		for shard := range shards {
			for _, v6 := range []bool{false, true} {
				send(falcon(transport, v6, uint32(shard)<<20|0x4123), shard)
			}
			send(gateway(uint32(shard+30)), (shard+30)%shards)
		}
		send([]byte{1}, 0) // ends before its header
		for _, p := range ports {
			p.Close()
		}
		from.Close()
	}
}
