package gateway

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/internal/checksum"
)

// GSO kinds of an Offload, as virtio-net numbers them.
const (
	GSONone = 0
	GSOTCP4 = 1
	GSOTCP6 = 4
	GSOUDP  = 5
	GSOECN  = 0x80 // flag beside TCP kinds: CWR stands in the first segment only
)

// Offload is the work that a frame's sender left for others. Offsets count from the Ethernet
// header. It is the part of the virtio-net header that matters here, and converts from and to
// tap.Offload.
type Offload struct {
	GSO        uint8  // kind of a frame that stands for several packets; GSONone
	NeedsCsum  bool   // the checksum at CsumStart+CsumOffset holds the pseudo header's sum only
	Size       uint16 // of each segment's payload, with GSO
	CsumStart  uint16
	CsumOffset uint16
}

// gso returns the kind without the ECN flag.
func (o *Offload) gso() uint8 { return o.GSO &^ GSOECN }

// plain reports whether no offload work is left.
func (o *Offload) plain() bool { return o.GSO == GSONone && !o.NeedsCsum }

// A frame that is cut into very small segments would keep the NIC busy for long. Linux does not use
// TCP segments below 48 bytes. Smaller segments are allowed if the frame makes at most maxCuts.
const (
	minSegment = 48
	maxCuts    = 128
)

// checkAgainst reports whether an offload fits its packet, all headers of which are in b. A checksum may
// be written into the upper layer only: the headers before it were checked and must leave
// unchanged.
func (o *Offload) checkAgainst(b []byte, h *header) Reason {
	start, at := int(o.CsumStart)-ethLen, int(o.CsumStart)-ethLen+int(o.CsumOffset)
	if o.NeedsCsum && (start < h.l4 || at+2 > h.total) {
		return DropOffload
	}
	switch o.gso() {
	case GSONone:
		if o.GSO != GSONone { // the ECN flag without TCP segmentation, which no receiver's kernel accepts
			return DropOffload
		}
		return none
	case GSOTCP4, GSOTCP6:
		if h.proto != protoTCP || h.v6 != (o.gso() == GSOTCP6) || h.total < h.l4+tcpLen || o.CsumOffset != tcpCheckAt {
			return DropOffload
		}
		if doff := int(b[h.l4+12]>>4) * 4; doff < tcpLen || h.l4+doff >= h.total {
			return DropOffload
		}
	case GSOUDP:
		if h.proto != protoUDP || h.total <= h.l4+udpLen || o.CsumOffset != udpCheckAt {
			return DropOffload
		}
	default:
		return DropOffload
	}
	if o.Size < minSegment && h.total-h.l4 > maxCuts*int(o.Size) { // also without a size
		return DropOffload
	}
	if h.fragment || !o.NeedsCsum || start != h.l4 || l4Headers(b, h) > maxHeaders {
		return DropOffload
	}
	return none
}

// fits reports whether a packet, or each packet it is to be cut to, can be at most most bytes long.
// TCP segments may be cut shorter than their sender asked for; datagrams keep their length.
func (o *Offload) fits(b []byte, h *header, most int) bool {
	switch o.gso() {
	case GSONone:
		return h.total <= most
	case GSOUDP:
		return min(h.total, l4Headers(b, h)+int(o.Size)) <= most
	}
	return l4Headers(b, h)+minTCP <= most
}

// minTCP is the least payload of a TCP segment, less than any TCP wants to send at once.
const minTCP = 8

