package gateway

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

// handedOver passes frames from one gateway to another, as shards do.
type handedOver struct {
	frames []handed
	full   bool
}

type handed struct {
	shard    uint8
	function uint32 // 0: a packet to a group
	frame    []byte
	off      Offload
}

func (r *handedOver) ToPort(shard uint8, _, function uint32, frame []byte, off Offload) bool {
	if !r.full {
		r.frames = append(r.frames, handed{shard, function, bytes.Clone(frame), off})
	}
	return !r.full
}

func (r *handedOver) ToGroup(shard uint8, _, _ uint32, frame []byte) bool {
	return r.ToPort(shard, 0, 0, frame, Offload{})
}

// twoShards returns the network of newNet with port b on another shard.
func twoShards(t *testing.T) (n *net, other *net, r *handedOver) {
	n, r = newNet(t), &handedOver{}
	n.g.Handover = r
	c := n.b.EndpointConfig
	n.g.RemoveEndpoint(n.b)
	other = &net{t: t, g: New(1, n.g.routes)}
	other.b = other.g.AddEndpoint("b", 2, gwB)
	configure(other.g, other.b, c, true)
	return n, other, r
}

// pass delivers the handed-over frames to the other shard.
func (r *handedOver) pass(t *testing.T, to *net) {
	t.Helper()
	for _, f := range r.frames {
		if f.shard != to.g.shard {
			t.Errorf("a frame for shard %d", f.shard)
		}
		if f.function == 0 {
			to.g.GroupFromShard(1, 7, f.frame)
			continue
		}
		to.g.FromShard(f.function, f.frame, f.off)
	}
	r.frames = nil
}

// TestPortOfAnotherShard: two ports of one NIC reach each other on any shards. Frames that stand
// for several packets stay whole, and the gateway answers for addresses of both shards.
func TestPortOfAnotherShard(t *testing.T) {
	n, other, r := twoShards(t)
	f := udp(t, gwA, macA, ipA, ipB, 300)
	if p := n.send(bytes.Clone(f), Offload{}); p != nil || len(r.frames) != 1 {
		t.Fatalf("%d packets for a tunnel, %d for the other shard", len(p), len(r.frames))
	}
	r.pass(t, other)
	out := other.output()
	if len(out) != 1 || out[0].port != other.b || !bytes.Equal(out[0].b[ethLen:], f[ethLen:]) {
		t.Fatalf("%+v, %v", out, other.g.Stats().Reasons)
	}
	if got := out[0].b; MAC(got[:6]) != macB || MAC(got[6:12]) != gwB {
		t.Errorf("from %x to %x", got[6:12], got[:6])
	}
	whole := udp(t, gwA, macA, ipA, ipB, 8000)
	off := Offload{GSO: GSOUDP, NeedsCsum: true, Size: 1000, CsumStart: ethLen + ipv4Len, CsumOffset: udpCheckAt}
	n.send(whole, off)
	r.pass(t, other)
	if out = other.output(); len(out) != 1 || out[0].off != off || len(out[0].b) != len(whole) {
		t.Errorf("a frame that stands for many: %+v, %v", out, n.g.Stats().Reasons)
	}
	n.send(arpFrame(macA, ipA, ipB), Offload{})
	if out = n.output(); len(out) != 1 {
		t.Error("no answer for an address of another shard")
	}
	if s := n.g.Stats(); s.HandedOver != 2 || s.Local != 2 {
		t.Errorf("%d handed over, %d local", s.HandedOver, s.Local)
	}
}

// TestTunnelToAnotherShard: packets from a tunnel whose replay window is in this shard, for a port
// of another shard, are joined in the other shard.
func TestTunnelToAnotherShard(t *testing.T) {
	n, other, r := twoShards(t)
	for i := range 4 {
		u := &layers.UDP{SrcPort: 1, DstPort: 2}
		ip := ip4(ipC, ipB, layers.IPProtocolUDP)
		ip.Id = uint16(i)
		_ = u.SetNetworkLayerForChecksum(ip)
		n.g.FromTunnel(n.g.Tunnels.To(2, 7), frame(t, eth(MAC{}, MAC{}, 0), ip, u, gopacket.Payload(make([]byte, 500))), 0)
	}
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, macA, gwA, v6C, v6B, 300), ecnCE) // marked, and it cannot say so
	if len(r.frames) != 4 || n.g.Stats().Reasons[DropECN] != 1 {
		t.Fatalf("%d frames for the other shard, %v", len(r.frames), n.g.Stats().Reasons)
	}
	r.pass(t, other)
	out := other.output()
	if len(out) != 1 || out[0].off.GSO != GSOUDP || other.g.Stats().Coalesced != 3 {
		t.Fatalf("%+v, %v", out, other.g.Stats().Reasons)
	}
	if len(n.output()) != 0 {
		t.Error("something is for a port here")
	}
}

