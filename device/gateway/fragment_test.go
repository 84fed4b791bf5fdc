package gateway

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/ip4defrag"
	"github.com/gopacket/gopacket/layers"
)

// mayFragment allows fragmentation of a frame's packet, and gives it an identification of its own.
func mayFragment(f []byte, id uint16) []byte {
	b := f[ethLen:]
	binary.BigEndian.PutUint16(b[4:], id)
	b[6] &^= 0x40
	finishIPv4(b, int(b[0]&0xf)*4)
	return f
}

// together reassembles fragments with an independent implementation and returns the datagrams.
func together(t *testing.T, most int, packets ...[]byte) (whole []*layers.IPv4) {
	t.Helper()
	d := ip4defrag.NewIPv4Defragmenter()
	for _, b := range packets {
		if len(b) > most {
			t.Fatalf("a packet of %d bytes for a way of %d", len(b), most)
		}
		if hlen := int(b[0]&0xf) * 4; sum(b[:hlen]) != 0xffff {
			t.Fatalf("header checksum: %x", b[:hlen])
		}
		ip := gopacket.NewPacket(bytes.Clone(b), layers.LayerTypeIPv4, gopacket.NoCopy).NetworkLayer().(*layers.IPv4)
		out, err := d.DefragIPv4(ip)
		if err != nil {
			t.Fatalf("%v: %x", err, b[:20])
		}
		if out != nil {
			whole = append(whole, out)
		}
	}
	return whole
}

// TestFragmentsMakeTheWhole: an IPv4 packet that may be fragmented and is longer than the path's
// MTU arrives in fragments that fit and that reassemble to the packet: at a peer, at a port of this
// shard or another, and at a port from a peer. A packet that may not be fragmented is dropped, and
// its sender gets an error.
func TestFragmentsMakeTheWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range uint16(300) {
		most := 576 + rng.IntN(tunnelMTU-576)
		size := most + rng.IntN(8000)
		n, other, r := twoShards(t)
		n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, most}})
		c := other.b.EndpointConfig
		c.MTU = most
		configure(other.g, other.b, c, true)
		near := n.g.AddEndpoint("near", 3, gwB)
		configure(n.g, near, EndpointConfig{Tenant: 7, MAC: macB, Addresses: addrs("10.0.0.4"), MTU: most}, true)

		check := func(way string, sent []byte, packets [][]byte) {
			t.Helper()
			whole := together(t, most, packets...)
			if len(whole) != 1 || !bytes.Equal(whole[0].Payload, sent[ethLen+20:]) || whole[0].Id != i || len(packets) < 2 {
				t.Fatalf("%s: %d packets make %d", way, len(packets), len(whole))
			}
		}
		frames := func(list []got) (packets [][]byte) {
			t.Helper()
			for _, o := range list {
				if MAC(o.b[:6]) != macB || binary.BigEndian.Uint16(o.b[12:]) != typeIPv4 {
					t.Fatalf("Ethernet header %x", o.b[:14])
				}
				packets = append(packets, o.b[ethLen:])
			}
			return packets
		}
		f := mayFragment(udp(t, gwA, macA, ipA, ipC, size), i)
		check("a peer", f, n.send(bytes.Clone(f), Offload{}))
		f = mayFragment(udp(t, gwA, macA, ipA, addr("10.0.0.4"), size), i)
		n.send(bytes.Clone(f), Offload{})
		check("a port here", f, frames(n.output()))
		f = mayFragment(udp(t, gwA, macA, ipA, ipB, size), i)
		n.send(bytes.Clone(f), Offload{})
		r.pass(t, other)
		check("a port of another shard", f, frames(other.output()))
		f = mayFragment(udp(t, gwA, macA, ipC, addr("10.0.0.4"), size), i)
		n.g.FromTunnel(n.g.Tunnels.To(2, 7), bytes.Clone(f), 0)
		check("from a peer", f, frames(n.output()))
		if got := n.g.Stats().Reasons[CountFragmented]; got != 4 {
			t.Fatalf("%d counted", got)
		}

		if p := n.send(udp(t, gwA, macA, ipA, ipC, size), Offload{}); p != nil || n.g.Stats().Reasons[DropTooBig] != 1 || len(n.output()) != 1 {
			t.Fatalf("a packet that may not be fragmented: %d packets, %d refused", len(p), n.g.Stats().Reasons[DropTooBig])
		}
		n.g.FromTunnel(n.g.Tunnels.To(2, 7), udp(t, gwA, macA, ipC, addr("10.0.0.4"), size), 0)
		if n.g.Stats().Reasons[DropPortTooBig] != 1 || len(n.output()) != 0 {
			t.Fatal("and from a peer")
		}
	}
}

// TestDatagramsThatStandForOneFrame: if a frame stands for several datagrams, each datagram that is
// too long for the path is fragmented and keeps its length.
func TestDatagramsThatStandForOneFrame(t *testing.T) {
	n := newNet(t)
	const payload, size = 10_000, 3000
	f, off := whole(t, ipA, ipC, layers.IPProtocolUDP, 0, payload, size, 0)
	sent := bytes.Clone(f[ethLen+28:])
	got := together(t, tunnelMTU, n.send(mayFragment(f, 77), off)...)
	for i, d := range got {
		body := sent[i*size : min((i+1)*size, payload)]
		b := append(make([]byte, ipv4Len), d.Payload...)
		putIPv4(b, protoUDP, ipA, ipC, len(b))
		h, _ := parseIP(b)
		if !bytes.Equal(d.Payload[8:], body) || d.Id != 77+uint16(i) || !h.l4Valid(b) {
			t.Errorf("datagram %d: identification %d, %d bytes", i, d.Id, len(d.Payload))
		}
	}
	if len(got) != 4 {
		t.Errorf("%d datagrams", len(got))
	}
}

