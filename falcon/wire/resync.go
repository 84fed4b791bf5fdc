package wire

import "encoding/binary"

// Resync fills the hole a lost or refused packet left in the sequence space (Falcon §7.6). PSN and
// RSN are those of the original packet, and so is the window.
//
//	word 6  Resync Code 8 | Resync Packet Type 4 | Reserved 20
//	     7  Vendor Defined 32
type Resync struct {
	Header
	Code     ResyncCode
	Original PacketType // of the packet replaced: PullRequest, PullData or PushData
	Vendor   uint32     // opaque, 0 when unused
}

// Append adds the 32 bytes of the packet.
func (r *Resync) Append(b []byte) []byte {
	b = r.Header.Append(b)
	b = binary.BigEndian.AppendUint32(b, uint32(r.Code)<<24|uint32(r.Original&15)<<20)
	return binary.BigEndian.AppendUint32(b, r.Vendor)
}

// ParseResync decodes a Resync packet. A reserved code is accepted: the packet must fill its hole
// whatever the reason.
func ParseResync(b []byte) (r Resync, d Drop) {
	r.Header, d = ParseHeader(b)
	if d != DropNone {
		return r, d
	}
	if r.Type != TypeResync {
		return r, DropPacketType
	}
	if len(b) < ResyncLen {
		return r, DropShort
	}
	if len(b) > ResyncLen {
		return r, DropLength
	}
	w := binary.BigEndian.Uint32(b[24:])
	r.Code = ResyncCode(w >> 24)
	r.Original = PacketType(w >> 20 & 15)
	r.Vendor = binary.BigEndian.Uint32(b[28:])
	switch r.Original {
	case TypePullRequest, TypePullData, TypePushData:
		return r, DropNone
	}
	return r, DropResyncType
}
