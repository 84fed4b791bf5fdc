package device

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/guestlib"
)

// onSockets is a world whose NICs have uplinks over UDP, both at one address of this host.
func onSockets(t testing.TB, v6 bool, change func(i int, c *config.Config)) *world {
	t.Helper()
	var at [2]netip.AddrPort
	for i := range at {
		c, err := net.ListenPacket("udp", map[bool]string{false: "127.0.0.1:0", true: "[::1]:0"}[v6])
		if err != nil {
			t.Skip("this machine has no such address: ", err)
		}
		defer c.Close() // until both are known
		at[i] = c.LocalAddr().(*net.UDPAddr).AddrPort()
		c.Close()
	}
	none := func(string) (tap.Uplink, error) { return nil, nil }
	return newWorldWith(t, none, func(i int, c *config.Config) {
		c.Uplink = config.Uplink{
			Type: config.UplinkUDP, Listen: at[i], MTU: c.Uplink.MTU, Speed: c.Uplink.Speed, Superframes: config.SuperframesAuto, ProbeMTU: config.ProbeMTUOff, Impair: c.Uplink.Impair,
		}
		c.Peers[0].Underlay.AddrPort = at[1-i]
		change(i, c)
	})
}

// swap writes and reads 64 KiB each way, and checks every byte.
func swap(t testing.TB, x, y *endpoint) {
	t.Helper()
	const size = 65536
	for round, op := range []guestlib.Opcode{guestlib.Write, guestlib.Read} {
		for i := range size {
			x.mr.Bytes()[i], y.mr.Bytes()[i] = byte(i*2654435761>>13), byte(i*40503>>7+round)
		}
		want := bytes.Clone(map[guestlib.Opcode]*endpoint{guestlib.Write: x, guestlib.Read: y}[op].mr.Bytes()[:size])
		x.do(t, guestlib.SendWR{Opcode: op, SGL: []guestlib.SGE{x.mr.SGE(0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
		if !bytes.Equal(x.mr.Bytes()[:size], want) || !bytes.Equal(y.mr.Bytes()[:size], want) {
			t.Errorf("%v of %d bytes: other bytes arrived", op, size)
		}
	}
}

// TestRDMACrossesUDP: WRITE and READ cross uplinks over UDP, over both IP versions, with one shard
// and with two, where the kernel gives nearly all packets to the right one.
func TestRDMACrossesUDP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{1, 2} {
			t.Run(fmt.Sprintf("IPv6 %v shards %d", v6, n), func(t *testing.T) {
				useShards(t, n)
				w := onSockets(t, v6, func(int, *config.Config) {})
				for _, function := range []string{"pf0.vf1", "pf0.vf2"} {
					x, y := newEndpoint(t, w.open(0, function)), newEndpoint(t, w.open(1, function))
					connect(t, x, y, 1)
					swap(t, x, y)
					swap(t, y, x)
				}
				for i := range w.nics {
					c, err := w.nics[i].Counters(t.Context())
					must(t, err)
					if c["uplink.tx_superframes"] == 0 || c["uplink.rx_superframes"] == 0 || c["uplink.rx_frames"] == 0 {
						t.Errorf("host %d: %d and %d superframes", i+1, c["uplink.tx_superframes"], c["uplink.rx_superframes"])
					}
					if c["shard.steered"]*20 > c["uplink.rx_frames"] {
						t.Errorf("host %d: %d of %d frames came to another shard than theirs", i+1, c["shard.steered"], c["uplink.rx_frames"])
					}
				}
			})
		}
	}
}

// TestAnImpairedUplinkByUDP: loss, reordering and marks are made as on a TAP, and marks arrive.
func TestAnImpairedUplinkByUDP(t *testing.T) {
	w := onSockets(t, false, func(int, *config.Config) {})
	x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, x, y, 1)
	_, err := w.nics[0].InjectLink(t.Context(), control.LinkChange{Set: []byte(`{"loss": 0.05, "reorder": 0.05, "mark": 0.5}`)})
	must(t, err)
	for range 5 {
		swap(t, x, y)
	}
	c, err := w.nics[0].Counters(t.Context())
	must(t, err)
	if c["impair.tx_lost"] == 0 || c["impair.rx_lost"] == 0 || c["impair.tx_marked"] == 0 {
		t.Errorf("%d and %d lost, %d marked", c["impair.tx_lost"], c["impair.rx_lost"], c["impair.tx_marked"])
	}
	if n := w.counter(1, "falcon.ecn_marked"); n == 0 {
		t.Error("no mark arrived")
	}
}

// TestACaptureOfUDPHasOuterHeaders: a capture of the uplink shows each packet with the headers that
// it had on the network: addresses, the port that receives, hop count and marks.
func TestACaptureOfUDPHasOuterHeaders(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %v", v6), func(t *testing.T) {
			w := onSockets(t, v6, func(int, *config.Config) {})
			x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
			connect(t, x, y, 1)
			var file bytes.Buffer
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.nics[0].Capture(ctx, config.CaptureSealed, nil, &file) }()
			seen := map[bool]int{} // by whether the packet came
			w.until("packets are captured", func() bool {
				swap(t, x, y)
				return w.counter(0, "uplink.rx_frames") > 200
			})
			end()
			must(t, <-ended)
			r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
			must(t, err)
			for {
				b, _, err := r.ReadPacketData()
				if err != nil {
					break
				}
				own, peer := w.nics[0].cfg.Uplink.Listen, w.nics[1].cfg.Uplink.Listen
				packet := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.NoCopy)
				ip, outer := packet.NetworkLayer(), packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
				src, dst := ip.NetworkFlow().Endpoints()
				if src.String() != own.Addr().String() || dst.String() != own.Addr().String() {
					t.Fatalf("%s to %s", src, dst)
				}
				came := outer.DstPort == layers.UDPPort(own.Port())
				if !came && outer.DstPort != layers.UDPPort(peer.Port()) {
					t.Fatalf("to port %d", outer.DstPort)
				}
				ttl, ecn := uint8(0), uint8(0)
				switch ip := ip.(type) {
				case *layers.IPv4:
					ttl, ecn = ip.TTL, ip.TOS&3
				case *layers.IPv6:
					ttl, ecn = ip.HopLimit, ip.TrafficClass&3
				}
				if ttl != 255 || ecn != underlay.ECT0 {
					t.Fatalf("hop count from %d, ECN %d", ttl, ecn)
				}
				seen[came]++
			}
			if seen[false] == 0 || seen[true] == 0 {
				t.Errorf("%v packets", seen)
			}
		})
	}
}

