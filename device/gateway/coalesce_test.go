package gateway

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

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

// Packets that must not be joined are not, and order within a flow is kept.
func TestUnlikePacketsAreNotJoined(t *testing.T) {
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
func TestInterleavedFlowsAreJoinedSeparately(t *testing.T) {
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

// receiver returns a net whose port a has the addresses to which the peer's packets go.
func receiver(t testing.TB) *net {
	n := newNet(t)
	configure(n.g, n.a, EndpointConfig{
		Tenant: 7, MAC: macA, Addresses: addrs("10.0.0.3", "fd00::3"), MTU: 0xffff, USO: true,
	}, true)
	n.g.routes.Learn(2, []Address{{7, ipA, 1, 9000}, {7, v6A, 1, 9000}})
	return n
}

// segment returns one packet of a flow to the receiver, which is in order if its sequence number
// is. change may edit it before its checksums are computed.
func segment(v6 bool, proto uint8, seq uint32, payload int, change func(b, l4 []byte)) []byte {
	at, n := ipv4Len, udpLen+payload
	if v6 {
		at = ipv6Len
	}
	if proto == protoTCP {
		n = tcpLen + payload
	}
	b := make([]byte, at+n)
	if v6 {
		putIPv6(b, proto, 64, v6A, v6C, n)
	} else {
		putIPv4(b, proto, ipA, ipC, len(b))
		b[6] = 0x40
	}
	l4 := b[at:]
	l4[1], l4[3] = 1, 2 // ports
	check := tcpCheckAt
	if proto == protoTCP {
		binary.BigEndian.PutUint32(l4[4:], seq)
		l4[12], l4[13] = tcpLen/4<<4, tcpACK
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(n))
		check = udpCheckAt
	}
	for i := range payload {
		l4[n-payload+i] = byte(i * 13)
	}
	if change != nil {
		change(b, l4)
	}
	if !v6 {
		finishIPv4(b, ipv4Len)
	}
	if n > check+1 {
		fixSum(b, &header{v6: v6, proto: proto, l4: at, total: len(b)}, check)
	}
	return b
}

// feed passes a packet of the peer to the gateway.
func (n *net) feed(b []byte) {
	n.g.FromTunnel(n.g.Tunnels.To(2, 7), append(make([]byte, ethLen), b...), 0)
}

// lengths returns the lengths of the upper layers of the output, in order.
func (n *net) lengths() (list []int) {
	n.t.Helper()
	for _, o := range n.output() {
		h, why := parseIP(o.b[ethLen:])
		if why != none || h.total != len(o.b)-ethLen {
			n.t.Errorf("%v: %+v of %d bytes", why, h, len(o.b))
		}
		list = append(list, h.total-h.l4)
	}
	return list
}

// flow feeds consecutive packets with payloads of these sizes.
func (n *net) flow(v6 bool, proto uint8, sizes ...int) {
	seq := uint32(0xfffffff0)
	for _, size := range sizes {
		n.feed(segment(v6, proto, seq, size, nil))
		seq += uint32(size)
	}
}

func repeated(size, n int) []int { return slices.Repeat([]int{size}, n) }

// TestJoinedFrameFitsAPacket: joined packets are at most as long as one packet; for UDP over IPv4,
// a header less.
func TestJoinedFrameFitsAPacket(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, proto := range []uint8{protoTCP, protoUDP} {
			most, l4 := 0xffff, ipv4Len
			switch {
			case v6:
				l4 = ipv6Len
			case proto == protoUDP:
				most -= ipv4Len
			}
			headers := tcpLen
			if proto == protoUDP {
				headers = udpLen
			}
			const size = 8000
			room := most - l4 - headers
			n := receiver(t)
			n.flow(v6, proto, append(repeated(size, room/size), room%size)...)
			if got := n.lengths(); !slices.Equal(got, []int{headers + room}) {
				t.Errorf("IPv6 %t, protocol %d, as much as fits: %v", v6, proto, got)
			}
			n.flow(v6, proto, append(repeated(size, room/size), room%size+1)...)
			if got := n.lengths(); !slices.Equal(got, []int{headers + room/size*size, headers + room%size + 1}) {
				t.Errorf("IPv6 %t, protocol %d, a byte more: %v", v6, proto, got)
			}
		}
	}
}

// TestJoinedFrameCanBeSegmentedAgain: no more packets are joined than the guest's kernel can
// segment again.
func TestJoinedFrameCanBeSegmentedAgain(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tc := range []struct {
			proto         uint8
			most, headers int
		}{{protoTCP, maxParts, tcpLen}, {protoUDP, maxUDPParts, udpLen}} {
			n := receiver(t)
			n.flow(v6, tc.proto, repeated(10, tc.most+1)...)
			if got := n.lengths(); !slices.Equal(got, []int{tc.headers + 10*tc.most, tc.headers + 10}) {
				t.Errorf("IPv6 %t, protocol %d: %v", v6, tc.proto, got)
			}
		}
	}
}

