package udp_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/steering"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/udp"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/internal/allocs"
)

const (
	mtu       = 1500
	firstPath = 0xC000
)

var loopbacks = map[string]netip.Addr{"IPv4": netip.MustParseAddr("127.0.0.1"), "IPv6": netip.IPv6Loopback()}

// nic is one end: a port for each shard, and the layer that makes and reads their frames.
type nic struct {
	t     testing.TB
	at    netip.AddrPort
	ports []tap.Uplink
	layer *underlay.Socket
	bufs  [][]byte
	got   []tap.Received
}

func freePort(t testing.TB, a netip.Addr) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
	if err != nil {
		t.Skip("this machine has no ", a, ": ", err)
	}
	defer c.Close()
	return netip.AddrPortFrom(a, uint16(c.LocalAddr().(*net.UDPAddr).Port))
}

func open(t testing.TB, a netip.Addr, change func(c *udp.Config)) *nic {
	t.Helper()
	c := udp.Config{Listen: freePort(t, a), MTU: mtu, Shards: 1, Superframes: true}
	if change != nil {
		change(&c)
	}
	c.Steer = steering.Sockets(false, c.Shards)
	n := &nic{t: t, at: c.Listen}
	var err error
	if n.ports, err = udp.Open(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range n.ports {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	if n.layer, err = underlay.NewSocket(c.Listen, c.MTU); err != nil {
		t.Fatal(err)
	}
	for range 16 {
		n.bufs = append(n.bufs, make([]byte, tap.BufferSize(n.ports[0])))
	}
	n.got = make([]tap.Received, len(n.bufs))
	return n
}

// frame returns a frame to a place.
func (n *nic) frame(to netip.AddrPort, path uint16, class uint8, payload []byte) []byte {
	n.t.Helper()
	f := make([]byte, n.layer.Headroom()+len(payload))
	copy(f[n.layer.Headroom():], payload)
	total, ok := n.layer.Output(0, to, path, class, f, len(payload))
	if !ok {
		n.t.Fatal(n.layer.Stats())
	}
	return f[:total]
}

func (n *nic) send(frames ...[]byte) {
	n.t.Helper()
	if taken, err := n.ports[0].Write(frames, false); taken != len(frames) || err != nil {
		n.t.Fatalf("%d of %d frames taken: %v", taken, len(frames), err)
	}
}

// came waits until a port has frames, and returns the datagrams in them.
func (n *nic) came(shard int) (list []underlay.Datagram) {
	n.t.Helper()
	p := n.ports[shard]
	fds := []unix.PollFd{{Fd: int32(p.FD()), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, 1000)
	k, err := p.Read(n.bufs, n.got)
	if err != nil {
		n.t.Fatal(err)
	}
	for i, r := range n.got[:k] {
		d, v := n.layer.Input(0, bytes.Clone(n.bufs[i][:r.Len]))
		if v != underlay.Deliver {
			n.t.Fatalf("%v: %x", v, n.bufs[i][:r.Len])
		}
		all := d.Payload
		for r.Segment > 0 && len(all) > r.Segment {
			d.Payload, all = all[:r.Segment], all[r.Segment:]
			list = append(list, d)
		}
		d.Payload = all
		list = append(list, d)
	}
	return list
}

// payload returns bytes that are the number's own.
func payload(number, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(number*31 + i)
	}
	return b
}

// TestDatagramsArriveAsTheyWereSent: datagrams of any length that fits arrive in order, with their
// marks and hop count, whether they cross the kernel one by one or together.
func TestDatagramsArriveAsTheyWereSent(t *testing.T) {
	for name, a := range loopbacks {
		for _, super := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s superframes %v", name, super), func(t *testing.T) {
				from, to := open(t, a, func(c *udp.Config) { c.Superframes = super }), open(t, a, nil)
				longest := mtu - underlay.HeaderLen(a)
				var frames, want [][]byte
				for i, size := range []int{1, longest, longest, longest, 700, 700, 300, 301, 24, longest} {
					want = append(want, payload(i, size))
					frames = append(frames, from.frame(to.at, firstPath, 0x2a, want[i]))
				}
				from.send(frames...)
				var got []underlay.Datagram
				for end := time.Now().Add(time.Minute); len(got) < len(want) && time.Now().Before(end); {
					got = append(got, to.came(0)...)
				}
				for i := range want {
					if i >= len(got) || !bytes.Equal(got[i].Payload, want[i]) {
						t.Fatalf("datagram %d of %d is not as it was sent", i, len(got))
					}
					if d := got[i]; d.Src != a || d.TTL != 255 || d.ECN != underlay.ECT0 || d.CE {
						t.Errorf("datagram %d: %+v", i, d)
					}
				}
				st, rx := from.ports[0].Stats(), to.ports[0].Stats()
				if st.TxFrames != uint64(len(want)) || rx.RxFrames != st.TxFrames || rx.RxBytes != st.TxBytes || st.TxDropped+rx.RxDropped != 0 {
					t.Errorf("sent %+v, received %+v", st, rx)
				}
				if (st.TxSuperframes > 0) != super || (rx.RxSuperframes > 0) != super {
					t.Errorf("%d superframes sent, %d received", st.TxSuperframes, rx.RxSuperframes)
				}
			})
		}
	}
}