// TestAFrameTheOtherShardRefusesIsCounted: a frame is counted if the other shard does not take it, or no longer has its
// port.
func TestAFrameTheOtherShardRefusesIsCounted(t *testing.T) {
	n, other, r := twoShards(t)
	count := func(g *Gateway, why Reason) {
		t.Helper()
		if c := g.Stats().Reasons[why]; c != 1 {
			t.Errorf("%v: %d", why, c)
		}
	}
	f := udp(t, gwA, macA, ipA, ipB, 300)
	r.full = true
	n.send(bytes.Clone(f), Offload{})
	count(n.g, DropShardFull)
	r.full = false
	n.send(bytes.Clone(f), Offload{})
	n.send(bytes.Clone(f), Offload{})
	configure(other.g, other.b, other.b.EndpointConfig, false)
	late := r.frames[1:]
	r.frames = r.frames[:1]
	r.pass(t, other)
	count(other.g, DropPortDown)
	other.g.RemoveEndpoint(other.b)
	r.frames = late
	r.pass(t, other)
	count(other.g, DropNoPort)
	n.g.Handover = nil
	configure(other.g, other.b, other.b.EndpointConfig, true)
	n.send(bytes.Clone(f), Offload{})
	count(n.g, DropNoPort)
	if len(n.output())+len(other.output()) != 0 {
		t.Error("a frame came through")
	}
	other.g.FromShard(9, []byte{1, 2, 3}, Offload{})
	if c := other.g.Stats().Reasons[DropNoPort]; c != 2 {
		t.Errorf("a frame for nobody: %d", c)
	}
}

func FuzzFromShard(f *testing.F) {
	f.Add(udp(f, gwA, macA, ipA, ipB, 100))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := newNet(t)
		n.g.Panicked = func(v any, _ []byte) { t.Fatal(v) }
		if len(b) < ethLen {
			return // no gateway hands that over
		}
		n.g.FromShard(2, b, Offload{})
		n.output()
	})
}

// TestGuestWithoutOffloads: a guest without checksum and segmentation offload gets whole packets. A
// frame that was joined for a guest with offload is lost if such a guest has replaced it.
func TestGuestWithoutOffloads(t *testing.T) {
	n, device := newNet(t), &taking{plain: true}
	n.b.Device = device
	f := udp(t, gwA, macA, ipA, ipB, 100)
	want := bytes.Clone(f[ethLen:])
	h, _ := parseIP(want)
	binary.BigEndian.PutUint16(f[ethLen+h.l4+udpCheckAt:], checksum.Fold(h.pseudo(want, h.total-h.l4)))
	n.send(f, Offload{NeedsCsum: true, CsumStart: ethLen + ipv4Len, CsumOffset: udpCheckAt})
	n.g.Deliver(func(*PortFrame) {})
	if len(device.frames) != 1 || !bytes.Equal(device.frames[0][ethLen:], want) {
		t.Errorf("%d packets: %x\nwant %x", len(device.frames), device.frames, want)
	}

	n, device = receiver(t), &taking{}
	n.a.Device = device
	for i := range 2 {
		n.feed(segment(false, protoTCP, uint32(100*i), 100, nil))
	}
	device.plain = true // another guest
	n.g.Deliver(func(*PortFrame) { t.Error("taken") })
	if len(device.frames) != 0 || n.a.Drops[DropPortFull] != 1 {
		t.Errorf("%d packets, %d dropped", len(device.frames), n.a.Drops[DropPortFull])
	}
}

