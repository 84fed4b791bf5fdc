package gateway

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/ip4defrag"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/internal/allocs"
	"github.com/falcon-vnic/vnic/internal/checksum"
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
	binary.BigEndian.PutUint16(b[h.l4+int(off.CsumOffset):], checksum.Fold(h.pseudo(b, h.total-h.l4)))
	return f, off
}

// A checksum that the guest left incomplete is completed.
func TestAPartialChecksumIsCompleted(t *testing.T) {
	for _, to := range []netip.Addr{ipC, v6C} {
		from := ipA
		if to.Is6() {
			from = v6A
		}
		f := udp(t, gwA, macA, from, to, 101)
		want := bytes.Clone(f[ethLen:])
		h, _ := parseIP(f[ethLen:])
		binary.BigEndian.PutUint16(f[ethLen+h.l4+6:], checksum.Fold(h.pseudo(f[ethLen:], h.total-h.l4)))
		n := newNet(t)
		p := n.send(f, Offload{NeedsCsum: true, CsumStart: uint16(ethLen + h.l4), CsumOffset: 6})
		if len(p) != 1 || !bytes.Equal(p[0], want) {
			t.Errorf("%x\nwant %x", p, want)
		}
	}
}

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

// TestAnOffloadMustMatchItsFrame: a frame's offload must match the frame's protocol and refer to headers that it
// contains. Each resulting packet is correct.
func TestAnOffloadMustMatchItsFrame(t *testing.T) {
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

// TestSegmentsFitThePath: TCP segments become as short as the path needs, down to eight bytes. A
// datagram keeps its length.
func TestSegmentsFitThePath(t *testing.T) {
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

// TestCWRIsInTheFirstSegmentOnly: CWR is set in the first segment only, if the frame has the ECN
// flag, else in all.
func TestCWRIsInTheFirstSegmentOnly(t *testing.T) {
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

// TestUDPSendsNoZeroChecksum: TCP sends a checksum of 0 unchanged. UDP sends it as 0xffff, because
// 0 means that there is none (RFC 768).
func TestUDPSendsNoZeroChecksum(t *testing.T) {
	for _, proto := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		for _, to := range []netip.Addr{ipC, v6C} {
			for _, cut := range []bool{false, true} {
				s := newSeveral(t, to.Is6(), proto, 100, 1000)
				b := s.f[ethLen:]
				h, _ := parseIP(b)
				at := h.l4 + int(s.off.CsumOffset)
				open := binary.BigEndian.Uint16(b[at:]) // sum of the pseudo header
				missing := checksum.Fold(uint32(binary.BigEndian.Uint16(b[len(b)-2:])) + uint32(^checksum.Sum(b[h.l4:])))
				binary.BigEndian.PutUint16(b[len(b)-2:], missing)
				if got := binary.BigEndian.Uint16(b[at:]); got != open || checksum.Sum(b[h.l4:]) != 0xffff {
					t.Fatalf("the sum is %#x", checksum.Sum(b[h.l4:]))
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
		if hlen := int(b[0]&0xf) * 4; checksum.Sum(b[:hlen]) != 0xffff {
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

// TestFragmentsReassembleToThePacket: an IPv4 packet that may be fragmented and is longer than the
// path's MTU arrives in fragments that fit and that reassemble to the packet: at a peer, at a port
// of this shard or another, and at a port from a peer. A packet that may not be fragmented is
// dropped, and its sender gets an error.
func TestFragmentsReassembleToThePacket(t *testing.T) {
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

// TestEachDatagramOfAFrameIsFragmented: if a frame stands for several datagrams, each datagram that
// is too long for the path is fragmented and keeps its length.
func TestEachDatagramOfAFrameIsFragmented(t *testing.T) {
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
		case p == nil || len(b) > 600 || checksum.Sum(b[:int(p.IHL)*4]) != 0xffff:
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
	if got := allocs.PerRun(50, turn); got != 0 {
		t.Errorf("%v allocations", got)
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
	if got := allocs.PerRun(50, func() {
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
