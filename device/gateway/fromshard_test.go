package gateway

import (
	"bytes"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
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

// TestHandoverDrops: a frame is counted if the other shard does not take it, or no longer has its
// port.
func TestHandoverDrops(t *testing.T) {
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