// taking is a port's device. gathering also accepts frames whose end is elsewhere (Gatherer).
type taking struct {
	Device
	plain  bool // it takes nothing that is left to do
	frames [][]byte
}

type gathering struct {
	taking
	with []Rest
}

func (p *taking) Takes(off Offload) bool { return !p.plain || off.plain() }

func (p *taking) Write(parts [][]byte, _ Offload) bool {
	p.frames = append(p.frames, bytes.Join(parts, nil))
	return true
}

func (p *gathering) WriteWith(head []byte, rest Rest, _ Offload) bool {
	p.frames, p.with = append(p.frames, bytes.Clone(head)), append(p.with, rest)
	return true
}

// If a device does not accept a frame whose end is elsewhere, or its guest needs frames to be cut,
// the end is copied first.
func TestRestIsCopiedForDevicesThatCannotGather(t *testing.T) {
	f, off := whole(t, ipA, ipB, layers.IPProtocolTCP, 0, 4000, 1000, 0)
	for _, lost := range []bool{false, true} {
		gather, copying := &gathering{}, &taking{}
		gatherPlain, copyingPlain := &gathering{taking: taking{plain: true}}, &taking{plain: true}
		for _, device := range []Device{gather, copying, gatherPlain, copyingPlain} {
			n := newNet(t)
			n.b.Device = device
			in, l := inTwo(n.a, f, 256, off)
			l.lost = lost
			n.put(in)
			took := 0
			n.g.Deliver(func(*PortFrame) { took++ })
			st := n.g.Stats()
			if refused := lost && device != Device(gather); (took == 0) != refused || (n.b.Drops[DropPortFull] == 1) != refused {
				t.Errorf("%T: %d taken, %d refused, lost %v", device, took, n.b.Drops[DropPortFull], lost)
			}
			if device == Device(gather) && (l.fetched || st.ToPortBytes != uint64(len(f))) {
				t.Errorf("fetched %v, %d bytes", l.fetched, st.ToPortBytes)
			}
		}
		if len(gather.with) != 1 || len(gather.frames[0]) != 256 {
			t.Error("the end of a frame was not given where it is")
		}
		if lost {
			continue
		}
		if len(copying.frames) != 1 || !bytes.Equal(copying.frames[0][ethLen:], f[ethLen:]) {
			t.Error("the whole frame differs")
		}
		for _, p := range [][][]byte{gatherPlain.frames, copyingPlain.frames} {
			if len(p) != 4 {
				t.Fatalf("cut to %d packets", len(p))
			}
			for _, b := range p {
				if h, why := parseIP(b[ethLen:]); why != none || !h.l4Valid(b[ethLen:]) {
					t.Errorf("%v: %x", why, b)
				}
			}
		}
	}
}

// TestFramesAndBytesAreCounted: frames from port to port, to the tunnel and from it are counted,
// with their bytes.
func TestFramesAndBytesAreCounted(t *testing.T) {
	n := newNet(t)
	const headers, ip = 42, 28
	n.send(udp(t, gwA, macA, ipA, ipB, 100), Offload{})
	n.wrote()
	if packets := n.send(udp(t, gwA, macA, ipA, ipC, 200), Offload{}); len(packets) != 1 {
		t.Fatalf("%d packets to the peer", len(packets))
	}
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, macA, gwA, ipC, ipA, 300), 0)
	n.wrote()
	n.send(udp(t, gwA, macB, ipA, ipC, 1), Offload{}) // another's MAC
	st := n.g.Stats()
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"frames of ports", st.FromPorts, 3},
		{"their bytes", st.FromPortBytes, headers*3 + 100 + 200 + 1},
		{"frames for ports", st.ToPorts, 2},
		{"their bytes", st.ToPortBytes, headers*2 + 100 + 300},
		{"frames from port to port", st.Local, 1},
		{"packets from the tunnel", st.TunnelIn, 1},
		{"their bytes", st.TunnelInBytes, ip + 300},
		{"frames of another's MAC", st.Reasons[DropSourceMAC], 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
}

// wrote is a device that takes all waiting frames.
func (n *net) wrote() {
	for _, f := range n.g.Output() {
		n.g.out.wrote(&f)
	}
	n.g.Done()
}
