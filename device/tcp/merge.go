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
	memory []byte
	list   []arrival
}

type arrival struct {
	function uint32
	packet   []byte // in memory
}

// maxArrivals bounds the bytes that wait.
const maxArrivals = 256 << 10

// Take takes an IP packet that arrived for a function. Those of a Step are handled together.
func (s *Stack) Take(function uint32, b []byte) {
	if s.told(tellTake, int(function), len(b)); s.plays {
		return
	}
	a := &s.arrived
	if a.memory == nil {
		a.memory = make([]byte, 0, maxArrivals)
	}
	if len(a.memory)+len(b) > maxArrivals {
		s.takeArrived()
	}
	at := len(a.memory)
	a.memory = append(a.memory, b...)
	a.list = append(a.list, arrival{function, a.memory[at:]})
}

// takeArrived has gVisor handle what arrived.
func (s *Stack) takeArrived() {
	a := &s.arrived
	for _, x := range a.list {
		if f := s.functions[x.function]; f != nil {
			s.guarded(func() { f.arrived(x.packet) })
		}
	}
	s.guarded(s.deliver)
	a.memory, a.list = a.memory[:0], a.list[:0]
}

// merged is a packet that arrived, and the data of those behind it that continue it. gVisor gets them as one
// packet (generic receive offload): to handle a segment costs it as much as to copy tens of kilobytes.
//
//	ip, tcp | data        data        data
//	first ──────────┘     more[0]     more[1]
type merged struct {
	f      *function // nil: there is none
	id     stack.TransportEndpointID
	ip     []byte // header; this and the others are in arrivals.memory
	first  header.TCP
	data   int // where in first its data begins
	more   [][]byte
	length int    // of the packet
	next   uint32 // sequence number of what would continue it
	closed bool   // nothing may
}

// begin makes a packet the one that others may continue: if it is data alone.
func (m *merged) begin(f *function, src netip.Addr, ip []byte, segment header.TCP) {
	at := int(segment.DataOffset())
	id := stack.TransportEndpointID{LocalPort: segment.DestinationPort(), LocalAddress: tcpAddr(f.addr), RemotePort: segment.SourcePort(), RemoteAddress: tcpAddr(src)}
	*m = merged{f: f, id: id, ip: ip, first: segment, data: at, more: m.more[:0], length: len(ip) + len(segment)}
	plain := segment.Flags()&^header.TCPFlagPsh == header.TCPFlagAck
	if m.closed = !plain || at < header.TCPMinimumSize || at >= len(segment) || f.addr.Is4() && len(ip) != header.IPv4MinimumSize; !m.closed {
		m.next = segment.SequenceNumber() + uint32(len(segment)-at)
	}
}

// takes adds a packet that differs in nothing but its place in the stream, and its data, and reports whether it
// is one.
func (m *merged) takes(f *function, ip []byte, segment header.TCP) bool {
	at := m.data
	switch {
	case m.f != f || m.closed || m.next != segment.SequenceNumber() || len(segment) <= at || m.length+len(segment)-at > maxPacket:
		return false
	case !sameIP(m.ip, ip) || !bytes.Equal(m.first[:4], segment[:4]) || !bytes.Equal(m.first[8:13], segment[8:13]):
		return false
	case (m.first[13]^segment[13])&^byte(header.TCPFlagPsh) != 0 || !bytes.Equal(m.first[14:16], segment[14:16]) || !bytes.Equal(m.first[18:at], segment[18:at]):
		return false
	}
	m.first[13] |= segment[13]
	m.more = append(m.more, segment[at:])
	m.length += len(segment) - at
	m.next += uint32(len(segment) - at)
	return true
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

// deliver gives gVisor the packet.
func (s *Stack) deliver() {
	m := &s.merged
	f := m.f
	if m.f = nil; f == nil || f.dispatcher == nil {
		return
	}
	if len(m.more) > 0 {
		m.lengthen(f)
	}
	at := min(m.data, len(m.first))
	headers := buffer.NewView(len(m.ip) + at) // alone: gVisor copies the whole view that it reads a header of
	_, _ = headers.Write(m.ip)
	_, _ = headers.Write(m.first[:at])
	data := buffer.NewView(m.length - len(m.ip) - at)
	_, _ = data.Write(m.first[at:])
	for _, more := range m.more {
		_, _ = data.Write(more)
	}
	payload := buffer.MakeWithView(data)
	_ = payload.Prepend(headers)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: payload})
	s.handle(f, m.id, pkt)
	pkt.DecRef()
}

// lengthen writes the length of the whole packet into the IP header. TCP's checksum was checked of each.
func (m *merged) lengthen(f *function) {
	if f.addr.Is6() {
		header.IPv6(m.ip).SetPayloadLength(uint16(m.length - header.IPv6MinimumSize))
		return
	}
	ip := header.IPv4(m.ip)
	ip.SetTotalLength(uint16(m.length))
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
}
