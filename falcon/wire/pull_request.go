package wire

import "encoding/binary"

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
