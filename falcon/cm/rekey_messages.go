package cm

import "encoding/binary"

// REKEY gives the receiver a new SA to seal with, in place of the one that it has for that shard,
// tenant and class. It is repeated until REKEYACK names its SPI.
//
//	tenant 32 | class 8 | PSP version 8 | shard 8 | reserved 8 | SPI 32 | key 256
type REKEY struct {
	Tenant uint32
	Class  Class
	Shard  uint8 // of the receiver; it shall seal with the SA
	SA     SA
}

// Append encodes the message at the end of b.
func (m *REKEY) Append(b []byte) []byte {
	b, start := begin(b, TypeREKEY)
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = append(b, byte(m.Class), m.SA.Version, m.Shard, 0)
	b = binary.BigEndian.AppendUint32(b, m.SA.SPI)
	var key [keyField]byte
	copy(key[:], m.SA.Key)
	return end(append(b, key[:]...), start)
}

// ParseREKEY decodes a whole message.
func ParseREKEY(b []byte) (m REKEY, err error) {
	d, err := decode(b, TypeREKEY)
	if err != nil {
		return m, err
	}
	m.Tenant = d.u32()
	m.Class = d.class()
	m.SA.Version = d.u8()
	m.Shard = d.shard(d.u8())
	d.zero(1)
	m.SA.SPI = d.u32()
	d.key(&m.SA)
	return m, d.done()
}

// REKEYACK says that the sender's shard seals with the SA of this SPI from now on.
//
//	tenant 32 | class 8 | shard 8 | reserved 16 | SPI 32 | time 64
type REKEYACK struct {
	Tenant uint32
	Class  Class
	Shard  uint8 // of the sender
	SPI    uint32
	Time   uint64 // PSP clock of the sender, ps
}

// Append encodes the message at the end of b.
func (m *REKEYACK) Append(b []byte) []byte {
	b, start := begin(b, TypeREKEYACK)
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = append(b, byte(m.Class), m.Shard, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.SPI)
	b = binary.BigEndian.AppendUint64(b, m.Time)
	return end(b, start)
}

// ParseREKEYACK decodes a whole message.
func ParseREKEYACK(b []byte) (m REKEYACK, err error) {
	d, err := decode(b, TypeREKEYACK)
	if err != nil {
		return m, err
	}
	m.Tenant = d.u32()
	m.Class = d.class()
	m.Shard = d.shard(d.u8())
	d.zero(2)
	m.SPI = d.u32()
	m.Time = d.u64()
	return m, d.done()
}

// REKEYREQ requests a new SA: the one that a shard of the sender has is nearly used up, or it has
// none. It is repeated until REKEY brings another.
//
//	tenant 32 | class 8 | shard 8 | reserved 16 | SPI 32 (0: none)
type REKEYREQ struct {
	Tenant uint32
	Class  Class
	Shard  uint8 // of the sender
	SPI    uint32
}

// Append encodes the message at the end of b.
func (m *REKEYREQ) Append(b []byte) []byte {
	b, start := begin(b, TypeREKEYREQ)
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = append(b, byte(m.Class), m.Shard, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.SPI)
	return end(b, start)
}

// ParseREKEYREQ decodes a whole message.
func ParseREKEYREQ(b []byte) (m REKEYREQ, err error) {
	d, err := decode(b, TypeREKEYREQ)
	if err != nil {
		return m, err
	}
	m.Tenant = d.u32()
	m.Class = d.class()
	m.Shard = d.shard(d.u8())
	d.zero(2)
	m.SPI = d.u32()
	return m, d.done()
}

func (d *decoder) class() Class {
	c := Class(d.u8())
	if c >= numClasses {
		d.fail("class %d: want 0 or 1", uint8(c))
	}
	return c
}

// key reads the key field of an SA whose version and SPI were read before, and checks all three.
func (d *decoder) key(sa *SA) {
	if sa.Version > 3 {
		d.fail("PSP version %d: want 0 to 3", sa.Version)
	}
	if sa.SPI&^(1<<31) == 0 { // both reserved by PSP
		d.fail("SPI %#x", sa.SPI)
	}
	n := keyLen(sa.Version)
	sa.Key = append([]byte(nil), d.bytes(n)...)
	d.zero(keyField - n)
}
