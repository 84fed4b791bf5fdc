package cm

import "encoding/binary"

// RTU says that the sender considers the connection established. It answers REP, and both sides
// send it again after the link was down.
//
//	sender ID 32 | receiver ID 32
type RTU struct {
	SenderID   uint32
	ReceiverID uint32
}

// Append encodes the message at the end of b.
func (m *RTU) Append(b []byte) []byte {
	b, start := begin(b, TypeRTU)
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	return end(b, start)
}

// ParseRTU decodes a whole message.
func ParseRTU(b []byte) (m RTU, err error) {
	d, err := decode(b, TypeRTU)
	if err != nil {
		return m, err
	}
	m.SenderID = d.id()
	m.ReceiverID = d.id()
	return m, d.done()
}
