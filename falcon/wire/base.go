package wire

import "encoding/binary"

// Header is the base header of all packets but acknowledgements (Falcon §7.2).
//
//	word 0  Version 4 | Reserved 4 | Destination CID 24     (this word stays in clear text)
//	     1  Destination Function 24 | Protocol 3 | Type 4 | AR 1
//	     2  Receiver Data Window Base PSN
//	     3  Receiver Request Window Base PSN
//	     4  PSN
//	     5  RSN
type Header struct {
	CID      uint32 // 24 bits, allocated by the receiver
	Function uint32 // 24 bits <Host, PF, VF>
	Protocol Protocol
	Type     PacketType
	AckReq   bool // AR: acknowledge at once
	DataBase uint32
	ReqBase  uint32
	PSN      uint32
	RSN      uint32
}

// Append adds the 24 bytes of the header.
func (h *Header) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, Version<<28|h.CID&MaxCID)
	w := h.Function<<8 | uint32(h.Protocol&7)<<5 | uint32(h.Type&15)<<1
	if h.AckReq {
		w |= 1
	}
	b = binary.BigEndian.AppendUint32(b, w)
	b = binary.BigEndian.AppendUint32(b, h.DataBase)
	b = binary.BigEndian.AppendUint32(b, h.ReqBase)
	b = binary.BigEndian.AppendUint32(b, h.PSN)
	return binary.BigEndian.AppendUint32(b, h.RSN)
}

// ParseHeader decodes the base header; the type must have one.
func ParseHeader(b []byte) (h Header, d Drop) {
	d = h.Parse(b)
	return h, d
}

// Parse is ParseHeader in place: a large struct that is returned is copied while its stores are
// still under way, which costs more than decoding it.
func (h *Header) Parse(b []byte) Drop {
	if len(b) < BaseLen {
		return DropShort
	}
	t, d := Peek(b)
	if d != DropNone {
		return d
	}
	if !t.HasBase() {
		return DropPacketType
	}
	w := binary.BigEndian.Uint32(b[4:])
	h.CID = binary.BigEndian.Uint32(b) & MaxCID
	h.Function = w >> 8
	h.Protocol = Protocol(w >> 5 & 7)
	h.Type = t
	h.AckReq = w&1 != 0
	h.DataBase = binary.BigEndian.Uint32(b[8:])
	h.ReqBase = binary.BigEndian.Uint32(b[12:])
	h.PSN = binary.BigEndian.Uint32(b[16:])
	h.RSN = binary.BigEndian.Uint32(b[20:])
	if !h.Protocol.Valid() {
		return DropProtocol
	}
	return DropNone
}

// Peek returns the packet type, whose position is common to all formats, after checking version and
// type.
func Peek(b []byte) (PacketType, Drop) {
	if len(b) < 8 {
		return 0, DropShort
	}
	if b[0]>>4 != Version {
		return 0, DropVersion
	}
	t := PacketType(b[7] >> 1 & 15)
	if !t.Valid() {
		return t, DropPacketType
	}
	return t, DropNone
}

// PeekCID returns the Destination CID: the first word is in clear text even in a sealed packet, so
// a packet can be steered to its owner before it is opened. ok is false if b is shorter than four
// bytes or of another version.
func PeekCID(b []byte) (cid uint32, ok bool) {
	if len(b) < 4 || b[0]>>4 != Version {
		return 0, false
	}
	return binary.BigEndian.Uint32(b) & MaxCID, true
}
