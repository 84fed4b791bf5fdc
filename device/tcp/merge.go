package tcp

import (
	"bytes"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// maxPacket is the longest IP packet.
const maxPacket = 0xffff

// arrivals are packets that arrived since the last Step.
type arrivals struct {
	list   []arrival
	memory int // bytes that they hold
}

// maxArrivals bounds the memory of packets that wait.
const maxArrivals = 256 << 10

// arrival is a packet, and the data of those behind it that continue it. gVisor gets them as one packet (generic
// receive offload): to handle a segment costs it as much as to copy tens of kilobytes.
//
//	IP, TCP   data    data        data
//	headers │ first │ the next │ the next
//	        └────────── data ───────────┘
type arrival struct {
	f       *function
	id      stack.TransportEndpointID
	headers *buffer.View // without the data: gVisor copies the whole view in which it reads a header
	ip      int          // length of the IP header in it
	data    *buffer.View // nil: there is none
	several bool         // data is that of several packets
	next    uint32       // sequence number of what would continue it
	closed  bool         // nothing may
}

// Take takes an IP packet that arrived for a function. Those of a Step are handled together.
func (s *Stack) Take(function uint32, b []byte) {
	if s.told(tellTake, int(function), len(b)); s.plays {
		return
	}
	if f := s.functions[function]; f != nil {
		f.arrived(b)
	}
}

// arrived takes a packet, if it is a whole TCP segment for the function with a right checksum. Its data is read and
// copied while it is in the processor's cache.
func (f *function) arrived(b []byte) {
	src, at, segment, ok := f.parse(b)
	if !ok {
		f.s.counts.wrong.Add(1)
		return
	}
	a := &f.s.arrived
	if n := len(a.list); n > 0 {
		if more, ok := a.list[n-1].absorb(f, b[:at], segment); ok {
			a.memory += more
			return
		}
	}
	if a.memory >= maxArrivals {
		f.s.takeArrived()
	}
	x := newArrival(f, src, b[:at], segment)
	a.list = append(a.list, x)
	a.memory += x.headers.Capacity() + capacity(x.data)
}

// takeArrived has gVisor handle what arrived.
func (s *Stack) takeArrived() {
	a := &s.arrived
	for i := range a.list {
		s.guarded(func() { s.deliver(&a.list[i]) })
	}
	s.guarded(s.letGo)
	clear(a.list)
	a.list, a.memory = a.list[:0], 0
}

// capacity returns the bytes that a view holds.
func capacity(v *buffer.View) int {
	if v == nil {
		return 0
	}
	return v.Capacity()
}

// newArrival begins with a packet, which others may continue if it is data alone.
func newArrival(f *function, src netip.Addr, ip []byte, segment header.TCP) arrival {
	offset := int(segment.DataOffset())
	at := min(max(offset, header.TCPMinimumSize), len(segment))
	x := arrival{f: f, ip: len(ip), headers: buffer.NewView(len(ip) + at)}
	x.id = stack.TransportEndpointID{LocalPort: segment.DestinationPort(), LocalAddress: tcpAddr(f.addr), RemotePort: segment.SourcePort(), RemoteAddress: tcpAddr(src)}
	_, _ = x.headers.Write(ip)
	_, _ = x.headers.Write(segment[:at])
	if at < len(segment) {
		x.data = buffer.NewViewWithData(segment[at:])
	}
	x.closed = !plain(segment) || offset != at || x.data == nil || f.addr.Is4() && len(ip) != header.IPv4MinimumSize
	x.next = segment.SequenceNumber() + uint32(len(segment)-at)
	return x
}

// plain reports whether a segment changes nothing about the connection.
func plain(segment header.TCP) bool { return segment.Flags()&^header.TCPFlagPsh == header.TCPFlagAck }

// absorb adds the next packet, if it differs from those before in nothing but its data and its place in the
// stream, and reports whether it did. more is how much memory that took.
func (x *arrival) absorb(f *function, ip []byte, segment header.TCP) (more int, ok bool) {
	if x.closed || x.f != f || x.next != segment.SequenceNumber() {
		return 0, false
	}
	headers := x.headers.AsSlice()
	first := header.TCP(headers[x.ip:])
	at := len(first)
	switch {
	case len(segment) <= at || len(headers)+x.data.Size()+len(segment)-at > maxPacket:
		return 0, false
	case !sameIP(headers[:x.ip], ip) || !bytes.Equal(first[:4], segment[:4]) || !bytes.Equal(first[8:13], segment[8:13]):
		return 0, false
	case (first[13]^segment[13])&^byte(header.TCPFlagPsh) != 0 || !bytes.Equal(first[14:16], segment[14:16]) || !bytes.Equal(first[18:], segment[18:at]):
		return 0, false
	}
	first[13] |= segment[13]
	data, had := segment[at:], x.data.Capacity()
	if x.data.AvailableSize() < len(data) { // more will follow
		const factor = 8
		longer := buffer.NewView(min(factor*(x.data.Size()+len(data)), buffer.MaxChunkSize))
		_, _ = longer.Write(x.data.AsSlice())
		x.data.Release()
		x.data = longer
	}
	_, _ = x.data.Write(data)
	x.several = true
	x.next += uint32(len(data))
	return x.data.Capacity() - had, true
}

// sameIP reports whether two headers of the same family differ in nothing but length, identification and
// checksum.
func sameIP(a, b []byte) bool {
	switch {
	case len(a) != len(b):
		return false
	case len(a) == header.IPv4MinimumSize:
		return bytes.Equal(a[:2], b[:2]) && bytes.Equal(a[6:10], b[6:10]) && bytes.Equal(a[12:], b[12:])
	}
	return bytes.Equal(a[:4], b[:4]) && bytes.Equal(a[6:], b[6:])
}

// deliver gives gVisor a packet. It reads what the peer acknowledges.
func (s *Stack) deliver(x *arrival) {
	f := x.f
	if f.dispatcher == nil || s.functions[f.id] != f {
		return
	}
	segment := header.TCP(x.headers.AsSlice()[x.ip:])
	of := flow{x.id.LocalPort, netip.AddrPortFrom(netipAddr(x.id.RemoteAddress), x.id.RemotePort)}
	if segment.Flags().Contains(header.TCPFlagAck) {
		f.acknowledged(of, segment.AckNumber())
	}
	if segment.Flags().Contains(header.TCPFlagSyn) {
		f.offered(of, segment)
	}
	if x.several {
		x.lengthen()
	}
	var payload buffer.Buffer
	if x.data != nil {
		payload = buffer.MakeWithView(x.data)
	}
	_ = payload.Prepend(x.headers)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: payload})
	s.handle(f, x.id, pkt, plain(segment))
	pkt.DecRef()
}

// lengthen writes the length of the whole packet into the IP header. TCP's checksum was checked for each
// packet.
func (x *arrival) lengthen() {
	b, n := x.headers.AsSlice(), x.headers.Size()+x.data.Size()
	if x.f.addr.Is6() {
		header.IPv6(b).SetPayloadLength(uint16(n - header.IPv6MinimumSize))
		return
	}
	ip := header.IPv4(b)
	ip.SetTotalLength(uint16(n))
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
}