// TestFragmentsOfFragments: a fragment that is fragmented again keeps its offset in the whole.
// Options are copied to all fragments or only to the first, according to their copied flag (RFC 791
// §3.1).
func TestFragmentsOfFragments(t *testing.T) {
	n := newNet(t)
	n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, 600}})
	ip := ip4(ipA, ipC, layers.IPProtocolUDP)
	ip.Flags, ip.Id, ip.FragOffset = layers.IPv4MoreFragments, 9, 100
	ip.Options = []layers.IPv4Option{
		{OptionType: 1}, {OptionType: 7, OptionLength: 7, OptionData: []byte{4, 0, 0, 0, 0}}, // record route: in the first alone
		{OptionType: 0x94, OptionLength: 4, OptionData: []byte{0, 0}}, // router alert: in all
	}
	body := make([]byte, 1200)
	for i := range body {
		body[i] = byte(i * 13)
	}
	f := frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip, gopacket.Payload(body))
	at := 100
	packets := n.send(bytes.Clone(f), Offload{})
	for i, b := range packets {
		p, _ := gopacket.NewPacket(b, layers.LayerTypeIPv4, gopacket.Default).NetworkLayer().(*layers.IPv4)
		switch {
		case p == nil || len(b) > 600 || sum(b[:int(p.IHL)*4]) != 0xffff:
			t.Fatalf("%x", b)
		case int(p.FragOffset) != at || p.Flags != layers.IPv4MoreFragments || p.Id != 9:
			t.Errorf("fragment %d: offset %d, want %d, %v", i, p.FragOffset, at, p.Flags)
		case i == 0 && p.IHL != 8, i > 0 && (p.IHL != 6 || !bytes.Equal(b[20:24], []byte{0x94, 4, 0, 0})):
			t.Errorf("fragment %d: options %x", i, b[20:int(p.IHL)*4])
		case !bytes.Equal(p.Payload, body[8*(at-100):][:len(p.Payload)]):
			t.Errorf("fragment %d: payload", i)
		}
		at += len(p.Payload) / 8
	}
	if at != 100+len(body)/8 || len(packets) != 3 {
		t.Errorf("%d fragments up to %d", len(packets), at)
	}
	for range 1000 { // options that are none
		b := bytes.Clone(f)
		for i := ethLen + 20; i < ethLen+32; i++ {
			b[i] = byte(rand.Uint32())
		}
		finishIPv4(b[ethLen:], 32)
		if got := n.send(b, Offload{}); len(got) < 3 {
			t.Fatalf("%d fragments", len(got))
		}
	}
}

// TestFragmentsAreBounded: a frame makes no more fragments than a frame makes segments, whatever
// MTU a peer announces for its ports. The number of bytes copied for ports in one Step is bounded.
func TestFragmentsAreBounded(t *testing.T) {
	for _, most := range []int{0, 1, 20, 67, 68, 100, 500, 576} {
		n := newNet(t)
		n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, most}})
		for _, size := range []int{1000, 65_000} {
			f := mayFragment(udp(t, gwA, macA, ipA, ipC, size), 1)
			fits := most >= 68 && size/((most-20)&^7) < maxCuts
			if p := n.send(f, Offload{}); len(p) > maxCuts || (len(p) > 0) != fits {
				t.Errorf("a way of %d: %d bytes made %d packets", most, size, len(p))
			}
		}
	}
	n := newNet(t)
	out := 0
	for range 40 {
		n.send(mayFragment(udp(t, gwA, macA, ipA, ipB, 60_000), 1), Offload{})
	}
	for _, o := range n.output() {
		out += len(o.b)
	}
	if drops := n.g.Stats().Reasons[DropPortFull]; out > maxCopied || out < maxCopied/2 || drops == 0 {
		t.Errorf("%d bytes copied, %d frames dropped", out, drops)
	}
	n.send(mayFragment(udp(t, gwA, macA, ipA, ipB, 60_000), 1), Offload{})
	if len(n.output()) < 40 {
		t.Error("there is no room in the next Step")
	}
}

// TestFragmentsAllocateNothing: fragmenting does not allocate, neither towards a peer nor towards a
// port.
func TestFragmentsAllocateNothing(t *testing.T) {
	n := newNet(t)
	peer, port := mayFragment(udp(t, gwA, macA, ipA, ipC, 5000), 1), mayFragment(udp(t, gwA, macA, ipA, ipB, 5000), 1)
	in, room := &PortInput{From: n.a}, make([]byte, len(port))
	turn := func() {
		for _, f := range [][]byte{peer, port} {
			copy(room, f)
			in.Frame = room
			if n.g.FromPort(second, in, &n.fwd) {
				for n.fwd.Next() != nil {
				}
			}
		}
		n.g.Output()
		n.g.Done()
	}
	turn()
	if got := testing.AllocsPerRun(50, turn); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
