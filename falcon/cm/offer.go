package cm

import "encoding/binary"

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
