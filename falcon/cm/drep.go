package cm

import "encoding/binary"

// DREP answers DREQ.
//
//	sender ID 32 | receiver ID 32
type DREP struct {
	SenderID   uint32
	ReceiverID uint32
}

// Append encodes the message at the end of b.
func (m *DREP) Append(b []byte) []byte {
	b, start := begin(b, TypeDREP)
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	return end(b, start)
}

// ParseDREP decodes a whole message.
func ParseDREP(b []byte) (m DREP, err error) {
	d, err := decode(b, TypeDREP)
	if err != nil {
		return m, err
	}
	m.SenderID = d.id()
	m.ReceiverID = d.id()
	return m, d.done()
}