// complete writes the checksum that the packet's sender left open.
func (o *Offload) complete(packet []byte, proto uint8) {
	if !o.NeedsCsum {
		return
	}
	start := int(o.CsumStart) - ethLen
	at := start + int(o.CsumOffset)
	c := ^checksum.Sum(packet[start:])
	if c == 0 && proto == protoUDP {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(packet[at:], c)
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

	at      int // offset of the next payload in Packet; -1: all are cut
	index   int // number of the next packet
	size    int // payload of each packet but the last
	headers int // length of the headers
	keep    [maxHeaders]byte

	most      int // maximum length of a fragment; 0: packets are not split
	fragments splitter

	tunnels *Tunnels
	tenant  uint32
	peers   []groupPeer // of the tenant that have yet to get a copy of a multicast packet
}

// Next returns the next packet to seal, or nil when there is none left. A packet longer than the
// path's MTU is split if it may be.
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

// Left reports whether Next would return a further packet.
func (f *Forward) Left() bool { return f.at >= 0 || len(f.fragments.packet) > 0 }

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

// maxHeaders is the room for IPv4 with options, or IPv6 with some extensions, and TCP with options.
const maxHeaders = 256

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

// An IPv4 packet that may be fragmented and is longer than the path's MTU is sent as fragments (RFC
// 791 §3.2, RFC 1812 §5.2.6), as by any router: not all senders look at ICMP (IP_PMTUDISC_OMIT).
// The header of each fragment is written in front of its payload, over the end of the previous
// fragment, which is overwritten.
//
//	header | payload 1 | payload 2 | payload 3
//	          header 2 ┘  header 3 ┘

// leastIPv4 is the packet length that every path carries without fragmentation (RFC 791 §3.2).
const leastIPv4 = 68

// splits reports whether packet b, or each packet it is to be cut to, may be sent as fragments of
// at most most bytes. A frame may not make more fragments than it may make segments (maxCuts).
func (o *Offload) splits(b []byte, h *header, most int) bool {
	if h.v6 || h.df || most < leastIPv4 {
		return false
	}
	unit := (most - h.l4) &^ 7
	fragments := func(n int) int { return (n + unit - 1) / unit }
	switch o.gso() {
	case GSONone:
		return fragments(h.total-h.l4) <= maxCuts
	case GSOUDP:
		size := int(o.Size)
		datagrams := (h.total - l4Headers(b, h) + size - 1) / size
		return datagrams*fragments(udpLen+size) <= maxCuts
	}
	return false
}

// splitter holds the state of splitting one packet.
type splitter struct {
	packet []byte // empty: done
	at     int    // offset of the next payload; 0: not begun
	most   int    // maximum length of a fragment
	hlen   int    // length of the header of the next fragment
	header [maxIPv4]byte
	field  uint16 // fragment offset and flags for the next fragment; the packet itself may be a fragment
}

// maxIPv4 is the longest header of IPv4.
const maxIPv4 = 60

// begin starts splitting a packet.
func (s *splitter) begin(packet []byte, most int) {
	s.packet, s.at, s.most = packet, 0, most
	s.hlen = int(packet[0]&0xf) * 4
	copy(s.header[:], packet[:s.hlen])
	s.field = binary.BigEndian.Uint16(packet[6:])
}

// next returns the next fragment, or nil when there is none left.
func (s *splitter) next() []byte {
	if len(s.packet) == 0 {
		return nil
	}
	start, first := s.at, s.at == 0
	if first {
		start = s.hlen
	}
	end, field := len(s.packet), s.field
	if s.hlen+end-start > s.most {
		end = start + (s.most-s.hlen)&^7
		field |= moreFragments
	}
	b := s.packet[start-s.hlen : end]
	copy(b, s.header[:s.hlen])
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[6:], field)
	finishIPv4(b, s.hlen)
	s.field += uint16((end - start) / 8)
	if s.at = end; end == len(s.packet) {
		s.packet = nil
	} else if first {
		s.shorten()
	}
	return b
}

const moreFragments = 0x2000

// shorten removes from the header the options that belong in the first fragment only (RFC 791 §3.1:
// copied flag).
func (s *splitter) shorten() {
	n := ipv4Len
	for at := ipv4Len; at < s.hlen; {
		length, kind := 1, s.header[at]
		if kind == 0 {
			break
		}
		if kind != 1 {
			if at+1 == s.hlen {
				break
			}
			if length = int(s.header[at+1]); length < 2 || at+length > s.hlen {
				break
			}
		}
		if kind&0x80 != 0 {
			n += copy(s.header[n:], s.header[at:at+length])
		}
		at += length
	}
	for ; n%4 != 0; n++ {
		s.header[n] = 0
	}
	s.hlen, s.header[0] = n, 0x40|byte(n/4)
}
