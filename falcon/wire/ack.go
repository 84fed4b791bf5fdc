package wire

import "encoding/binary"

// Widths of RUE Info: the text of Falcon §7.7 and §7.8 is followed, and the top bit is sent as 0,
// so that the bytes are the same under the reading of the figures, which are one bit narrower.
const (
	MaxAckRUE  = 1<<21 - 1
	MaxNackRUE = 1<<23 - 1
	maxECN     = 1<<14 - 1
)

// Congestion is the congestion control information of an acknowledgement.
type Congestion struct {
	Hops        uint8  // forward path hop count, 4 bits
	RxOccupancy uint8  // quantised receive buffer level, 5 bits
	ECN         uint16 // cumulative count of marked packets, 14 bits
	RUE         uint32 // opaque, 22 bits in an ACK, 24 in a NACK
}

// appendAckHeader appends what BACK, EACK and NACK share.
//
//	word 0  Version 4 | Reserved 4 | Connection ID 24
//	     1  Reserved 27 | Type 4 | Reserved 1
//	     2  Receiver Data Window Base PSN
//	     3  Receiver Request Window Base PSN
//	     4  t1, 131.072 ns
//	     5  t2, 131.072 ns
//	     6  Hop Count 4 | Rx Buffer Occupancy 5 | ECN Rx Packet Count 14 | Reserved 9
func appendAckHeader(b []byte, t PacketType, cid, dataBase, reqBase, t1, t2 uint32, cc *Congestion) []byte {
	b = binary.BigEndian.AppendUint32(b, Version<<28|cid&MaxCID)
	b = binary.BigEndian.AppendUint32(b, uint32(t&15)<<1)
	b = binary.BigEndian.AppendUint32(b, dataBase)
	b = binary.BigEndian.AppendUint32(b, reqBase)
	b = binary.BigEndian.AppendUint32(b, t1)
	b = binary.BigEndian.AppendUint32(b, t2)
	return binary.BigEndian.AppendUint32(b, uint32(cc.Hops&15)<<28|uint32(cc.RxOccupancy&31)<<23|uint32(cc.ECN&maxECN)<<9)
}

func parseCongestion(b []byte) Congestion {
	w := binary.BigEndian.Uint32(b)
	return Congestion{Hops: uint8(w >> 28), RxOccupancy: uint8(w >> 23 & 31), ECN: uint16(w >> 9 & maxECN)}
}

// Bitmap128 is a bitmap of the data window: bit n stands for PSN base+n.
type Bitmap128 struct{ Lo, Hi uint64 }

// Ack is a BACK or, if Extended, an EACK (Falcon §7.7). Bitmaps are only carried by an EACK.
//
//	word 7  Reserved 8 | RUE Info 22 | OWN 2 (data, request)
//	  8-11  data ack bitmap, most significant word first
//	 12-15  data rx bitmap
//	 16-17  request bitmap
type Ack struct {
	Extended bool
	CID      uint32 // of the receiver of the acknowledgement
	DataBase uint32
	ReqBase  uint32
	T1, T2   uint32
	Congestion
	DataOWN bool // data packets were dropped beyond the window
	ReqOWN  bool // request packets were dropped beyond the window
	DataAck Bitmap128
	DataRx  Bitmap128
	Req     uint64
}

// Type is the packet type.
func (a *Ack) Type() PacketType {
	if a.Extended {
		return TypeEACK
	}
	return TypeBACK
}

// Append adds the 32 bytes of a BACK or the 72 bytes of an EACK.
func (a *Ack) Append(b []byte) []byte {
	b = appendAckHeader(b, a.Type(), a.CID, a.DataBase, a.ReqBase, a.T1, a.T2, &a.Congestion)
	w := (a.RUE & MaxAckRUE) << 2
	if a.DataOWN {
		w |= 2
	}
	if a.ReqOWN {
		w |= 1
	}
	b = binary.BigEndian.AppendUint32(b, w)
	if !a.Extended {
		return b
	}
	for _, v := range [...]uint64{a.DataAck.Hi, a.DataAck.Lo, a.DataRx.Hi, a.DataRx.Lo, a.Req} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// ParseAck decodes a BACK or an EACK.
func ParseAck(b []byte) (a Ack, d Drop) {
	d = a.Parse(b)
	return a, d
}

// Parse is ParseAck in place. Bitmaps of a BACK are left as they are.
func (a *Ack) Parse(b []byte) Drop {
	t, d := Peek(b)
	if d != DropNone {
		return d
	}
	want := BACKLen
	a.Extended = t == TypeEACK
	switch t {
	case TypeBACK:
	case TypeEACK:
		want = EACKLen
	default:
		return DropPacketType
	}
	if len(b) < want {
		return DropShort
	}
	if len(b) > want {
		return DropLength
	}
	a.CID = binary.BigEndian.Uint32(b) & MaxCID
	a.DataBase = binary.BigEndian.Uint32(b[8:])
	a.ReqBase = binary.BigEndian.Uint32(b[12:])
	a.T1 = binary.BigEndian.Uint32(b[16:])
	a.T2 = binary.BigEndian.Uint32(b[20:])
	a.Congestion = parseCongestion(b[24:])
	w := binary.BigEndian.Uint32(b[28:])
	a.RUE = w >> 2 & (1<<22 - 1)
	a.DataOWN, a.ReqOWN = w&2 != 0, w&1 != 0
	if a.Extended {
		a.DataAck = Bitmap128{Hi: binary.BigEndian.Uint64(b[32:]), Lo: binary.BigEndian.Uint64(b[40:])}
		a.DataRx = Bitmap128{Hi: binary.BigEndian.Uint64(b[48:]), Lo: binary.BigEndian.Uint64(b[56:])}
		a.Req = binary.BigEndian.Uint64(b[64:])
	}
	return DropNone
}
