package gateway

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// several is a frame that stands for several packets, with its offload.
type several struct {
	f   []byte
	off Offload
	l4  int // in the frame
}

func newSeveral(t *testing.T, v6 bool, proto layers.IPProtocol, payload, size int) *several {
	t.Helper()
	from, to := ipA, ipC
	if v6 {
		from, to = v6A, v6C
	}
	f, off := whole(t, from, to, proto, 0, payload, size, 0)
	return &several{f, off, int(off.CsumStart)}
}

// extend puts n bytes of IPv6 options in front of the upper layer.
func (s *several) extend(n int) *several {
	at := ethLen + ipv6Len
	options := make([]byte, n)
	options[0], options[1] = s.f[ethLen+6], byte(n/8-1)
	s.f = append(append(bytes.Clone(s.f[:at]), options...), s.f[at:]...)
	s.f[ethLen+6] = protoDstOpts
	binary.BigEndian.PutUint16(s.f[ethLen+4:], uint16(len(s.f)-at))
	s.off.CsumStart += uint16(n)
	return s
}

// TestOffloadFits: a frame's offload must match the frame's protocol and refer to headers that it
// contains. Each resulting packet is correct.
func TestOffloadFits(t *testing.T) {
	tcp, udp := layers.IPProtocolTCP, layers.IPProtocolUDP
	with := func(v6 bool, proto layers.IPProtocol, change func(s *several)) *several {
		s := newSeveral(t, v6, proto, 3000, 1000)
		change(s)
		return s
	}
	off := func(v6 bool, proto layers.IPProtocol, change func(o *Offload)) *several {
		return with(v6, proto, func(s *several) { change(&s.off) })
	}
	as := func(kind uint8, at uint16) func(o *Offload) {
		return func(o *Offload) { o.GSO, o.CsumOffset = kind, at }
	}
	header := func(words byte) func(s *several) { return func(s *several) { s.f[s.l4+12] = words << 4 } }
	long := func(payload int) *several { // a header that is all options
		s := newSeveral(t, false, tcp, payload, 48)
		header(15)(s)
		return s
	}
	for name, tc := range map[string]struct {
		s  *several
		ok bool
	}{
		"TCP":                         {newSeveral(t, false, tcp, 3000, 1000), true},
		"TCP of IPv6":                 {newSeveral(t, true, tcp, 3000, 1000), true},
		"UDP":                         {newSeveral(t, false, udp, 3000, 1000), true},
		"UDP of IPv6":                 {newSeveral(t, true, udp, 3000, 1000), true},
		"TCP of IPv6 as of IPv4":      {off(true, tcp, func(o *Offload) { o.GSO = GSOTCP4 }), false},
		"TCP of IPv4 as of IPv6":      {off(false, tcp, func(o *Offload) { o.GSO = GSOTCP6 }), false},
		"TCP as UDP":                  {off(false, tcp, as(GSOUDP, udpCheckAt)), false},
		"UDP as TCP":                  {off(false, udp, as(GSOTCP4, tcpCheckAt)), false},
		"TCP, checksum elsewhere":     {off(false, tcp, func(o *Offload) { o.CsumOffset -= 2 }), false},
		"UDP, checksum elsewhere":     {off(false, udp, func(o *Offload) { o.CsumOffset -= 2 }), false},
		"TCP, less is summed":         {off(false, tcp, func(o *Offload) { o.CsumStart += 2 }), false},
		"UDP, less is summed":         {off(false, udp, func(o *Offload) { o.CsumStart += 2 }), false},
		"a flag without a kind":       {off(false, tcp, func(o *Offload) { *o = Offload{GSO: GSOECN} }), false},
		"no size":                     {off(false, tcp, func(o *Offload) { o.Size = 0 }), false},
		"a header of 16 bytes":        {with(false, tcp, header(4)), false},
		"a header of 20 bytes":        {with(false, tcp, header(5)), true},
		"a byte of payload":           {long(41), true},
		"no payload":                  {long(40), false},
		"a datagram of a byte":        {newSeveral(t, false, udp, 1, 48), true},
		"a datagram of none":          {newSeveral(t, false, udp, 0, 48), false},
		"a fragment":                  {with(false, udp, func(s *several) { fragmented(s.f) }), false},
		"128 datagrams of 7 bytes":    {newSeveral(t, false, udp, 128*7-udpLen, 7), true},
		"a byte more":                 {newSeveral(t, false, udp, 128*7-udpLen+1, 7), false},
		"128 datagrams of 47 bytes":   {newSeveral(t, true, udp, 128*47-udpLen, 47), true},
		"a byte more than that":       {newSeveral(t, true, udp, 128*47-udpLen+1, 47), false},
		"any number of 48 bytes":      {newSeveral(t, true, udp, 200*48, 48), true},
		"headers of 256 bytes":        {newSeveral(t, true, udp, 3000, 1000).extend(208), true},
		"headers of 264 bytes":        {newSeveral(t, true, udp, 3000, 1000).extend(216), false},
		"TCP that is cut off":         {cutOff(t, Offload{GSO: GSOTCP4, Size: 100, CsumStart: 34, CsumOffset: 16}), false},
		"one that is not to be cut":   {cutOff(t, Offload{NeedsCsum: true, CsumStart: 34}), true},
		"behind its end, a byte":      {cutOff(t, Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 4}), false},
		"a checksum of its last word": {cutOff(t, Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 3}), true},
	} {
		n := newNet(t)
		packets := n.send(tc.s.f, tc.s.off)
		if len(packets) != 0 != tc.ok || !tc.ok && n.a.Drops[DropOffload] != 1 {
			t.Errorf("%s: %d packets, %v", name, len(packets), n.g.Stats().Reasons)
		}
		for i, p := range packets {
			if h, why := parseIP(p); why != none || tc.s.off.GSO != GSONone && !h.l4Valid(p) {
				t.Errorf("%s: packet %d: %v, %+v", name, i, why, h)
			}
		}
	}
}

