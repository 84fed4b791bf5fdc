package cm

import "encoding/binary"

// REJ refuses a request, withdraws one, or says that the sender does not know the connection of a
// message. It is never answered.
//
//	sender ID 32 | receiver ID 32 | reason 16 | reserved 16 | consumer 32 |
//	private data
type REJ struct {
	SenderID   uint32 // 0: the sender has no ID for it
	ReceiverID uint32 // 0: not yet known to the sender, which withdraws its REQ
	Reason     Reason
	Consumer   uint32 // the listener's own reason, with ReasonConsumer
	Private    []byte
}

// Append encodes the message at the end of b.
func (m *REJ) Append(b []byte) []byte {
	b, start := begin(b, TypeREJ)
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Reason))
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.Consumer)
	b = appendPrivate(b, m.Private)
	return end(b, start)
}

// ParseREJ decodes a whole message.
func ParseREJ(b []byte) (m REJ, err error) {
	d, err := decode(b, TypeREJ)
	if err != nil {
		return m, err
	}
	m.SenderID = d.u32()
	m.ReceiverID = d.u32()
	if m.SenderID == 0 && m.ReceiverID == 0 {
		d.fail("names no connection")
	}
	m.Reason = d.reason()
	d.zero(2)
	m.Consumer = d.u32()
	m.Private = d.private()
	return m, d.done()
}