// TestStrangersSendToTheSocket: floods of noise, of packets cut short and of copies of real ones,
// from anybody, are dropped and counted. Connections go on beside them, and no peer moves.
func TestStrangersSendToTheSocket(t *testing.T) {
	w := onSockets(t, false, func(int, *config.Config) {})
	x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, x, y, 1)
	var file bytes.Buffer
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.nics[1].Capture(ctx, config.CaptureSealed, nil, &file) }()
	w.until("packets are captured", func() bool {
		swap(t, x, y)
		return w.counter(1, "uplink.rx_frames") > 200
	})
	end()
	must(t, <-ended)
	sent := payloads(t, &file)

	stranger, err := net.Dial("udp", w.nics[1].cfg.Uplink.Listen.String())
	must(t, err)
	defer stranger.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	halt := sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
	defer halt()
	go func() {
		defer close(stopped)
		noise := rand.New(rand.NewPCG(1, 2))
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b := bytes.Clone(sent[i%len(sent)])
			switch i % 4 {
			case 0: // a copy
			case 1:
				b = b[:noise.IntN(len(b))]
			case 2:
				b[noise.IntN(len(b))] ^= 1 << noise.IntN(8)
			case 3:
				for j := range b {
					b[j] = byte(noise.Uint32())
				}
			}
			_, _ = stranger.Write(b)
		}
	}()
	for range 20 {
		swap(t, x, y)
	}
	for _, name := range []string{"drop.falcon", "drop.psp_malformed", "drop.psp_auth", "drop.psp_spi"} {
		w.until(name+" counts", func() bool {
			swap(t, x, y)
			return w.counter(1, name) > 0
		})
	}
	halt()
	if n := w.counter(1, "drop.panic"); n != 0 {
		t.Errorf("%d packets made the parser panic", n)
	}
}

// payloads returns the payloads of UDP in a capture.
func payloads(t *testing.T, file *bytes.Buffer) (list [][]byte) {
	t.Helper()
	r, err := pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions)
	must(t, err)
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return list
		}
		if u, ok := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.NoCopy).Layer(layers.LayerTypeUDP).(*layers.UDP); ok && len(u.Payload) > 0 {
			list = append(list, u.Payload)
		}
	}
}

