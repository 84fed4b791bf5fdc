package cm

import "encoding/binary"

// DREQ ends an established connection. It is answered by DREP.
//
//	sender ID 32 | receiver ID 32 | reason 16 | reserved 16
type DREQ struct {
	SenderID   uint32
	ReceiverID uint32
	Reason     Reason
}

// Append encodes the message at the end of b.
func (m *DREQ) Append(b []byte) []byte {
	b, start := begin(b, TypeDREQ)
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Reason))
	b = append(b, 0, 0)
	return end(b, start)
}

// ParseDREQ decodes a whole message.
func ParseDREQ(b []byte) (m DREQ, err error) {
	d, err := decode(b, TypeDREQ)
	if err != nil {
		return m, err
	}
	m.SenderID = d.id()
	m.ReceiverID = d.id()
	m.Reason = d.reason()
	d.zero(2)
	return m, d.done()
}
