package ib

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Headers is a set of extended headers.
type Headers uint16

// Extended headers, in the order in which they follow the base header.
const (
	HasXRCETH Headers = 1 << iota
	HasDETH
	HasRETH
	HasAtomicETH
	HasAtomicMaskETH
	HasAETH
	HasAtomicAckETH
	HasSETH
	HasOETH
	HasSTETH
	HasImmDt
	HasIETH
)

// Lengths of the extended headers in bytes.
const (
	XRCETHLen        = 4
	DETHLen          = 8
	RETHLen          = 16
	AtomicETHLen     = 28
	AtomicMaskETHLen = 16
	AETHLen          = 4
	AtomicAckETHLen  = 8
	SETHLen          = 4
	OETHLen          = 4
	STETHLen         = 12
	ImmDtLen         = 4
	IETHLen          = 4
)

// lens is indexed by the bit number of a header.
var lens = [...]int{
	XRCETHLen, DETHLen, RETHLen, AtomicETHLen, AtomicMaskETHLen, AETHLen, AtomicAckETHLen, SETHLen, OETHLen, STETHLen, ImmDtLen, IETHLen,
}

// Len returns the length of all headers of the set in bytes.
func (s Headers) Len() (n int) {
	for bit, l := range lens {
		if s&(1<<bit) != 0 {
			n += l
		}
	}
	return n
}

// Errors of headers.
var (
	ErrShort   = errors.New("ib: packet shorter than its headers")
	ErrVersion = errors.New("ib: unknown version of the base header")
	ErrOpcode  = errors.New("ib: reserved opcode")
)

// QPNMask keeps the 24 bits of a queue pair's number, and of other numbers of that length.
const QPNMask = 1<<24 - 1

// XRCETH is the XRC extended transport header (IBA annex A14.3.2, RDMA over Falcon §8.3.9). It
// comes first in every XRC request.
type XRCETH struct {
	SRQ uint32 // 24 bits
}

// DETH is the datagram extended transport header of UD SENDs (IBA §9.3.3, RDMA over Falcon
// §8.3.10).
type DETH struct {
	QKey     uint32
	SourceQP uint32 // 24 bits
}

// RETH is the RDMA extended transport header of READ and WRITE (IBA §9.3.2, RDMA over Falcon
// §8.3.1). InfiniBand's is in the first packet of a message and describes all of it. In RDMA over
// Falcon each packet has its own, about its own data without the pad, so that a packet can be
// placed whatever arrived before it.
type RETH struct {
	VA     uint64
	RKey   uint32
	Length uint32 // bytes
}

// AtomicETH is the extended transport header of atomic requests (IBA §9.3.4, RDMA over Falcon
// §8.3.6).
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64 // CmpSwap: the new value; FetchAdd: the addend
	Compare uint64 // CmpSwap only
}

// AtomicMaskETH holds the masks of a masked atomic (RFC 7306 §5.1). Neither specification has such
// an operation; the header is our choice (docs/wire.md).
type AtomicMaskETH struct {
	SwapAdd uint64 // CmpSwap: the bits to swap; FetchAdd: the most significant bit of each field
	Compare uint64 // CmpSwap: the bits to compare; FetchAdd: all ones
}

// AETH is the acknowledge extended transport header (IBA §9.3.5).
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits: messages that the responder has completed
}

// AtomicAckETH is the extended transport header of atomic responses (IBA §9.3.5.3, RDMA over Falcon
// §8.3.7).
type AtomicAckETH struct {
	Original uint64 // the target's value before the operation
}

// SETH is the sequence number extended transport header (RDMA over Falcon §8.3.2). SENDs and WRITEs
// with immediate number their messages in one counter, READ and ATOMIC requests their packets in
// another; both start at 1.
type SETH struct {
	RMSN uint32 // request message sequence number
}

// OETH is the offset extended transport header (RDMA over Falcon §8.3.3): where in the message the
// first data byte of a SEND packet belongs.
type OETH struct {
	Offset uint32 // bytes from the start of the message
}

// STETH is the sink tag extended transport header (RDMA over Falcon §8.3.4): the initiator's buffer
// for the response. The target returns it unchanged.
type STETH struct {
	VA   uint64
	LKey uint32
}

// ImmDt is the immediate extended transport header (IBA §9.3.6, RDMA over Falcon §8.3.5). Its four
// bytes are not a number of the network: they are sent as the work request has them, and work
// requests are little-endian.
type ImmDt struct {
	Data uint32 // as work requests and completions have it
}

// IETH is the invalidate extended transport header (IBA §9.3.7, RDMA over Falcon §8.3.8).
type IETH struct {
	RKey uint32 // the receiver's key to invalidate
}

// Extended holds the extended headers of one packet. Which of them are on the wire, a Headers says;
// Append ignores the others, and Parse leaves them as they are.
type Extended struct {
	XRC       XRCETH
	Datagram  DETH
	RETH      RETH
	Atomic    AtomicETH
	Mask      AtomicMaskETH
	AETH      AETH
	AtomicAck AtomicAckETH
	SETH      SETH
	OETH      OETH
	STETH     STETH
	Imm       ImmDt
	Inv       IETH
}