// TestJoinedPayloadsHaveOneLength: joined payloads have equal lengths, except that the last may be
// shorter and ends the frame. A longer payload begins another frame.
func TestJoinedPayloadsHaveOneLength(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, tc := range []struct{ sizes, frames []int }{
			{[]int{100, 100, 100}, []int{300}},
			{[]int{100, 100, 50}, []int{250}},
			{[]int{100, 50, 50}, []int{150, 50}},
			{[]int{100, 99, 99, 99}, []int{199, 198}},
			{[]int{100, 101}, []int{100, 101}},
			{[]int{50, 100, 100, 1}, []int{50, 201}},
		} {
			for proto, headers := range map[uint8]int{protoTCP: tcpLen, protoUDP: udpLen} {
				n := receiver(t)
				n.flow(v6, proto, tc.sizes...)
				got := n.lengths()
				for i := range got {
					got[i] -= headers
				}
				if !slices.Equal(got, tc.frames) {
					t.Errorf("IPv6 %t, protocol %d, sizes %v: %v, want %v", v6, proto, tc.sizes, got, tc.frames)
				}
			}
		}
	}
}

// TestPushEndsAFrame: a segment with PSH ends the frame that it joins.
func TestPushEndsAFrame(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		n := receiver(t)
		for i := range uint32(4) {
			n.feed(segment(v6, protoTCP, 100*i, 100, func(_, l4 []byte) {
				if i == 1 {
					l4[13] |= tcpPSH
				}
			}))
		}
		var pushed []bool
		for _, f := range n.g.Output() {
			l4 := ethLen + ipv4Len
			if v6 {
				l4 = ethLen + ipv6Len
			}
			pushed = append(pushed, f.Parts[0][l4+13]&tcpPSH != 0)
		}
		got := n.lengths()
		if !slices.Equal(got, []int{tcpLen + 200, tcpLen + 200}) || !slices.Equal(pushed, []bool{true, false}) {
			t.Errorf("IPv6 %t: %v, pushed %v", v6, got, pushed)
		}
	}
}

// TestIdentificationsOfJoinedPacketsFollow: packets that may be fragmented are joined if their
// identifications are consecutive. For packets that may not be fragmented, identifications have no
// meaning (RFC 6864).
func TestIdentificationsOfJoinedPacketsFollow(t *testing.T) {
	for _, tc := range []struct {
		df     bool
		ids    []uint16
		frames []int // packets in each
	}{
		{true, []uint16{7, 7, 7}, []int{3}},
		{true, []uint16{9, 1, 4}, []int{3}},
		{true, []uint16{1, 2, 3}, []int{3}},
		{false, []uint16{5, 6, 7}, []int{3}},
		{false, []uint16{0xfffe, 0xffff, 0, 1}, []int{4}},
		{false, []uint16{5, 6, 6}, []int{2, 1}},
		{false, []uint16{5, 6, 8}, []int{2, 1}},
		{false, []uint16{5, 4}, []int{1, 1}},
		{false, []uint16{0, 0}, []int{1, 1}},
	} {
		n := receiver(t)
		for i, id := range tc.ids {
			n.feed(segment(false, protoTCP, uint32(100*i), 100, func(b, _ []byte) {
				binary.BigEndian.PutUint16(b[4:], id)
				if !tc.df {
					b[6] = 0
				}
			}))
		}
		var frames []int
		for _, length := range n.lengths() {
			frames = append(frames, (length-tcpLen)/100)
		}
		if !slices.Equal(frames, tc.frames) {
			t.Errorf("%+v: %v", tc, frames)
		}
	}
}

// TestSegmentsWithOtherOptionsStayApart: segments are joined only if their options are equal.
func TestSegmentsWithOtherOptionsStayApart(t *testing.T) {
	n := receiver(t)
	for i, stamp := range []byte{1, 1, 2, 2} {
		n.feed(segment(false, protoTCP, uint32(100*i), 104, func(_, l4 []byte) {
			l4[12] = 6 << 4
			copy(l4[20:], []byte{1, 1, 1, stamp})
		}))
	}
	if got := n.lengths(); !slices.Equal(got, []int{24 + 200, 24 + 200}) {
		t.Errorf("%v", got)
	}
}

