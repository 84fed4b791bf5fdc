package wire

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/rdma/ib"
)

const (
	// Version is the RBTH version of this format.
	Version = 1
	// RBTHLen is the length of the base header in bytes.
	RBTHLen = 12
)

// RBTH is the RDMA base transport header (RDMA over Falcon §8.2).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-----------------------------+-+---+-+-+---------------+
//	|Version|           Reserved          |C|Pad|R|S|    Opcode     |
//	+-------+-----------------------------+-+---+-+-+---------------+
//	|             Destination QP                    |   Syndrome    |
//	+-----------------------------------------------+---------------+
//	|                        Sequence Number                        |
//	+---------------------------------------------------------------+
//
// The AckReq bit of the field table has no position in the figure and is not on the wire;
// Falcon's own AR bit does its work.
type RBTH struct {
	Opcode    ib.Opcode
	CE        bool  // complete in error: the message ends in error on this side
	Solicited bool  // SE: the receive completion is a solicited event
	Pad       uint8 // 0–3 bytes behind the data
	DestQP    uint32
	// Syndrome is 0 in every packet except a complete-in-error response, where it says why.
	// It uses the reserved byte of word 1 (docs/wire.md); a peer that leaves it 0 is understood.
	Syndrome uint8
	SN       uint32 // sequence number, from 1, per Falcon connection and direction of requests
}

// Append appends the encoded header to b. Pad and DestQP are cut to their widths.
func (h *RBTH) Append(b []byte) []byte {
	w := uint32(Version)<<28 | uint32(h.Pad&3)<<10 | uint32(h.Opcode)
	if h.CE {
		w |= 1 << 12
	}
	if h.Solicited {
		w |= 1 << 8
	}
	b = binary.BigEndian.AppendUint32(b, w)
	b = binary.BigEndian.AppendUint32(b, h.DestQP<<8|uint32(h.Syndrome))
	return binary.BigEndian.AppendUint32(b, h.SN)
}

// ParseRBTH decodes the base header at the start of b: ib.ErrShort if b is too short,
// ib.ErrVersion if the version is another. Reserved bits are ignored.
func ParseRBTH(b []byte) (RBTH, error) {
	if len(b) < RBTHLen {
		return RBTH{}, ib.ErrShort
	}
	w := binary.BigEndian.Uint32(b)
	if w>>28 != Version {
		return RBTH{}, ib.ErrVersion
	}
	qp := binary.BigEndian.Uint32(b[4:])
	return RBTH{
		Opcode:    ib.Opcode(w),
		CE:        w&(1<<12) != 0,
		Solicited: w&(1<<8) != 0,
		Pad:       uint8(w>>10) & 3,
		DestQP:    qp >> 8,
		Syndrome:  uint8(qp),
		SN:        binary.BigEndian.Uint32(b[8:]),
	}, nil
}
