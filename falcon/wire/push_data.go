package wire

import "encoding/binary"

// PushData is the header of Push Data (Falcon §7.5); exactly RequestLength bytes of ULP headers and
// data follow.
//
//	word 6  Reserved 16 | Request Length 16
type PushData struct {
	Header
	RequestLength uint16 // bytes of payload
}

// Append adds the 28 bytes of the header.
func (p *PushData) Append(b []byte) []byte {
	b = p.Header.Append(b)
	return binary.BigEndian.AppendUint32(b, uint32(p.RequestLength))
}

// ParsePushData decodes Push Data and returns its payload, whose length must be the Request Length.
func ParsePushData(b []byte) (p PushData, payload []byte, d Drop) {
	payload, d = p.Parse(b)
	return p, payload, d
}

// Parse is ParsePushData in place.
func (p *PushData) Parse(b []byte) (payload []byte, d Drop) {
	if d := p.Header.Parse(b); d != DropNone {
		return nil, d
	}
	if p.Type != TypePushData {
		return nil, DropPacketType
	}
	if len(b) < PushDataLen {
		return nil, DropShort
	}
	p.RequestLength = binary.BigEndian.Uint16(b[26:])
	payload = b[PushDataLen:]
	if len(payload) != int(p.RequestLength) {
		return nil, DropLength
	}
	return payload, DropNone
}
