package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

// whole returns a frame that stands for several packets, as a kernel sends it: the checksum holds
// only the pseudo header's sum.
func whole(t testing.TB, from, to netip.Addr, proto layers.IPProtocol, options, payload, size int, flags byte) ([]byte, Offload) {
	t.Helper()
	body := make([]byte, payload)
	for i := range body {
		body[i] = byte(i*2654435761>>15 + i>>8)
	}
	off := Offload{NeedsCsum: true, Size: uint16(size), CsumOffset: udpCheckAt, GSO: GSOUDP}
	var l4 gopacket.SerializableLayer
	var sums interface {
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}
	if proto == layers.IPProtocolTCP {
		tcp := &layers.TCP{SrcPort: 40000, DstPort: 443, Seq: 0xffffff00, Ack: 77, ACK: true, Window: 512}
		for range options {
			tcp.Options = append(tcp.Options, layers.TCPOption{OptionType: layers.TCPOptionKindNop})
		}
		l4, sums = tcp, tcp
		off.GSO, off.CsumOffset = GSOTCP4, tcpCheckAt
		if from.Is6() {
			off.GSO = GSOTCP6
		}
	} else {
		udp := &layers.UDP{SrcPort: 40000, DstPort: 443}
		l4, sums = udp, udp
	}
	var f []byte
	if from.Is4() {
		ip := ip4(from, to, proto)
		ip.Id = 0xfffe
		_ = sums.SetNetworkLayerForChecksum(ip)
		f = frame(t, eth(gwA, macA, layers.EthernetTypeIPv4), ip, l4, gopacket.Payload(body))
	} else {
		ip := ip6(from, to, proto)
		_ = sums.SetNetworkLayerForChecksum(ip)
		f = frame(t, eth(gwA, macA, layers.EthernetTypeIPv6), ip, l4, gopacket.Payload(body))
	}
	h, _ := parseIP(f[ethLen:])
	f = f[:ethLen+h.total]
	off.CsumStart = uint16(ethLen + h.l4)
	if proto == layers.IPProtocolTCP {
		f[ethLen+h.l4+13] |= flags
	}
	b := f[ethLen:]
	binary.BigEndian.PutUint16(b[h.l4+int(off.CsumOffset):], fold(h.pseudo(b, h.total-h.l4)))
	return f, off
}

// Cutting gives packets that fit, with valid checksums and the payload of the frame. Joining them
// on the other side gives the original frame.
func TestCutAndJoin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v6 := rapid.Bool().Draw(rt, "v6")
		proto := rapid.SampledFrom([]layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP}).Draw(rt, "protocol")
		options := rapid.SampledFrom([]int{0, 4, 12, 40}).Draw(rt, "options")
		size := rapid.IntRange(1, 2000).Draw(rt, "size")
		limit := min(65535-40-60, size*60) // one frame on the other side
		payload := rapid.IntRange(1, limit).Draw(rt, "payload")
		push := byte(0)
		if rapid.Bool().Draw(rt, "push") {
			push = tcpPSH
		}
		n := newNet(t)
		from, to := ipA, ipC
		if v6 {
			from, to = v6A, v6C
		}
		f, off := whole(t, from, to, proto, options, payload, size, push)
		want := bytes.Clone(f)
		packets := n.send(f, off)
		headers := len(want) - payload - ethLen
		fits := min(size, tunnelMTU-headers)
		if proto == layers.IPProtocolUDP && fits < min(size, payload) {
			if len(packets) != 0 || n.g.Stats().Reasons[DropTooBig] != 1 || n.g.Stats().Reasons[CountICMP] != 1 {
				rt.Fatalf("datagrams of %d bytes were made %d packets", size, len(packets))
			}
			return
		}
		if len(packets) != (payload+fits-1)/fits {
			rt.Fatalf("%d packets of %d bytes for %d", len(packets), fits, payload)
		}
		if payload > size && n.g.Stats().Segments != uint64(len(packets)) {
			rt.Fatalf("%d segments counted", n.g.Stats().Segments)
		}

		// The other side, where the addresses are the other way round.
		other := newNet(t)
		configure(other.g, other.a, EndpointConfig{Tenant: 7, MAC: macA, Addresses: addrs("10.0.0.3", "fd00::3"), MTU: 9000, USO: true}, true)
		other.g.routes.Learn(2, []Address{{7, ipA, 1, 9000}, {7, v6A, 1, 9000}})
		var whole []byte
		for i, b := range packets {
			h, why := parseIP(b)
			if why != none || h.total != len(b) || len(b) > tunnelMTU || !h.l4Valid(b) {
				rt.Fatalf("packet %d: %v %+v", i, why, h)
			}
			if id := binary.BigEndian.Uint16(b[4:]); !v6 && id != binary.BigEndian.Uint16(want[ethLen+4:])+uint16(i) {
				rt.Fatalf("packet %d: identification %d", i, id)
			}
			if proto == layers.IPProtocolTCP && (b[h.l4+13]&tcpPSH != 0) != (push != 0 && i == len(packets)-1) {
				rt.Fatalf("packet %d: PSH %#x", i, b[h.l4+13])
			}
			whole = append(whole, b[headers:]...)
			other.g.FromTunnel(other.g.Tunnels.To(2, 7), append(make([]byte, ethLen), b...), 0)
		}
		if !bytes.Equal(whole, want[ethLen+headers:]) {
			rt.Fatal("payload differs")
		}
		out := other.output()
		if proto == layers.IPProtocolUDP && len(packets) > maxUDPParts {
			return
		}
		if len(out) != 1 {
			rt.Fatalf("%d frames of %d packets", len(out), len(packets))
		}
		if len(packets) == 1 {
			if out[0].off != (Offload{}) || !bytes.Equal(out[0].b[ethLen:], packets[0]) {
				rt.Fatalf("one packet changed: %+v", out[0].off)
			}
			return
		}
		off.Size = uint16(fits)
		if out[0].off != off {
			rt.Fatalf("offload %+v, want %+v", out[0].off, off)
		}
		copy(want, out[0].b[:ethLen])
		if !bytes.Equal(out[0].b, want) {
			rt.Fatalf("%x\nwant %x", out[0].b[:80], want[:80])
		}
	})
}

