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

// Payload returns the payload of Push Data, a Pull Request or Pull Data without decoding its header; nil: b is none of
// them, or would not be decoded.
func Payload(b []byte) []byte {
	t, d := Peek(b)
	n := 0
	switch t {
	case TypePushData:
		n = PushDataLen
	case TypePullRequest:
		n = PullRequestLen
	case TypePullData:
		n = PullDataLen
	}
	if d != DropNone || n == 0 || len(b) < n || !Protocol(b[7]>>5).Valid() ||
		t == TypePushData && len(b)-n != int(binary.BigEndian.Uint16(b[26:])) {
		return nil
	}
	return b[n:]
}

// PullRequest is the header of a Pull Request (Falcon §7.3); the ULP headers follow.
//
//	word 6  Reserved 16 | Request Length 16
//	     7  Reserved 32
type PullRequest struct {
	Header
	RequestLength uint16 // bytes of the Pull Data payload expected: ULP headers, padding and data
}

// Append adds the 32 bytes of the header.
func (p *PullRequest) Append(b []byte) []byte {
	b = p.Header.Append(b)
	b = binary.BigEndian.AppendUint32(b, uint32(p.RequestLength))
	return binary.BigEndian.AppendUint32(b, 0)
}

// ParsePullRequest decodes a Pull Request and returns its ULP headers.
func ParsePullRequest(b []byte) (p PullRequest, payload []byte, d Drop) {
	p.Header, d = ParseHeader(b)
	if d != DropNone {
		return p, nil, d
	}
	if p.Type != TypePullRequest {
		return p, nil, DropPacketType
	}
	if len(b) < PullRequestLen {
		return p, nil, DropShort
	}
	p.RequestLength = binary.BigEndian.Uint16(b[26:])
	return p, b[PullRequestLen:], DropNone
}

// PullData is the header of Pull Data (Falcon §7.4): the base header alone. PSN is of the data
// window, RSN that of the Pull Request it answers.
type PullData struct{ Header }

// ParsePullData decodes Pull Data and returns its payload.
func ParsePullData(b []byte) (p PullData, payload []byte, d Drop) {
	p.Header, d = ParseHeader(b)
	if d != DropNone {
		return p, nil, d
	}
	if p.Type != TypePullData {
		return p, nil, DropPacketType
	}
	return p, b[PullDataLen:], DropNone
}
