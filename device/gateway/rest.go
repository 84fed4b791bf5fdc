package gateway

import "encoding/binary"

// Rest is the end of a frame that its port left in the guest's memory: payload at which nobody has
// looked, and which the guest may change at any time. It is good until the port is read again.
type Rest interface {
	// Len is how many bytes it has.
	Len() int
	// Fetch copies it behind the beginning of the frame, once. False: it cannot be had any more.
	Fetch() bool
}

// Gatherer is a Port that gives its guest a frame whose end is in the memory of another: one copy.
type Gatherer interface {
	// WriteWith is Write of a frame that begins with head.
	WriteWith(head []byte, rest Rest, off Offload) bool
}

// PortInput is a frame that came from a function's port.
type PortInput struct {
	From    *Endpoint
	Frame   []byte // as far as it was copied, Ethernet and IP at least; behind it is room for the rest
	Offload Offload
	Rest    Rest // nil: all was copied
}

// Whole has all of the frame in Frame; false: its end is lost.
func (in *PortInput) Whole() bool { return fetch(&in.Frame, &in.Rest) }

// Whole has all of the frame in Parts; false: its end is lost.
func (f *PortFrame) Whole() bool { return fetch(&f.Parts[0], &f.Rest) }

func fetch(frame *[]byte, rest *Rest) bool {
	r := *rest
	if r == nil {
		return true
	}
	if !r.Fetch() {
		return false
	}
	*frame, *rest = (*frame)[:len(*frame)+r.Len()], nil
	return true
}

// untag takes a priority tag out: a frame whose VLAN identifier is 0 is of no VLAN (IEEE 802.1Q
// §9.6), and the gateway knows no priorities of frames.
func (in *PortInput) untag() {
	f := in.Frame
	if len(f) < ethLen+tagLen || binary.BigEndian.Uint16(f[12:]) != typeVLAN || binary.BigEndian.Uint16(f[14:])&0xfff != 0 {
		return
	}
	copy(f[tagLen:], f[:12])
	in.Frame = f[tagLen:]
	if in.Offload.NeedsCsum {
		in.Offload.CsumStart -= tagLen // from the start of the frame
	}
}

func (in *PortInput) len() int {
	if in.Rest != nil {
		return len(in.Frame) + in.Rest.Len()
	}
	return len(in.Frame)
}

// packet is the IP packet of a frame, as far as it was copied.
func (in *PortInput) packet(h *header) []byte {
	return in.Frame[ethLen:min(ethLen+h.total, len(in.Frame))]
}

// quote is packet, all of it if it can be had.
func (in *PortInput) quote(h *header) []byte {
	in.Whole()
	return in.packet(h)
}

// complete is called when the headers have been parsed as far as they were copied. Only the payload
// of TCP or UDP stays in the guest's memory: not headers that do not end where copying did, nor
// what the gateway may want to look into.
func (in *PortInput) complete(h *header) (why Reason) {
	if h.total == in.len()-ethLen && h.opaque(in.Frame[ethLen:]) {
		return none
	}
	if !in.Whole() {
		return DropTruncated
	}
	*h, why = parseIP(in.Frame[ethLen:])
	return why
}

// opaque tells whether all headers of a packet are in b, and the gateway has no business with what
// is behind them.
func (h *header) opaque(b []byte) bool {
	if h.l4+maxTCP > len(b) {
		return false
	}
	return h.proto == protoTCP || h.proto == protoUDP && binary.BigEndian.Uint16(b[h.l4+2:]) != dhcpServer
}

// maxTCP is the longest header of TCP; UDP's is shorter.
const maxTCP = 60