// nat is a NAT for UDP: what the NIC inside sends to it leaves for the NIC outside from a socket of
// its own, and what comes back there goes to the NIC inside.
type nat struct {
	t       *testing.T
	inside  *net.UDPConn // the NIC inside sees the other one here
	outside atomic.Pointer[net.UDPConn]
	to      [2]*net.UDPAddr
}

func newNAT(t *testing.T) *nat {
	n := &nat{t: t}
	var err error
	n.inside, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() {
		n.inside.Close()
		n.outside.Load().Close()
	})
	n.rebind()
	return n
}

// serve passes packets on between NICs at these places.
func (n *nat) serve(inside, outside netip.AddrPort) {
	n.to = [2]*net.UDPAddr{net.UDPAddrFromAddrPort(inside), net.UDPAddrFromAddrPort(outside)}
	go func() {
		b := make([]byte, 1<<16)
		for {
			k, err := n.inside.Read(b)
			if err != nil {
				return
			}
			_, _ = n.outside.Load().WriteTo(b[:k], n.to[1])
		}
	}()
}

// rebind gives the NIC inside another port outside, and returns the one before.
func (n *nat) rebind() (before *net.UDPConn) {
	out, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(n.t, err)
	before = n.outside.Swap(out)
	go func() {
		b := make([]byte, 1<<16)
		for {
			k, err := out.Read(b)
			if err != nil || n.outside.Load() != out {
				return // the mapping is gone
			}
			_, _ = n.inside.WriteTo(b[:k], n.to[0])
		}
	}()
	return before
}

func (n *nat) mapping() string { return n.outside.Load().LocalAddr().String() }

// TestAPeerBehindNATIsFollowed: a NIC that has no place in its peer's configuration is found by its
// signs of life, and again when NAT gives it another port. A copy of one of its packets that comes
// from elsewhere moves nobody.
func TestAPeerBehindNATIsFollowed(t *testing.T) {
	n := newNAT(t)
	w := onSockets(t, false, func(i int, c *config.Config) {
		c.Uplink.Superframes = config.SuperframesOff // each packet passes the NAT alone
		if i == 0 {
			c.Uplink.Keepalive = time.Second
			n.serve(c.Uplink.Listen, c.Peers[0].Underlay.AddrPort)
			c.Peers[0].Underlay.AddrPort = n.inside.LocalAddr().(*net.UDPAddr).AddrPort()
		} else {
			c.Peers[0].Underlay.AddrPort = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
		}
	})
	isAt := func(what, at string) {
		t.Helper()
		w.until(what, func() bool {
			v, err := w.nics[1].NIC(t.Context())
			must(t, err)
			return v.Peers[0].Underlay == at
		})
	}
	isAt("the peer shows up", n.mapping())
	x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, x, y, 1)
	swap(t, x, y)

	var file bytes.Buffer
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.nics[1].Capture(ctx, config.CaptureSealed, nil, &file) }()
	before := w.counter(1, "uplink.rx_frames")
	w.until("packets are captured", func() bool {
		swap(t, x, y)
		return w.counter(1, "uplink.rx_frames") > before+200
	})
	end()
	must(t, <-ended)

	old := n.rebind()
	swap(t, x, y)
	isAt("the peer is followed", n.mapping())
	swap(t, y, x)
	for _, b := range payloads(t, &file) {
		_, _ = old.WriteTo(b, n.to[1])
	}
	old.Close()
	swap(t, x, y)
	isAt("the peer stays", n.mapping())
}

// TestAHostThatMovesIsFollowed: a NIC keeps its connections when it sends from another address with
// the same port. Packets from other ports of its address are another path, and move nobody.
func TestAHostThatMovesIsFollowed(t *testing.T) {
	var elsewhere netip.AddrPort
	w := onSockets(t, false, func(i int, c *config.Config) {
		if i == 0 { // it is at 127.0.0.1, its peer looks for it elsewhere
			elsewhere = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.77"), c.Uplink.Listen.Port())
		} else {
			c.Peers[0].Underlay.AddrPort = elsewhere
		}
	})
	x, y := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
	connect(t, x, y, 1)
	swap(t, x, y)
	v, err := w.nics[1].NIC(t.Context())
	must(t, err)
	if want := w.nics[0].cfg.Uplink.Listen.String(); v.Peers[0].Underlay != want {
		t.Errorf("the peer is at %s, want %s", v.Peers[0].Underlay, want)
	}
}