// TestPacketsOfAFlowStayInOrder: a packet that is not joined is not overtaken by later packets of
// its flow. Packets of other protocols, fragments, and packets without visible ports do not affect
// other flows.
func TestPacketsOfAFlowStayInOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		between []byte
		frames  int
	}{
		"UDP with the same ports": {segment(false, protoUDP, 0, 100, nil), 2},
		"a fragment":              {segment(false, protoTCP, 100, 100, func(b, _ []byte) { b[6] = 0x20 }), 2},
		"IPv6":                    {segment(true, protoTCP, 100, 100, nil), 2},
		"no data":                 {segment(false, protoTCP, 100, 0, nil), 3},
		"another acknowledgement": {segment(false, protoTCP, 100, 100, func(_, l4 []byte) { l4[11] = 1 }), 3},
	} {
		n := receiver(t)
		n.feed(segment(false, protoTCP, 0, 100, nil))
		n.feed(tc.between)
		n.feed(segment(false, protoTCP, 100, 100, nil))
		if got := n.lengths(); len(got) != tc.frames {
			t.Errorf("%s: %v, want %d frames", name, got, tc.frames)
		}
	}
	for length, frames := range map[int]int{3: 2, 4: 3} { // of four bytes the ports are known
		n := receiver(t)
		n.feed(segment(false, protoTCP, 0, 100, nil))
		stub := segment(false, protoTCP, 100, 0, nil)[:ipv4Len+length]
		binary.BigEndian.PutUint16(stub[2:], uint16(len(stub)))
		finishIPv4(stub, ipv4Len)
		n.feed(stub)
		n.feed(segment(false, protoTCP, 100, 100, nil))
		if got := n.lengths(); len(got) != frames {
			t.Errorf("%d bytes of TCP: %v, want %d frames", length, got, frames)
		}
	}
}

// TestEightFlowsAreJoinedAtOnce: packets of eight flows can be joined at the same time. A ninth
// flow replaces the oldest.
func TestEightFlowsAreJoinedAtOnce(t *testing.T) {
	n := receiver(t)
	of := func(flow byte, seq uint32) {
		n.feed(segment(false, protoTCP, seq, 100, func(_, l4 []byte) { l4[1] = 100 + flow }))
	}
	for flow := range byte(maxRecent + 1) {
		of(flow, 0)
	}
	for flow := byte(maxRecent); flow > 0; flow-- {
		of(flow, 100)
	}
	if joined := n.g.Stats().Coalesced; joined != maxRecent {
		t.Errorf("%d packets joined one of their flow", joined)
	}
	of(0, 100) // the first flow's, which is forgotten, and its next
	of(0, 200)
	of(1, 200) // now this one is
	of(3, 200)
	if joined := n.g.Stats().Coalesced; joined != maxRecent+2 {
		t.Errorf("%d packets joined one of their flow", joined)
	}
	if got := n.lengths(); len(got) != maxRecent+3 {
		t.Errorf("%d frames", len(got))
	}
}

// TestPortsOfTwoTenantsAreNotJoined: packets of two tenants with equal addresses are not joined.
func TestPortsOfTwoTenantsAreNotJoined(t *testing.T) {
	n := receiver(t)
	other := n.g.AddEndpoint("other", 3, MAC{2, 1, 0, 0, 0, 0xe})
	configure(n.g, other, EndpointConfig{Tenant: 8, MAC: macB, Addresses: addrs("10.0.0.3"), MTU: 9000}, true)
	n.g.routes.Learn(3, []Address{{8, ipA, 0x030001, 9000}})
	n.feed(segment(false, protoTCP, 0, 100, nil))
	n.g.FromTunnel(n.g.Tunnels.To(3, 8), append(make([]byte, ethLen), segment(false, protoTCP, 100, 100, nil)...), 0)
	n.feed(segment(false, protoTCP, 100, 100, nil))
	out := n.output()
	if len(out) != 2 || out[0].port != n.a || out[1].port != other || len(out[0].b) != len(out[1].b)+100 {
		t.Errorf("%d frames", len(out))
	}
}

// fixSum puts the right checksum of the upper layer into a packet.
func fixSum(b []byte, h *header, at int) {
	l4 := b[h.l4:h.total]
	l4[at], l4[at+1] = 0, 0
	binary.BigEndian.PutUint16(l4[at:], ^checksum.Fold(h.pseudo(b, len(l4))+uint32(checksum.Sum(l4))))
}

