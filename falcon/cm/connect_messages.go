package cm

import (
	"encoding/binary"
)

// Offer is the common part of REQ and REP: the values that one side sets for its direction of the
// connection.
//
//	shard 8 | CID 24 | data PSN 32 | request PSN 32 | RSN 32 | MTU 16 | flags 8 |
//	PSP version 8 | SPI 32 | time 64 | key 256
type Offer struct {
	Shard   uint8  // of the receiver of the offer, which the SA is for
	CID     uint32 // the receiver of the offer sends with it
	DataPSN uint32 // first PSN of the offering side
	ReqPSN  uint32
	RSN     uint32
	MTU     uint16 // bytes of ULP headers and data per packet
	Ordered bool
	IRD     uint8  // READs and atomics that the offering side accepts at a time, at most MaxIRD
	SA      SA     // the receiver of the offer seals with it
	Time    uint64 // PSP clock of the offering side, ps

	CompleteInError bool // failed requests of the queue pair complete in error individually
}

const (
	keyField    = 32
	flagOrdered = 1
	irdShift    = 1 // to 6
	flagInError = 1 << 7
)

// MaxIRD is the largest IRD of an offer.
const MaxIRD = 63

// keyLen returns the key length of a PSP version (PSP Architecture Specification, "Packet
// Processing").
func keyLen(version uint8) int {
	if version&1 == 0 {
		return 16
	}
	return 32
}

func (o *Offer) append(b []byte) []byte {
	b = appendSharded(b, o.Shard, o.CID)
	b = binary.BigEndian.AppendUint32(b, o.DataPSN)
	b = binary.BigEndian.AppendUint32(b, o.ReqPSN)
	b = binary.BigEndian.AppendUint32(b, o.RSN)
	b = binary.BigEndian.AppendUint16(b, o.MTU)
	flags := min(o.IRD, MaxIRD) << irdShift
	if o.Ordered {
		flags |= flagOrdered
	}
	if o.CompleteInError {
		flags |= flagInError
	}
	b = append(b, flags, o.SA.Version)
	b = binary.BigEndian.AppendUint32(b, o.SA.SPI)
	b = binary.BigEndian.AppendUint64(b, o.Time)
	var key [keyField]byte
	copy(key[:], o.SA.Key)
	return append(b, key[:]...)
}

func (d *decoder) offer() (o Offer) {
	o.Shard, o.CID = d.sharded()
	o.DataPSN = d.u32()
	o.ReqPSN = d.u32()
	o.RSN = d.u32()
	o.MTU = d.u16()
	if o.MTU < MinMTU || o.MTU > MaxMTU {
		d.fail("MTU %d: want %d to %d", o.MTU, MinMTU, MaxMTU)
	}
	flags := d.u8()
	o.Ordered, o.IRD, o.CompleteInError = flags&flagOrdered != 0, flags>>irdShift&MaxIRD, flags&flagInError != 0
	o.SA.Version = d.u8()
	o.SA.SPI = d.u32()
	o.Time = d.u64()
	d.key(&o.SA)
	return o
}

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

func (*REQ) kind() MessageType { return TypeREQ }

func (m *REQ) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint64(b, m.Service)
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = binary.BigEndian.AppendUint32(b, m.Function)
	b = binary.BigEndian.AppendUint32(b, m.PeerFunction)
	b = append(b, m.SGID[:]...)
	b = append(b, m.DGID[:]...)
	b = binary.BigEndian.AppendUint32(b, m.QPN)
	b = m.Offer.append(b)
	return appendPrivate(b, m.Private)
}

func (m *REQ) read(d *decoder) {
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
}

// id reads a connection ID, which is never 0.
func (d *decoder) id() uint32 {
	v := d.u32()
	if v == 0 {
		d.fail("connection ID 0")
	}
	return v
}

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

func (*REP) kind() MessageType { return TypeREP }

func (m *REP) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	b = binary.BigEndian.AppendUint32(b, m.QPN)
	b = m.Offer.append(b)
	return appendPrivate(b, m.Private)
}

func (m *REP) read(d *decoder) {
	m.SenderID = d.id()
	m.ReceiverID = d.id()
	m.QPN = d.u24("QPN")
	m.Offer = d.offer()
	m.Private = d.private()
}

// RTU says that the sender considers the connection established. It answers REP, and both sides
// send it again after the link was down.
//
//	sender ID 32 | receiver ID 32
type RTU struct {
	SenderID   uint32
	ReceiverID uint32
}

func (*RTU) kind() MessageType { return TypeRTU }

func (m *RTU) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	return binary.BigEndian.AppendUint32(b, m.ReceiverID)
}

func (m *RTU) read(d *decoder) {
	m.SenderID = d.id()
	m.ReceiverID = d.id()
}

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

func (*REJ) kind() MessageType { return TypeREJ }

func (m *REJ) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Reason))
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.Consumer)
	return appendPrivate(b, m.Private)
}

func (m *REJ) read(d *decoder) {
	m.SenderID = d.u32()
	m.ReceiverID = d.u32()
	if m.SenderID == 0 && m.ReceiverID == 0 {
		d.fail("names no connection")
	}
	m.Reason = d.reason()
	d.zero(2)
	m.Consumer = d.u32()
	m.Private = d.private()
}

// DREQ ends an established connection. It is answered by DREP.
//
//	sender ID 32 | receiver ID 32 | reason 16 | reserved 16
type DREQ struct {
	SenderID   uint32
	ReceiverID uint32
	Reason     Reason
}

func (*DREQ) kind() MessageType { return TypeDREQ }

func (m *DREQ) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	b = binary.BigEndian.AppendUint32(b, m.ReceiverID)
	b = binary.BigEndian.AppendUint16(b, uint16(m.Reason))
	return append(b, 0, 0)
}

func (m *DREQ) read(d *decoder) {
	m.SenderID = d.id()
	m.ReceiverID = d.id()
	m.Reason = d.reason()
	d.zero(2)
}

// DREP answers DREQ.
//
//	sender ID 32 | receiver ID 32
type DREP struct {
	SenderID   uint32
	ReceiverID uint32
}

func (*DREP) kind() MessageType { return TypeDREP }

func (m *DREP) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.SenderID)
	return binary.BigEndian.AppendUint32(b, m.ReceiverID)
}

func (m *DREP) read(d *decoder) {
	m.SenderID = d.id()
	m.ReceiverID = d.id()
}