// TestACongestionMarkArrives: the mark that a router makes of ECT(0) is seen.
func TestACongestionMarkArrives(t *testing.T) {
	for name, a := range loopbacks {
		t.Run(name, func(t *testing.T) {
			from, to := open(t, a, nil), open(t, a, nil)
			f := from.frame(to.at, firstPath, underlay.ECT0, payload(1, 100))
			underlay.MarkCE(f)
			from.send(f)
			if got := to.came(0); len(got) != 1 || !got[0].CE {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestEachPathHasASourcePort: datagrams of one path have one source port, of two paths two, so that
// the network can tell them apart. With OnePort all have the listening one.
func TestEachPathHasASourcePort(t *testing.T) {
	for _, one := range []bool{false, true} {
		from, to := open(t, loopbacks["IPv4"], func(c *udp.Config) { c.OnePort = one }), open(t, loopbacks["IPv4"], nil)
		ports := map[int]uint16{}
		for i, path := range []uint16{firstPath, firstPath + 1, firstPath + 0x80, firstPath, firstPath + 1} {
			from.send(from.frame(to.at, path, 0, payload(i, 100)))
			got := to.came(0)
			if len(got) != 1 {
				t.Fatalf("%+v", got)
			}
			if before := ports[int(path)]; before != 0 && before != got[0].SrcPort {
				t.Errorf("path %#x had port %d, now %d", path, before, got[0].SrcPort)
			}
			ports[int(path)] = got[0].SrcPort
		}
		different := map[uint16]bool{}
		for _, p := range ports {
			different[p] = true
		}
		switch {
		case one && (len(different) != 1 || !different[from.at.Port()]):
			t.Errorf("ports %v, want %d alone", ports, from.at.Port())
		case !one && len(different) != len(ports):
			t.Errorf("ports %v", ports)
		}
	}
}

// TestASuperframeIsOfOneFlow: datagrams to two places, of two paths or with two marks arrive where
// they belong, though they are of one length and follow each other.
func TestASuperframeIsOfOneFlow(t *testing.T) {
	for name, a := range loopbacks {
		t.Run(name, func(t *testing.T) {
			from, to := open(t, a, nil), []*nic{open(t, a, nil), open(t, a, nil)}
			var frames [][]byte
			for i := range 24 {
				frames = append(frames, from.frame(to[i/6%2].at, firstPath+uint16(i/3%2), uint8(i/12*4), payload(i, 200)))
			}
			from.send(frames...)
			for k, n := range to {
				var got []underlay.Datagram
				for end := time.Now().Add(time.Minute); len(got) < 12 && time.Now().Before(end); {
					got = append(got, n.came(0)...)
				}
				seen := 0
				for i := range 24 {
					if i/6%2 != k {
						continue
					}
					for _, d := range got {
						if bytes.Equal(d.Payload, payload(i, 200)) {
							seen++
						}
					}
				}
				if seen != 12 || len(got) != 12 {
					t.Errorf("place %d got %d datagrams, %d of its own", k, len(got), seen)
				}
			}
		})
	}
}

// TestFramesWaitForMore: the last run of frames is left while further ones may extend it.
func TestFramesWaitForMore(t *testing.T) {
	from, to := open(t, loopbacks["IPv4"], nil), open(t, loopbacks["IPv4"], nil)
	var frames [][]byte
	for i := range 5 {
		frames = append(frames, from.frame(to.at, firstPath+uint16(i/2), 0, payload(i, 500)))
	}
	if taken, err := from.ports[0].Write(frames, true); taken != 4 || err != nil {
		t.Errorf("%d frames taken, want all but the last: %v", taken, err)
	}
	if taken, err := from.ports[0].Write(frames[4:], true); taken != 0 || err != nil {
		t.Errorf("%d frames taken: %v", taken, err)
	}
	from.send(frames[4])
}

// TestAPlaceHasOneNIC: a second NIC does not listen where another one does, with one shard or
// several; the error says what to do.
func TestAPlaceHasOneNIC(t *testing.T) {
	for _, first := range []int{1, 2} {
		for _, second := range []int{1, 2} {
			n := open(t, loopbacks["IPv4"], func(c *udp.Config) { c.Shards = first })
			_, err := udp.Open(udp.Config{Listen: n.at, MTU: mtu, Shards: second, Steer: steering.Sockets(false, second)})
			if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "ss -lunp") {
				t.Errorf("%d shards beside %d: %v", second, first, err)
			}
		}
	}
	_, err := udp.Open(udp.Config{Listen: netip.MustParseAddrPort("192.0.2.1:2000"), MTU: mtu, Shards: 1})
	if !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "uplink.listen: 192.0.2.1:2000: ") || !strings.Contains(err.Error(), "ip address") {
		t.Error(err)
	}
}

// TestWhatIsTooLongIsDropped: frames that are longer than the interface takes are dropped and
// counted, and those behind them are sent; a datagram longer than the NIC's MTU is not delivered.
func TestWhatIsTooLongIsDropped(t *testing.T) {
	from, to := open(t, loopbacks["IPv4"], func(c *udp.Config) { c.MTU = 9000 }), open(t, loopbacks["IPv4"], nil)
	from.send(from.frame(to.at, firstPath, 0, payload(1, 1472)), from.frame(to.at, firstPath+1, 0, payload(2, 1473)), from.frame(to.at, firstPath, 0, payload(3, 1472)))
	var got []underlay.Datagram
	for end := time.Now().Add(time.Minute); len(got) < 2 && time.Now().Before(end); {
		got = append(got, to.came(0)...)
	}
	if st := to.ports[0].Stats(); len(got) != 2 || st.RxDropped != 1 || !bytes.Equal(got[1].Payload, payload(3, 1472)) {
		t.Errorf("%d datagrams, %+v", len(got), st)
	}
	to.send(make([]byte, 10), make([]byte, mtu+20))
	if st := to.ports[0].Stats(); st.TxDropped != 2 {
		t.Errorf("%+v", st)
	}
}

// TestAFullSocketIsCounted: what does not fit the socket's buffer is counted as such.
func TestAFullSocketIsCounted(t *testing.T) {
	from, to := open(t, loopbacks["IPv4"], nil), open(t, loopbacks["IPv4"], nil)
	if err := unix.SetsockoptInt(to.ports[0].FD(), unix.SOL_SOCKET, unix.SO_RCVBUF, 8192); err != nil {
		t.Fatal(err)
	}
	const sent = 200
	for i := range sent {
		from.send(from.frame(to.at, firstPath, 0, payload(i, 1000)))
	}
	got := 0
	for {
		k := len(to.came(0))
		if k == 0 {
			break
		}
		got += k
	}
	from.send(from.frame(to.at, firstPath, 0, payload(1, 100))) // the kernel tells with the next one
	got += len(to.came(0)) - 1
	if st := to.ports[0].Stats(); st.RxOverflowed == 0 || st.RxOverflowed+uint64(got) != sent {
		t.Errorf("%d of %d came: %+v", got, sent, st)
	}
}

// TestCarryingDoesNotAllocate: neither direction allocates.
func TestCarryingDoesNotAllocate(t *testing.T) {
	from, to := open(t, loopbacks["IPv4"], nil), open(t, loopbacks["IPv4"], nil)
	var frames [][]byte
	for i := range 20 {
		frames = append(frames, from.frame(to.at, firstPath+uint16(i/10), underlay.ECT0, payload(i, 1000)))
	}
	from.send(frames...)
	if n := allocs.PerRun(100, func() {
		from.send(frames...)
		_, _ = to.ports[0].Read(to.bufs, to.got)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAClosedPortFails: a port is closed once, and carries nothing then.
func TestAClosedPortFails(t *testing.T) {
	n := open(t, loopbacks["IPv4"], nil)
	p := n.ports[0]
	n.ports = nil
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	_, read := p.Read(n.bufs, n.got)
	_, write := p.Write([][]byte{make([]byte, 100)}, false)
	if again := p.Close(); !errors.Is(again, net.ErrClosed) || !errors.Is(read, net.ErrClosed) || !errors.Is(write, net.ErrClosed) {
		t.Error(again, read, write)
	}
}

// TestListenAddressAndMTUMustFitTheHost: an address must be the host's, and its interface must carry the MTU.
func TestListenAddressAndMTUMustFitTheHost(t *testing.T) {
	for _, c := range []struct {
		at   string
		mtu  int
		want string
	}{
		{"127.0.0.1", 9000, ""},
		{"0.0.0.0", 9000, ""},
		{"127.0.0.1", 65537, "uplink.mtu: 65537, but lo with 127.0.0.1 has an MTU of 65536: lower uplink.mtu"},
		{"192.0.2.1", 1500, "uplink.listen: 192.0.2.1: cannot assign requested address: it is not an address of this host"},
	} {
		err := udp.Check(netip.MustParseAddr(c.at), c.mtu)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s %d: %v", c.at, c.mtu, err)
		}
	}
}