// Append appends the encoded headers of the set to b. The numbers of XRCETH and DETH are
// shifted left by shift in their words.
func (x *Extended) Append(b []byte, set Headers, shift uint) []byte {
	be := binary.BigEndian
	if set&HasXRCETH != 0 {
		b = be.AppendUint32(b, x.XRC.SRQ&QPNMask<<shift)
	}
	if set&HasDETH != 0 {
		b = be.AppendUint32(b, x.Datagram.QKey)
		b = be.AppendUint32(b, x.Datagram.SourceQP&QPNMask<<shift)
	}
	if set&HasRETH != 0 {
		b = be.AppendUint64(b, x.RETH.VA)
		b = be.AppendUint32(b, x.RETH.RKey)
		b = be.AppendUint32(b, x.RETH.Length)
	}
	if set&HasAtomicETH != 0 {
		b = be.AppendUint64(b, x.Atomic.VA)
		b = be.AppendUint32(b, x.Atomic.RKey)
		b = be.AppendUint64(b, x.Atomic.SwapAdd)
		b = be.AppendUint64(b, x.Atomic.Compare)
	}
	if set&HasAtomicMaskETH != 0 {
		b = be.AppendUint64(b, x.Mask.SwapAdd)
		b = be.AppendUint64(b, x.Mask.Compare)
	}
	if set&HasAETH != 0 {
		b = be.AppendUint32(b, uint32(x.AETH.Syndrome)<<24|x.AETH.MSN&QPNMask)
	}
	if set&HasAtomicAckETH != 0 {
		b = be.AppendUint64(b, x.AtomicAck.Original)
	}
	if set&HasSETH != 0 {
		b = be.AppendUint32(b, x.SETH.RMSN)
	}
	if set&HasOETH != 0 {
		b = be.AppendUint32(b, x.OETH.Offset)
	}
	if set&HasSTETH != 0 {
		b = be.AppendUint64(b, x.STETH.VA)
		b = be.AppendUint32(b, x.STETH.LKey)
	}
	if set&HasImmDt != 0 {
		b = binary.LittleEndian.AppendUint32(b, x.Imm.Data)
	}
	if set&HasIETH != 0 {
		b = be.AppendUint32(b, x.Inv.RKey)
	}
	return b
}

// Parse decodes the headers of the set at the start of b, which must be long enough.
func (x *Extended) Parse(b []byte, set Headers, shift uint) {
	be := binary.BigEndian
	if set&HasXRCETH != 0 {
		x.XRC.SRQ = be.Uint32(b) >> shift & QPNMask
		b = b[XRCETHLen:]
	}
	if set&HasDETH != 0 {
		x.Datagram = DETH{QKey: be.Uint32(b), SourceQP: be.Uint32(b[4:]) >> shift & QPNMask}
		b = b[DETHLen:]
	}
	if set&HasRETH != 0 {
		x.RETH = RETH{VA: be.Uint64(b), RKey: be.Uint32(b[8:]), Length: be.Uint32(b[12:])}
		b = b[RETHLen:]
	}
	if set&HasAtomicETH != 0 {
		x.Atomic = AtomicETH{VA: be.Uint64(b), RKey: be.Uint32(b[8:]), SwapAdd: be.Uint64(b[12:]), Compare: be.Uint64(b[20:])}
		b = b[AtomicETHLen:]
	}
	if set&HasAtomicMaskETH != 0 {
		x.Mask = AtomicMaskETH{SwapAdd: be.Uint64(b), Compare: be.Uint64(b[8:])}
		b = b[AtomicMaskETHLen:]
	}
	if set&HasAETH != 0 {
		w := be.Uint32(b)
		x.AETH = AETH{Syndrome: Syndrome(w >> 24), MSN: w & QPNMask}
		b = b[AETHLen:]
	}
	if set&HasAtomicAckETH != 0 {
		x.AtomicAck.Original = be.Uint64(b)
		b = b[AtomicAckETHLen:]
	}
	if set&HasSETH != 0 {
		x.SETH.RMSN = be.Uint32(b)
		b = b[SETHLen:]
	}
	if set&HasOETH != 0 {
		x.OETH.Offset = be.Uint32(b)
		b = b[OETHLen:]
	}
	if set&HasSTETH != 0 {
		x.STETH = STETH{VA: be.Uint64(b), LKey: be.Uint32(b[8:])}
		b = b[STETHLen:]
	}
	if set&HasImmDt != 0 {
		x.Imm.Data = binary.LittleEndian.Uint32(b)
		b = b[ImmDtLen:]
	}
	if set&HasIETH != 0 {
		x.Inv.RKey = be.Uint32(b)
	}
}

// PadLen returns the number of zero bytes, 0 to 3, after n bytes of data.
func PadLen(n int) int { return -n & 3 }

// Padded returns n with its pad.
func Padded(n int) int { return n + PadLen(n) }

// CutData returns the data of a packet that begins with headers of n bytes and ends with a pad. ok
// is false if the packet is too short for that or its length is not a multiple of 4 bytes.
func CutData(packet []byte, n int, pad uint8) (data []byte, ok bool) {
	end := len(packet) - int(pad)
	if end < n || len(packet)&3 != 0 {
		return nil, false
	}
	return packet[n:end], true
}

// SetRequest sets what the headers of a request say, except for the address and length of its data.
func (x *Extended) SetRequest(wqe *abi.SendWQE, masks abi.AtomicMasks) {
	x.XRC.SRQ = wqe.RemoteSRQN
	x.RETH.RKey = wqe.RKey
	x.Imm.Data, x.Inv.RKey = wqe.Imm, wqe.Imm
	switch wqe.Opcode {
	case abi.OpCmpSwap, abi.OpMaskedCmpSwap:
		x.Atomic = AtomicETH{VA: wqe.RemoteAddr, RKey: wqe.RKey, SwapAdd: wqe.Swap, Compare: wqe.CompareAdd}
		x.Mask = AtomicMaskETH(masks)
	case abi.OpFetchAdd, abi.OpMaskedFetchAdd:
		x.Atomic = AtomicETH{VA: wqe.RemoteAddr, RKey: wqe.RKey, SwapAdd: wqe.CompareAdd}
		x.Mask = AtomicMaskETH{SwapAdd: masks.SwapAdd, Compare: ^uint64(0)} // RFC 7306 §5.2.1
	}
}