// TestOnlyWhatSegmentationMakesIsJoined: packets are joined if segmentation could have produced them: plain headers, a
// payload, valid checksums. Anything else in a header prevents joining.
func TestOnlyWhatSegmentationMakesIsJoined(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		from, to := ipA, ipC
		if v6 {
			from, to = v6A, v6C
		}
		n := newNet(t)
		packet := func(proto layers.IPProtocol) ([]byte, header) {
			f, off := whole(t, from, to, proto, 0, 100, 100, 0)
			b := bytes.Clone(n.send(f, off)[0])
			h, why := parseIP(b)
			if why != none {
				t.Fatal(why)
			}
			return b, h
		}
		at := func(off int, v byte) func(b, l4 []byte) { return func(_, l4 []byte) { l4[off] = v } }
		for _, c := range []struct {
			name    string
			proto   layers.IPProtocol
			edit    func(b, l4 []byte)
			headers int // of the upper layer; 0: the packet stays alone
		}{
			{"TCP", layers.IPProtocolTCP, nil, 20},
			{"TCP with PSH", layers.IPProtocolTCP, at(13, tcpACK|tcpPSH), 20},
			{"TCP with options", layers.IPProtocolTCP, at(12, 6<<4), 24},
			{"TCP with a byte of payload", layers.IPProtocolTCP, func(_, l4 []byte) { l4[12] = 15 << 4 }, 60},
			{"a header that is too short", layers.IPProtocolTCP, at(12, 4<<4), 0},
			{"a reserved bit", layers.IPProtocolTCP, at(12, 5<<4|1), 0},
			{"no ACK", layers.IPProtocolTCP, at(13, 0), 0},
			{"PSH alone", layers.IPProtocolTCP, at(13, tcpPSH), 0},
			{"SYN", layers.IPProtocolTCP, at(13, tcpACK|2), 0},
			{"FIN", layers.IPProtocolTCP, at(13, tcpACK|1), 0},
			{"RST", layers.IPProtocolTCP, at(13, tcpACK|4), 0},
			{"URG", layers.IPProtocolTCP, at(13, tcpACK|32), 0},
			{"ECE", layers.IPProtocolTCP, at(13, tcpACK|64), 0},
			{"CWR", layers.IPProtocolTCP, at(13, tcpACK|128), 0},
			{"UDP", layers.IPProtocolUDP, nil, 8},
			{"UDP that is shorter than its packet", layers.IPProtocolUDP, at(5, 107), 0},
			{"UDP that is longer than its packet", layers.IPProtocolUDP, at(5, 109), 0},
		} {
			b, h := packet(c.proto)
			check := tcpCheckAt
			if c.proto == layers.IPProtocolUDP {
				check = udpCheckAt
			}
			if c.edit != nil {
				c.edit(b, b[h.l4:h.total])
				fixSum(b, &h, check)
			}
			headers, ok := joinable(n.a, b, &h)
			if ok != (c.headers != 0) || ok && headers != h.l4+c.headers {
				t.Errorf("IPv6 %t, %s: %t, %d bytes of headers", v6, c.name, ok, headers)
			}
			b[h.l4+30] ^= 1
			if _, ok := joinable(n.a, b, &h); ok {
				t.Errorf("IPv6 %t, %s: joined with a wrong checksum", v6, c.name)
			}
		}
		// Without a payload, or with it cut off within the header, there is nothing to join.
		for _, proto := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
			b, h := packet(proto)
			least := map[layers.IPProtocol]int{layers.IPProtocolTCP: 20, layers.IPProtocolUDP: 8}[proto]
			for length, want := range map[int]bool{least - 1: false, least: false, least + 1: true} {
				b, h := bytes.Clone(b[:h.l4+length]), h
				h.total = len(b)
				if proto == layers.IPProtocolUDP && length >= 8 {
					binary.BigEndian.PutUint16(b[h.l4+4:], uint16(length))
				}
				if length >= least {
					fixSum(b, &h, map[layers.IPProtocol]int{layers.IPProtocolTCP: tcpCheckAt, layers.IPProtocolUDP: udpCheckAt}[proto])
				}
				if _, ok := joinable(n.a, b, &h); ok != want {
					t.Errorf("IPv6 %t, %v of %d bytes: %t", v6, proto, length, ok)
				}
			}
			h.fragment = true
			if _, ok := joinable(n.a, b, &h); ok {
				t.Errorf("IPv6 %t, %v: a fragment is joined", v6, proto)
			}
		}
		b, h := packet(layers.IPProtocolUDP)
		n.a.USO = false
		if _, ok := joinable(n.a, b, &h); ok {
			t.Error("UDP is joined for a port that takes none")
		}
		n.a.USO = true
		l4 := b[h.l4:]
		l4[udpCheckAt], l4[udpCheckAt+1] = 0, 0
		if _, ok := joinable(n.a, b, &h); ok {
			t.Error("UDP without a checksum is joined")
		}
		h.proto = 132
		if _, ok := joinable(n.a, b, &h); ok {
			t.Error("SCTP is joined")
		}
	}
}