// A checksum that the guest left incomplete is completed.
func TestPartialChecksum(t *testing.T) {
	for _, to := range []netip.Addr{ipC, v6C} {
		from := ipA
		if to.Is6() {
			from = v6A
		}
		f := udp(t, gwA, macA, from, to, 101)
		want := bytes.Clone(f[ethLen:])
		h, _ := parseIP(f[ethLen:])
		binary.BigEndian.PutUint16(f[ethLen+h.l4+6:], fold(h.pseudo(f[ethLen:], h.total-h.l4)))
		n := newNet(t)
		p := n.send(f, Offload{NeedsCsum: true, CsumStart: uint16(ethLen + h.l4), CsumOffset: 6})
		if len(p) != 1 || !bytes.Equal(p[0], want) {
			t.Errorf("%x\nwant %x", p, want)
		}
	}
}

// Packets that must not be joined are not, and order within a flow is kept.
func TestNotJoined(t *testing.T) {
	segments := func(name string, change func(i int, b []byte)) (frames [][]byte) {
		n := newNet(t)
		f, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 0, 3000, 1000, 0)
		for i, b := range n.send(f, off) {
			change(i, b)
			finishIPv4(b, ipv4Len)
			h, _ := parseIP(b)
			if name != "checksum" {
				finishL4(b, &h, tcpCheckAt)
			}
			frames = append(frames, append(make([]byte, ethLen), b...))
		}
		return frames
	}
	for name, change := range map[string]func(i int, b []byte){
		"nothing":         func(int, []byte) {},
		"checksum":        func(i int, b []byte) { b[36], b[37] = 0xde, 0xad },
		"gap":             func(i int, b []byte) { binary.BigEndian.PutUint32(b[24:], uint32(i*5000)) },
		"acknowledgement": func(i int, b []byte) { b[28] = byte(i) },
		"flags":           func(i int, b []byte) { b[33] |= tcpFIN },
		"urgent":          func(i int, b []byte) { b[33] |= 0x20 },
		"window":          func(i int, b []byte) { b[34] = byte(i) },
		"time to live":    func(i int, b []byte) { b[8] -= byte(i) },
		"class":           func(i int, b []byte) { b[1] = byte(i) << 2 },
		"ports":           func(i int, b []byte) { b[20] = byte(i) },
		"push":            func(i int, b []byte) { b[33] |= tcpPSH },
		"identification":  func(i int, b []byte) { b[6] &^= 0x40; b[4] = byte(i * 16) },
		"fragments":       func(i int, b []byte) { b[6] = 0x20 },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNet(t)
			configure(n.g, n.a, EndpointConfig{Tenant: 7, MAC: macA, Addresses: addrs("10.0.0.3"), MTU: 9000}, true)
			n.g.routes.Learn(2, []Address{{7, ipA, 1, 9000}})
			fs := segments(name, change)
			for _, f := range fs {
				n.g.FromTunnel(n.g.Tunnels.To(2, 7), bytes.Clone(f), 0)
			}
			out := n.output()
			if name == "nothing" {
				if len(out) != 1 {
					t.Fatalf("%d frames", len(out))
				}
				return
			}
			if len(out) != len(fs) {
				t.Fatalf("%d frames of %d", len(out), len(fs))
			}
			for i, o := range out {
				if !bytes.Equal(o.b[ethLen:], fs[i][ethLen:]) || o.off != (Offload{}) {
					t.Errorf("frame %d changed or out of order", i)
				}
			}
		})
	}
}

