package cm

import "encoding/binary"

// REQ requests a connection.
//
//	sender ID 32 | service 64 | tenant 32 | source function 32 |
//	destination function 32 | source GID 128 | destination GID 128 | QPN 32 |
//	offer | private data
type REQ struct {
	SenderID     uint32 // the sender's ID of the connection
	Service      uint64
	Tenant       uint32
	Function     uint32 // of the sender
	PeerFunction uint32 // of the receiver
	SGID         [16]byte
	DGID         [16]byte
	QPN          uint32
	Offer        Offer
	Private      []byte
}

// Append encodes the message at the end of b.
func (m *REQ) Append(b []byte) []byte {
	b, start := begin(b, TypeREQ)
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint64(b, m.Service)
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = binary.BigEndian.AppendUint32(b, m.Function)
	b = binary.BigEndian.AppendUint32(b, m.PeerFunction)
	b = append(b, m.SGID[:]...)
	b = append(b, m.DGID[:]...)
	b = binary.BigEndian.AppendUint32(b, m.QPN)
	b = m.Offer.append(b)
	b = appendPrivate(b, m.Private)
	return end(b, start)
}

// ParseREQ decodes a whole message.
func ParseREQ(b []byte) (m REQ, err error) {
	d, err := decode(b, TypeREQ)
	if err != nil {
		return m, err
	}
	m.SenderID = d.id()
	m.Service = d.u64()
	m.Tenant = d.u32()
	m.Function = d.u24("function")
	m.PeerFunction = d.u24("function")
	m.SGID = d.gid()
	m.DGID = d.gid()
	m.QPN = d.u24("QPN")
	m.Offer = d.offer()
	m.Private = d.private()
	return m, d.done()
}

// id reads a connection ID, which is never 0.
func (d *decoder) id() uint32 {
	v := d.u32()
	if v == 0 {
		d.fail("connection ID 0")
	}
	return v
}
