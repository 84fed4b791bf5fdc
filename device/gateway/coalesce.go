package gateway

import (
	"bytes"
	"encoding/binary"

	"github.com/falcon-vnic/vnic/internal/checksum"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// coalesced describes a frame that packets of one flow join (generic receive offload). Their
// payloads follow the first packet's.
type coalesced struct {
	open    bool
	h       header
	headers int    // length of the headers in front of the payload
	size    int    // payload of each packet but the last
	total   int    // length of the whole as one IP packet
	next    uint32 // TCP: sequence number that would follow
	id      uint16 // IPv4: identification that would follow
	push    bool
}

// maxRecent is the number of flows that can be joined at the same time.
const maxRecent = 8

// joinOrQueue queues a packet for a port, joined to earlier packets of its flow if possible.
func (o *output) joinOrQueue(p *Endpoint, frame []byte, h *header) Reason {
	p.ethernet(frame, o.asks.macOf(p, h.dst), h.etherType())
	joined, ok := o.join(p, frame, h)
	if !ok {
		return DropPortFull
	}
	if joined {
		o.stats.Coalesced++
	}
	return none
}

// join adds a packet to the frames for a port: to the previous frame of its flow if it continues
// that frame, else as a new frame. frame holds room for an Ethernet header, then the packet.
func (o *output) join(p *Endpoint, frame []byte, h *header) (joined, ok bool) {
	b := frame[ethLen:]
	headers, fits := joinable(p, b, h)
	fits = o.tape.Bool(tape.Sound, fits) // a tape may not have what the checksum covers
	for i, at := range o.recent {
		if at < 0 {
			break
		}
		f := &o.frames[at]
		if f.To != p || !f.c.sameFlow(f.packet(), b, h) {
			continue
		}
		if fits && f.c.follows(f.packet(), b, headers) && o.append(f, b, headers) {
			if !f.c.open {
				o.forget(i)
			}
			return true, true
		}
		o.forget(i) // later packets must not overtake this one
		break
	}
	if !o.add(p, frame, nil, Offload{}) {
		return false, false
	}
	if fits {
		o.begin(len(o.frames)-1, b, h, headers)
	}
	return false, true
}

func (f *PortFrame) packet() []byte { return f.one[0][ethLen:] }

// joinable reports whether a packet may be joined with others, and returns the length of its
// headers. It must have plain headers, no special flags, a payload and valid checksums, which
// nobody verifies after the gateway.
func joinable(p *Endpoint, b []byte, h *header) (headers int, ok bool) {
	if h.fragment || h.l4 != ipv4Len && !h.v6 || h.l4 != ipv6Len && h.v6 {
		return 0, false
	}
	l4 := b[h.l4:h.total]
	switch h.proto {
	case protoTCP:
		if len(l4) < tcpLen {
			return 0, false
		}
		doff := int(l4[12]>>4) * 4
		if doff < tcpLen || len(l4) <= doff || l4[12]&0xf != 0 || l4[13]&^tcpPSH != tcpACK {
			return 0, false
		}
		kind := Offload{GSO: GSOTCP4, NeedsCsum: true}
		if h.v6 {
			kind.GSO = GSOTCP6
		}
		if !p.accepts(kind) {
			return 0, false
		}
		headers = h.l4 + doff
	case protoUDP:
		if !p.USO || !p.accepts(Offload{GSO: GSOUDP, NeedsCsum: true}) || len(l4) <= udpLen || int(binary.BigEndian.Uint16(l4[4:])) != len(l4) || l4[6]|l4[7] == 0 {
			return 0, false
		}
		headers = h.l4 + udpLen
	default:
		return 0, false
	}
	return headers, h.l4Valid(b)
}

// begin lets later packets join the frame.
func (o *output) begin(at int, b []byte, h *header, headers int) {
	f := &o.frames[at]
	f.c = coalesced{open: true, h: *h, headers: headers, size: h.total - headers, total: h.total}
	if h.proto == protoTCP {
		t := b[h.l4:]
		f.c.next = binary.BigEndian.Uint32(t[4:]) + uint32(f.c.size)
		if t[13]&tcpPSH != 0 {
			f.c.open = false
			return
		}
	}
	if !h.v6 {
		f.c.id = binary.BigEndian.Uint16(b[4:]) + 1
	}
	copy(o.recent[1:], o.recent[:])
	o.recent[0] = at
}

func (o *output) forget(i int) {
	o.frames[o.recent[i]].c.open = false
	copy(o.recent[i:], o.recent[i+1:])
	o.recent[len(o.recent)-1] = -1
}

// sameFlow reports whether b has the same addresses, protocol and ports.
func (c *coalesced) sameFlow(first, b []byte, h *header) bool {
	if h.v6 != c.h.v6 || h.proto != c.h.proto || h.total < h.l4+4 || h.fragment {
		return false
	}
	addrs, end := 12, 20
	if h.v6 {
		addrs, end = 8, 40
	}
	return bytes.Equal(first[addrs:end], b[addrs:end]) && bytes.Equal(first[c.h.l4:c.h.l4+4], b[h.l4:h.l4+4])
}

// follows reports whether packet b continues the frame: it differs from the first packet only in
// fields that may differ between packets of one frame.
func (c *coalesced) follows(first, b []byte, headers int) bool {
	if headers != c.headers {
		return false
	}
	if c.h.v6 {
		if !bytes.Equal(first[:4], b[:4]) || !bytes.Equal(first[6:8], b[6:8]) {
			return false
		}
	} else {
		if !bytes.Equal(first[:2], b[:2]) || !bytes.Equal(first[6:9], b[6:9]) {
			return false
		}
		if !c.h.df && binary.BigEndian.Uint16(b[4:]) != c.id {
			return false
		}
	}
	if c.h.proto != protoTCP {
		return true
	}
	x, y := first[c.h.l4:], b[c.h.l4:]
	return binary.BigEndian.Uint32(y[4:]) == c.next && bytes.Equal(x[8:13], y[8:13]) && bytes.Equal(x[14:16], y[14:16]) &&
		bytes.Equal(x[18:headers-c.h.l4], y[18:headers-c.h.l4])
}

// append adds the payload of b to the frame. It returns false if there is no room, or if the
// payload is longer than those before.
func (o *output) append(f *PortFrame, b []byte, headers int) bool {
	c := &f.c
	n := len(b) - headers
	if n > c.size || c.total+n > 0xffff || !c.h.v6 && c.h.proto == protoUDP && c.total+n > 0xffff-ipv4Len {
		return false
	}
	if f.list < 0 {
		if o.used == maxLists {
			return false
		}
		f.list = o.used
		o.used++
		o.lists[f.list][0] = f.one[0]
		f.Parts = o.lists[f.list][:1]
	}
	limit := maxParts
	if c.h.proto == protoUDP {
		limit = maxUDPParts
	}
	if len(f.Parts) == limit {
		return false
	}
	f.Parts = append(f.Parts, b[headers:])
	c.total += n
	c.next += uint32(n)
	c.id++
	if c.h.proto == protoTCP && b[c.h.l4+13]&tcpPSH != 0 {
		c.push = true
	}
	if n < c.size || c.push {
		c.open = false
	}
	return true
}

// maxUDPParts is the number of datagrams in one frame that every Linux with UDP segmentation
// accepts.
const maxUDPParts = 64

// finish writes the headers of a frame that stands for several packets.
func (f *PortFrame) finish() {
	c := &f.c
	b := f.packet()
	if c.h.v6 {
		binary.BigEndian.PutUint16(b[4:], uint16(c.total-ipv6Len))
	} else {
		binary.BigEndian.PutUint16(b[2:], uint16(c.total))
		finishIPv4(b, c.h.l4)
	}
	l4 := b[c.h.l4:]
	at := udpCheckAt
	f.GSO = GSOUDP
	if c.h.proto == protoTCP {
		at, f.GSO = tcpCheckAt, GSOTCP4
		if c.h.v6 {
			f.GSO = GSOTCP6
		}
		if c.push {
			l4[13] |= tcpPSH
		}
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(c.total-c.h.l4))
	}
	binary.BigEndian.PutUint16(l4[at:], checksum.Fold(c.h.pseudo(b, c.total-c.h.l4)))
	f.NeedsCsum, f.Size = true, uint16(c.size)
	f.CsumStart, f.CsumOffset = uint16(ethLen+c.h.l4), uint16(at)
}