// TestNotJoinedIPv6: packets that differ in class, flow label or hop limit stay apart.
func TestNotJoinedIPv6(t *testing.T) {
	for name, change := range map[string]func(i int, b []byte){
		"nothing":    func(int, []byte) {},
		"class":      func(i int, b []byte) { b[0] |= byte(i) },
		"flow label": func(i int, b []byte) { b[3] = byte(i) },
		"hop limit":  func(i int, b []byte) { b[7] -= byte(i) },
	} {
		n := newNet(t)
		f, off := whole(t, v6A, v6C, layers.IPProtocolTCP, 0, 3000, 1000, 0)
		packets := n.send(f, off)
		if len(packets) < 3 {
			t.Fatalf("%d packets", len(packets))
		}
		n = newNet(t)
		configure(n.g, n.a, EndpointConfig{Tenant: 7, MAC: macA, Addresses: addrs("fd00::3"), MTU: 9000}, true)
		n.g.routes.Learn(2, []Address{{7, v6A, 1, 9000}})
		for i, b := range packets {
			change(i, b)
			n.g.FromTunnel(n.g.Tunnels.To(2, 7), append(make([]byte, ethLen), b...), 0)
		}
		want := len(packets)
		if name == "nothing" {
			want = 1
		}
		if out := n.output(); len(out) != want {
			t.Errorf("%s: %d frames, want %d", name, len(out), want)
		}
	}
}

// Interleaved flows are joined separately. Packets for which no list is free still arrive.
func TestInterleavedFlows(t *testing.T) {
	const flows, each = 100, 4
	n := newNet(t)
	configure(n.g, n.a, EndpointConfig{Tenant: 7, MAC: macA, Addresses: addrs("10.0.0.3"), MTU: 9000}, true)
	n.g.routes.Learn(2, []Address{{7, ipA, 1, 9000}})
	sender := newNet(t)
	var all [flows][][]byte
	for i := range all {
		f, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 0, each*100, 100, 0)
		for _, b := range sender.send(f, off) {
			b[20] = byte(i) // the port
			h, _ := parseIP(b)
			finishL4(b, &h, tcpCheckAt)
			all[i] = append(all[i], b)
		}
	}
	for group := 0; group < flows; group += 4 { // four at a time
		for k := range each {
			for i := group; i < group+4; i++ {
				n.g.FromTunnel(n.g.Tunnels.To(2, 7), append(make([]byte, ethLen), all[i][k]...), 0)
			}
		}
	}
	total := 0
	for _, o := range n.output() {
		h, why := parseIP(o.b[ethLen:])
		if why != none {
			t.Fatal(why)
		}
		total += h.total - 40
	}
	if total != flows*each*100 {
		t.Errorf("%d bytes came, %d were sent", total, flows*each*100)
	}
	if n.g.Stats().Coalesced < maxLists*(each-1) {
		t.Errorf("%d joined", n.g.Stats().Coalesced)
	}
}

// Neither direction allocates.
func TestNoAllocations(t *testing.T) {
	n := newNet(t)
	super, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 12, 60000, 1400, 0)
	single := udp(t, gwA, macA, ipA, ipC, 1000)
	local, loff := whole(t, ipA, ipB, layers.IPProtocolTCP, 12, 60000, 1400, 0)
	ask := arpFrame(macA, ipA, ipC)
	var back [][]byte
	for _, b := range n.send(bytes.Clone(super), off) {
		f := append(make([]byte, ethLen), b...)
		copy(f[ethLen+12:], super[ethLen+16:ethLen+20]) // the other way
		copy(f[ethLen+16:], super[ethLen+12:ethLen+16])
		finishIPv4(f[ethLen:], 20)
		back = append(back, f)
	}
	work := make([]byte, len(super))
	tunnel := n.g.Tunnels.To(2, 7)
	joined := n.g.Stats().Coalesced
	if got := testing.AllocsPerRun(50, func() {
		for _, f := range []struct {
			b   []byte
			off Offload
		}{{super, off}, {single, Offload{}}, {local, loff}, {ask, Offload{}}} {
			copy(work, f.b)
			if n.g.FromPort(second, &PortInput{From: n.a, Frame: work[:len(f.b)], Offload: f.off}, &n.fwd) {
				for n.fwd.Next() != nil {
				}
			}
		}
		for _, f := range back {
			copy(work, f)
			n.g.FromTunnel(tunnel, work[:len(f)], 0)
		}
		n.g.Output()
		n.g.Done()
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
	if n.g.Stats().Coalesced == joined {
		t.Error("nothing was joined")
	}
}