// cutOff returns a TCP packet that contains only five bytes of its TCP header.
func cutOff(t *testing.T, off Offload) *several {
	s := newSeveral(t, false, layers.IPProtocolTCP, 100, 50)
	return &several{shorten(s.f[:ethLen+ipv4Len+5]), off, s.l4}
}

// TestCutsFit: TCP segments become as short as the path needs, down to eight bytes. A datagram
// keeps its length.
func TestCutsFit(t *testing.T) {
	for _, tc := range []struct {
		proto              layers.IPProtocol
		mtu, payload, size int
		packets            int
	}{
		{layers.IPProtocolTCP, 48, 100, 50, 13},
		{layers.IPProtocolTCP, 47, 100, 50, 0},
		{layers.IPProtocolTCP, 90, 100, 50, 2},
		{layers.IPProtocolTCP, 89, 100, 50, 3},
		{layers.IPProtocolUDP, 78, 100, 50, 2},
		{layers.IPProtocolUDP, 77, 100, 50, 0},
		{layers.IPProtocolUDP, 128, 100, 5000, 1}, // it is shorter than its size
		{layers.IPProtocolUDP, 127, 100, 5000, 0},
	} {
		n := newNet(t)
		n.g.routes.Learn(2, []Address{{7, ipC, 0x020001, tc.mtu}})
		s := newSeveral(t, false, tc.proto, tc.payload, tc.size)
		packets := n.send(s.f, s.off)
		if len(packets) != tc.packets || tc.packets == 0 && n.a.Drops[DropTooBig] != 1 {
			t.Errorf("%v, %+v: %d packets", tc.proto, tc, len(packets))
		}
		for _, p := range packets {
			if len(p) > tc.mtu {
				t.Errorf("%v, %+v: a packet of %d bytes", tc.proto, tc, len(p))
			}
		}
	}
}

