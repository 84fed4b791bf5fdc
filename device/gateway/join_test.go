package gateway

import (
	"encoding/binary"
	"slices"
	"testing"
)

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

// TestJoinedLength: joined packets are at most as long as one packet; for UDP over IPv4, a header
// less.
func TestJoinedLength(t *testing.T) {
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

// TestJoinedParts: no more packets are joined than the guest's kernel can segment again.
func TestJoinedParts(t *testing.T) {
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

// TestJoinedSizes: joined payloads have equal lengths, except that the last may be shorter and ends
// the frame. A longer payload begins another frame.
func TestJoinedSizes(t *testing.T) {
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

// TestPushEnds: a segment with PSH ends the frame that it joins.
func TestPushEnds(t *testing.T) {
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

// TestIdentifications: packets that may be fragmented are joined if their identifications are
// consecutive. For packets that may not be fragmented, identifications have no meaning (RFC 6864).
func TestIdentifications(t *testing.T) {
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

// TestOptionsAreOneFrames: segments are joined only if their options are equal.
func TestOptionsAreOneFrames(t *testing.T) {
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

// TestNotOvertaken: a packet that is not joined is not overtaken by later packets of its flow.
// Packets of other protocols, fragments, and packets without visible ports do not affect other
// flows.
func TestNotOvertaken(t *testing.T) {
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

// TestFlowsAtATime: packets of eight flows can be joined at the same time. A ninth flow replaces
// the oldest.
func TestFlowsAtATime(t *testing.T) {
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

// TestPortsApart: packets of two tenants with equal addresses are not joined.
func TestPortsApart(t *testing.T) {
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
