package wire

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/rdma/ib"
)

const (
	// BTHLen is the length of the base header in bytes.
	BTHLen = 12
	// DefaultPKey is the partition key that every RoCEv2 port has (Annex A17.4.7), of a full
	// member.
	DefaultPKey = 0xffff
)

// BTH is the base transport header (IBA §9.2).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+-+-+---+-------+-------------------------------+
//	|    Opcode     |S|M|Pad| TVer  |             P_Key             |
//	+-+-+-----------+-+-+---+-------+-------------------------------+
//	|F|B| Reserved  |                Destination QP                 |
//	+-+-+-----------+-----------------------------------------------+
//	|A|  Reserved   |                      PSN                      |
//	+-+-------------+-----------------------------------------------+
type BTH struct {
	Opcode    ib.Opcode
	Solicited bool  // SE: the receive completion is a solicited event
	Migrated  bool  // M: the migration state; senders without path migration set it
	Pad       uint8 // 0–3 bytes after the data
	PKey      uint16
	FECN      bool // congestion on the path, if routers mark the BTH
	BECN      bool // congestion reported back, in CNPs
	DestQP    uint32
	AckReq    bool
	PSN       PSN
}

const (
	bthSE       = 1 << 7
	bthMigrated = 1 << 6
	bthFECN     = 1 << 7
	bthBECN     = 1 << 6
	bthAckReq   = 1 << 7
)

// Append appends the encoded header to b. Pad, DestQP and PSN are cut to their widths.
func (h *BTH) Append(b []byte) []byte {
	flags := h.Pad & 3 << 4
	if h.Solicited {
		flags |= bthSE
	}
	if h.Migrated {
		flags |= bthMigrated
	}
	qp := h.DestQP & ib.QPNMask
	if h.FECN {
		qp |= bthFECN << 24
	}
	if h.BECN {
		qp |= bthBECN << 24
	}
	psn := uint32(h.PSN) & PSNMask
	if h.AckReq {
		psn |= bthAckReq << 24
	}
	b = append(b, byte(h.Opcode), flags, byte(h.PKey>>8), byte(h.PKey))
	b = binary.BigEndian.AppendUint32(b, qp)
	return binary.BigEndian.AppendUint32(b, psn)
}

// ParseBTH decodes the base header at the start of b. It returns ib.ErrShort if b is too short, and
// ib.ErrVersion for another version. Reserved bits are ignored.
func ParseBTH(b []byte) (BTH, error) {
	if len(b) < BTHLen {
		return BTH{}, ib.ErrShort
	}
	if b[1]&0xf != 0 {
		return BTH{}, ib.ErrVersion
	}
	return BTH{
		Opcode:    ib.Opcode(b[0]),
		Solicited: b[1]&bthSE != 0,
		Migrated:  b[1]&bthMigrated != 0,
		Pad:       b[1] >> 4 & 3,
		PKey:      binary.BigEndian.Uint16(b[2:]),
		FECN:      b[4]&bthFECN != 0,
		BECN:      b[4]&bthBECN != 0,
		DestQP:    binary.BigEndian.Uint32(b[4:]) & ib.QPNMask,
		AckReq:    b[8]&bthAckReq != 0,
		PSN:       PSN(binary.BigEndian.Uint32(b[8:]) & PSNMask),
	}, nil
}

// PSN is a packet sequence number of 24 bits, which wraps to 0 (IBA §9.7.1).
type PSN uint32

// PSNMask keeps the 24 bits of a PSN.
const PSNMask = 1<<24 - 1

// Add returns p+n modulo 2^24; n may be negative.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & PSNMask }

// Sub returns p−from modulo 2^24, as a number from −2^23 to 2^23−1.
func (p PSN) Sub(from PSN) int { return int(int32(uint32(p-from)<<8) >> 8) }
