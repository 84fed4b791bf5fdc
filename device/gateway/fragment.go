package gateway

import "encoding/binary"

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

// splitTo sends the fragments of a packet to a port of this NIC; p is nil for a port of another
// shard. The fragments are copied, since the port takes them later.
func (g *Gateway) splitTo(flow uint32, to *Target, p *Endpoint, packet []byte, h header, off Offload) Reason {
	f := &g.split
	f.start(packet, h, off, to.MTU, true)
	for b := f.Next(); b != nil; b = f.Next() {
		frame := g.out.copied(b)
		if frame == nil {
			return DropPortFull
		}
		binary.BigEndian.PutUint16(frame[12:], typeIPv4)
		part, why := parseIP(b)
		if why == none {
			why = g.bring(flow, to, p, frame, nil, &part, Offload{})
		}
		if why != none {
			return why
		}
	}
	return none
}

// maxCopied bounds the bytes of fragments that are copied between two calls of Done.
const maxCopied = 256 << 10

// copied returns a frame with a copy of packet, valid until Done, or nil if there is no room.
func (o *output) copied(packet []byte) []byte {
	n := len(o.copies)
	if n+ethLen+len(packet) > maxCopied {
		return nil
	}
	if o.copies == nil {
		o.copies = make([]byte, 0, maxCopied)
	}
	o.copies = o.copies[:n+ethLen+len(packet)]
	frame := o.copies[n:]
	clear(frame[:ethLen])
	copy(frame[ethLen:], packet)
	return frame
}
