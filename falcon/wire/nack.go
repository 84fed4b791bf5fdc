package wire

import "encoding/binary"

// Nack refuses one packet (Falcon §7.8).
//
//	word 7  Reserved 8 | RUE Info 24
//	     8  NACK PSN
//	     9  NACK Code 8 | Reserved 3 | RNR Timeout 5 | W 1 | Reserved 7 | ULP NACK Code 8
type Nack struct {
	CID      uint32 // of the receiver of the NACK
	DataBase uint32
	ReqBase  uint32
	T1, T2   uint32
	Congestion
	PSN     uint32
	Code    NackCode
	RNR     uint8 // timeout index, see RNRTimeout
	Request bool  // W: the PSN is of the request window
	ULPCode uint8
}

// Append adds the 40 bytes of the packet.
func (n *Nack) Append(b []byte) []byte {
	b = appendAckHeader(b, TypeNACK, n.CID, n.DataBase, n.ReqBase, n.T1, n.T2, &n.Congestion)
	b = binary.BigEndian.AppendUint32(b, n.RUE&MaxNackRUE)
	b = binary.BigEndian.AppendUint32(b, n.PSN)
	w := uint32(n.Code)<<24 | uint32(n.RNR&31)<<16 | uint32(n.ULPCode)
	if n.Request {
		w |= 1 << 15
	}
	return binary.BigEndian.AppendUint32(b, w)
}

// ParseNack decodes a NACK. Reserved codes are returned as they are: the acknowledgement in the
// packet still counts.
func ParseNack(b []byte) (n Nack, d Drop) {
	t, d := Peek(b)
	if d != DropNone {
		return n, d
	}
	if t != TypeNACK {
		return n, DropPacketType
	}
	if len(b) < NACKLen {
		return n, DropShort
	}
	if len(b) > NACKLen {
		return n, DropLength
	}
	n.CID = binary.BigEndian.Uint32(b) & MaxCID
	n.DataBase = binary.BigEndian.Uint32(b[8:])
	n.ReqBase = binary.BigEndian.Uint32(b[12:])
	n.T1 = binary.BigEndian.Uint32(b[16:])
	n.T2 = binary.BigEndian.Uint32(b[20:])
	n.Congestion = parseCongestion(b[24:])
	n.RUE = binary.BigEndian.Uint32(b[28:]) & (1<<24 - 1)
	n.PSN = binary.BigEndian.Uint32(b[32:])
	w := binary.BigEndian.Uint32(b[36:])
	n.Code = NackCode(w >> 24)
	n.RNR = uint8(w >> 16 & 31)
	n.Request = w&(1<<15) != 0
	n.ULPCode = uint8(w)
	return n, DropNone
}

// rnrTimeouts is the table of RNR NACK timeouts of Falcon §7.8 in units of 10 µs.
var rnrTimeouts = [32]int64{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimeout returns the delay in nanoseconds of a 5-bit RNR timeout index: 0 is the longest,
// 655.36 ms.
func RNRTimeout(index uint8) int64 { return rnrTimeouts[index&31] * 10_000 }
