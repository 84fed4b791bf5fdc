package gateway

import "encoding/binary"

// Next returns the next packet to seal, or nil when there is none left. A packet longer than the
// path's MTU is split if it may be (fragment.go).
func (f *Forward) Next() []byte {
	if b := f.fragments.next(); b != nil {
		return b
	}
	b := f.whole()
	if f.most == 0 || len(b) <= f.most {
		return b
	}
	f.fragments.begin(b, f.most)
	return f.fragments.next()
}

// start begins with a packet. Its pieces must fit max; if split is true, longer ones are
// fragmented.
func (f *Forward) start(packet []byte, h header, off Offload, max int, split bool) {
	f.Packet, f.h, f.off, f.max, f.Class, f.Flow = packet, h, off, max, h.class, h.flow(packet)
	f.at, f.index, f.most, f.fragments.packet = 0, 0, 0, nil
	if split {
		f.most = max
	}
}

// whole returns the next packet. A frame that stands for several is cut here, once, into packets of
// the size that its sender asked for or, for TCP, that the path carries if that is less. The
// headers of each packet are written in front of its payload, over the end of the previous payload:
// a packet is overwritten when the next one is requested.
//
//	headers | payload 1 | payload 2 | payload 3
//	          headers 2 ┘ headers 3 ┘
func (f *Forward) whole() []byte {
	switch {
	case f.at < 0:
		return nil
	case f.off.gso() == GSONone:
		f.at = -1
		f.off.complete(f.Packet, f.h.proto)
		return f.Packet
	case f.at == 0:
		f.begin()
	}
	return f.cut()
}

// cutter holds the state of cutting one frame.
type cutter struct {
	at      int // offset of the next payload in the packet; -1: done
	headers int
	size    int // payload of each packet but the last
	keep    [maxHeaders]byte
	index   int
}

// maxHeaders is the room for IPv4 with options, or IPv6 with some extensions, and TCP with options.
const maxHeaders = 256

// complete writes the checksum that the packet's sender left open.
func (o *Offload) complete(packet []byte, proto uint8) {
	if !o.NeedsCsum {
		return
	}
	start := int(o.CsumStart) - ethLen
	at := start + int(o.CsumOffset)
	c := ^sum(packet[start:])
	if c == 0 && proto == protoUDP {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(packet[at:], c)
}

func (f *Forward) begin() {
	f.headers = l4Headers(f.Packet, &f.h)
	f.size = f.segment(f.headers)
	f.at = f.headers
	copy(f.keep[:], f.Packet[:f.headers])
}

// cut returns the packet whose payload begins at f.at.
func (f *Forward) cut() []byte {
	end := min(f.at+f.size, len(f.Packet))
	last := end == len(f.Packet)
	b := f.Packet[f.at-f.headers : end]
	copy(b, f.keep[:f.headers])
	l4 := f.h.l4
	if f.h.v6 {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-ipv6Len))
	} else {
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		binary.BigEndian.PutUint16(b[4:], binary.BigEndian.Uint16(b[4:])+uint16(f.index))
		finishIPv4(b, l4)
	}
	h := header{v6: f.h.v6, proto: f.h.proto, l4: l4, total: len(b)}
	if f.h.proto == protoTCP {
		t := b[l4:]
		binary.BigEndian.PutUint32(t[4:], binary.BigEndian.Uint32(t[4:])+uint32(f.at-f.headers))
		if !last {
			t[13] &^= tcpFIN | tcpPSH
		}
		if f.index > 0 && f.off.GSO&GSOECN != 0 {
			t[13] &^= tcpCWR
		}
		finishL4(b, &h, tcpCheckAt)
	} else {
		binary.BigEndian.PutUint16(b[l4+4:], uint16(len(b)-l4))
		finishL4(b, &h, udpCheckAt)
	}
	f.at = end
	f.index++
	if last {
		f.at = -1
	}
	return b
}

const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10
	tcpCWR = 0x80
)

// segment returns the payload size of each packet. A datagram that will be fragmented keeps its
// length.
func (f *Forward) segment(headers int) int {
	if f.most > 0 {
		return int(f.off.Size)
	}
	return min(int(f.off.Size), f.max-headers)
}

// Packets returns the number of packets that the frame stands for.
func (f *Forward) Packets() int {
	if f.off.gso() == GSONone {
		return 1
	}
	headers := l4Headers(f.Packet, &f.h)
	size := f.segment(headers)
	return (len(f.Packet) - headers + size - 1) / size
}

// l4Headers returns the length of all headers in front of the payload of TCP or UDP.
func l4Headers(b []byte, h *header) int {
	if h.proto == protoTCP {
		return h.l4 + int(b[h.l4+12]>>4)*4
	}
	return h.l4 + udpLen
}

// Forward is a packet on its way from a port.
type Forward struct {
	Tunnel *Tunnel // where it goes
	Packet []byte  // the inner IP packet, part of the frame
	Flow   uint32  // hash of the fields that identify a flow
	Class  uint8   // TOS or traffic class of the packet, for the outer header (RFC 2983 §3.1, RFC 6040 §4.1)

	h   header
	off Offload
	max int // longest packet that fits
	cutter
	most      int // maximum length of a fragment; 0: packets are not split
	fragments splitter

	tunnels *Tunnels
	tenant  uint32
	peers   []uint8 // of the tenant that have yet to get a copy of a multicast packet
}
