package wire

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
