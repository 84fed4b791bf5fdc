package cm

import "encoding/binary"

// REP accepts a connection. The MTU in its offer is the smaller one of both sides. Its Ordered and
// CompleteInError flags are those of the request.
//
//	sender ID 32 | receiver ID 32 | QPN 32 | offer | private data
type REP struct {
	SenderID   uint32
	ReceiverID uint32 // REQ's SenderID
	QPN        uint32
	Offer      Offer
	Private    []byte
}

// Append encodes the message at the end of b.
func (m *REP) Append(b []byte) []byte {
	b, start := begin(b, TypeREP)
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	b = binary.BigEndian.AppendUint32(b, m.QPN)
	b = m.Offer.append(b)
	b = appendPrivate(b, m.Private)
	return end(b, start)
}

// ParseREP decodes a whole message.
func ParseREP(b []byte) (m REP, err error) {
	d, err := decode(b, TypeREP)
	if err != nil {
		return m, err
	}
	m.SenderID = d.id()
	m.ReceiverID = d.id()
	m.QPN = d.u24("QPN")
	m.Offer = d.offer()
	m.Private = d.private()
	return m, d.done()
}