// TestWindowReduced: CWR is set in the first segment only, if the frame has the ECN flag, else in
// all.
func TestWindowReduced(t *testing.T) {
	for _, once := range []bool{false, true} {
		f, off := whole(t, ipA, ipC, layers.IPProtocolTCP, 0, 3000, 1000, tcpCWR)
		if once {
			off.GSO |= GSOECN
		}
		packets := newNet(t).send(f, off)
		if len(packets) != 3 {
			t.Fatalf("%d packets", len(packets))
		}
		for i, p := range packets {
			if says := p[ipv4Len+13]&tcpCWR != 0; says != (i == 0 || !once) {
				t.Errorf("once %t: packet %d says it: %t", once, i, says)
			}
		}
	}
}

// TestChecksumOfZero: TCP sends a checksum of 0 unchanged. UDP sends it as 0xffff, because 0 means
// that there is none (RFC 768).
func TestChecksumOfZero(t *testing.T) {
	for _, proto := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		for _, to := range []netip.Addr{ipC, v6C} {
			for _, cut := range []bool{false, true} {
				s := newSeveral(t, to.Is6(), proto, 100, 1000)
				b := s.f[ethLen:]
				h, _ := parseIP(b)
				at := h.l4 + int(s.off.CsumOffset)
				open := binary.BigEndian.Uint16(b[at:]) // sum of the pseudo header
				missing := fold(uint32(binary.BigEndian.Uint16(b[len(b)-2:])) + uint32(^sum(b[h.l4:])))
				binary.BigEndian.PutUint16(b[len(b)-2:], missing)
				if got := binary.BigEndian.Uint16(b[at:]); got != open || sum(b[h.l4:]) != 0xffff {
					t.Fatalf("the sum is %#x", sum(b[h.l4:]))
				}
				if !cut {
					s.off.GSO, s.off.Size = GSONone, 0
				}
				packets := newNet(t).send(s.f, s.off)
				if len(packets) != 1 {
					t.Fatalf("%d packets", len(packets))
				}
				want := uint16(0)
				if proto == layers.IPProtocolUDP {
					want = 0xffff
				}
				if got := binary.BigEndian.Uint16(packets[0][at:]); got != want || !h.l4Valid(packets[0]) {
					t.Errorf("%v to %s, cut %t: checksum %#x, want %#x", proto, to, cut, got, want)
				}
			}
		}
	}
}

// TestGuestWithoutOffloads: a guest without checksum and segmentation offload gets whole packets. A
// frame that was joined for a guest with offload is lost if such a guest has replaced it.
func TestGuestWithoutOffloads(t *testing.T) {
	n, device := newNet(t), &taking{plain: true}
	n.b.Port = device
	f := udp(t, gwA, macA, ipA, ipB, 100)
	want := bytes.Clone(f[ethLen:])
	h, _ := parseIP(want)
	binary.BigEndian.PutUint16(f[ethLen+h.l4+udpCheckAt:], fold(h.pseudo(want, h.total-h.l4)))
	n.send(f, Offload{NeedsCsum: true, CsumStart: ethLen + ipv4Len, CsumOffset: udpCheckAt})
	n.g.Deliver(func(*PortFrame) {})
	if len(device.frames) != 1 || !bytes.Equal(device.frames[0][ethLen:], want) {
		t.Errorf("%d packets: %x\nwant %x", len(device.frames), device.frames, want)
	}

	n, device = receiver(t), &taking{}
	n.a.Port = device
	for i := range 2 {
		n.feed(segment(false, protoTCP, uint32(100*i), 100, nil))
	}
	device.plain = true // another guest
	n.g.Deliver(func(*PortFrame) { t.Error("taken") })
	if len(device.frames) != 0 || n.a.Drops[DropPortFull] != 1 {
		t.Errorf("%d packets, %d dropped", len(device.frames), n.a.Drops[DropPortFull])
	}
}
