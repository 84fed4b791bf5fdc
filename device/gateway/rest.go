package gateway

import "encoding/binary"

// Rest is the end of a frame that its port left in the guest's memory: payload that has not been
// looked at, and that the guest may change at any time. It is valid until the port is read again.
type Rest interface {
	// Len returns the number of bytes.
	Len() int
	// Fetch copies the bytes to directly behind the beginning of the frame. It is called once. It
	// returns false if the bytes are no longer available.
	Fetch() bool
}

// Gatherer is a Port that can send its guest a frame whose end is in another guest's memory, with a
// single copy.
type Gatherer interface {
	// WriteWith is like Write, for a frame that consists of head and rest.
	WriteWith(head []byte, rest Rest, off Offload) bool
}

// PortInput is a frame that came from a function's port.
type PortInput struct {
	From    *Endpoint
	Frame   []byte // the part that was copied, at least Ethernet and IP; its capacity has room for the rest
	Offload Offload
	Rest    Rest // nil: all of the frame was copied
}

// Whole fetches the rest into Frame. It returns false if the rest is lost.
func (in *PortInput) Whole() bool { return fetch(&in.Frame, &in.Rest) }

// Whole fetches the rest into Parts. It returns false if the rest is lost.
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

// untag removes a priority tag: a frame whose VLAN identifier is 0 belongs to no VLAN (IEEE 802.1Q
// §9.6), and the gateway ignores frame priorities.
func (in *PortInput) untag() {
	f := in.Frame
	if len(f) < ethLen+tagLen || binary.BigEndian.Uint16(f[12:]) != typeVLAN || binary.BigEndian.Uint16(f[14:])&0xfff != 0 {
		return
	}
	copy(f[tagLen:], f[:12])
	in.Frame = f[tagLen:]
	if in.Offload.NeedsCsum {
		in.Offload.CsumStart -= tagLen // it counts from the start of the frame
	}
}

func (in *PortInput) len() int {
	if in.Rest != nil {
		return len(in.Frame) + in.Rest.Len()
	}
	return len(in.Frame)
}

// packet returns the IP packet of a frame, as far as it was copied.
func (in *PortInput) packet(h *header) []byte {
	return in.Frame[ethLen:min(ethLen+h.total, len(in.Frame))]
}

// quote returns the IP packet for an ICMP error: all of it if the rest can be fetched.
func (in *PortInput) quote(h *header) []byte {
	in.Whole()
	return in.packet(h)
}

// complete is called after the copied headers were parsed. It leaves only TCP or UDP payload in the
// guest's memory. If headers extend beyond the copied part, or the gateway may need to look into
// the rest, it fetches the rest and parses again.
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

// opaque reports whether b contains all headers of a packet, and the gateway need not look at what
// follows them.
func (h *header) opaque(b []byte) bool {
	if h.l4+maxTCP > len(b) {
		return false
	}
	return h.proto == protoTCP || h.proto == protoUDP && binary.BigEndian.Uint16(b[h.l4+2:]) != dhcpServer
}

// maxTCP is the length of the longest TCP header; UDP's is shorter.
const maxTCP = 60
