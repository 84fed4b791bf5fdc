package wire

import (
	"encoding/binary"
	"errors"
)

// Lengths of Request and Reply Frames in bytes.
const (
	FrameHeaderLen = 20
	// MaxPrivate is the longest private data. Enhanced data is part of it.
	MaxPrivate  = 512
	EnhancedLen = 4
	MaxFrameLen = FrameHeaderLen + MaxPrivate
)

// Revisions of MPA. The second one is the first with enhanced data (RFC 6581).
const (
	Revision1 = 1
	Revision2 = 2
)

// AnyDepth as IRD or ORD says that the depth is not negotiated here (RFC 6581 §9.1).
const AnyDepth = 1<<14 - 1

// ErrIncomplete means that the stream has only the beginning of a frame or an FPDU: nothing is wrong
// with it so far.
var ErrIncomplete = errors.New("iwarp: the stream has only a beginning")

const (
	keyLen     = 16
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

// Flags of a frame.
const (
	flagMarkers  = 0x80
	flagCRC      = 0x40
	flagReject   = 0x20
	flagEnhanced = 0x10
)

// RTR is a set of messages of length 0. The initiator sends one of them as the first FPDU of a
// peer-to-peer connection, so that the responder may send too (RFC 6581 §9.2).
type RTR uint8

// Messages that can be ready to receive. In a Request they are offered, in a Reply one is chosen.
const (
	RTRSend RTR = 1 << iota
	RTRWrite
	RTRRead
)

// Enhanced is the data with which both ends agree on READs and on the first message (RFC 6581 §9).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+---------------------------+-+-+---------------------------+
//	|A|B|            IRD            |C|D|            ORD            |
//	+-+-+---------------------------+-+-+---------------------------+
type Enhanced struct {
	PeerToPeer bool   // A
	RTR        RTR    // B: SEND, C: WRITE, D: READ
	IRD        uint16 // READ Requests that the sender of the frame accepts, 14 bits
	ORD        uint16 // READ Requests that it wants to send, 14 bits
}

// Frame is an MPA Request or Reply Frame (RFC 5044 §7.1.1, RFC 6581 §6). It is the first thing that
// each end sends.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|            Key: "MPA ID Req Frame" or "MPA ID Rep Frame"      |
//	|                           (16 bytes)                          |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|M|C|R|S|  Res  |      Rev      |          PD_Length            |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|           Private data; with S, Enhanced comes first          |
//	+---------------------------------------------------------------+
type Frame struct {
	Reply    bool
	Markers  bool // M: the sender of the frame wants markers in what it receives
	CRC      bool // C: the sender of the frame wants CRCs. They are used if either end wants them
	Reject   bool // R, in a Reply only: there is no connection
	Revision uint8
	// HasEnhanced is S, of revision 2 only. In revision 1 the bit is reserved.
	HasEnhanced bool
	Enhanced    Enhanced
	Private     []byte // without Enhanced
}

// MaxPrivate returns how much private data fits into the frame.
func (f *Frame) MaxPrivate() int {
	if f.enhanced() {
		return MaxPrivate - EnhancedLen
	}
	return MaxPrivate
}

func (f *Frame) enhanced() bool { return f.HasEnhanced && f.Revision == Revision2 }

// Append appends the encoded frame to b. IRD and ORD are cut to their widths, and private data to
// MaxPrivate.
func (f *Frame) Append(b []byte) []byte {
	private := f.Private[:min(len(f.Private), f.MaxPrivate())]
	key, length, flags := requestKey, len(private), byte(0)
	if f.Reply {
		key = replyKey
		flags |= flag(f.Reject, flagReject)
	}
	flags |= flag(f.Markers, flagMarkers) | flag(f.CRC, flagCRC)
	if f.enhanced() {
		flags |= flagEnhanced
		length += EnhancedLen
	}
	b = append(append(b, key...), flags, f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	if f.enhanced() {
		b = f.Enhanced.append(b)
	}
	return append(b, private...)
}

// ParseFrame decodes the Request or Reply Frame at the start of b and returns its length. The error
// is ErrIncomplete if b has only the beginning of one; it is InvalidFrame as soon as a byte shows
// that b has none, or one of a revision that is not known.
func ParseFrame(b []byte, reply bool) (f Frame, n int, err error) {
	key := requestKey
	if reply {
		key = replyKey
	}
	if have := min(len(b), keyLen); string(b[:have]) != key[:have] {
		return Frame{}, 0, InvalidFrame
	}
	if len(b) < FrameHeaderLen {
		return Frame{}, 0, ErrIncomplete
	}
	flags, length := b[keyLen], int(binary.BigEndian.Uint16(b[keyLen+2:]))
	f = Frame{
		Reply:    reply,
		Markers:  flags&flagMarkers != 0,
		CRC:      flags&flagCRC != 0,
		Reject:   reply && flags&flagReject != 0,
		Revision: b[keyLen+1],
	}
	f.HasEnhanced = f.Revision == Revision2 && flags&flagEnhanced != 0
	n = FrameHeaderLen + length
	switch {
	case f.Revision != Revision1 && f.Revision != Revision2, length > MaxPrivate, f.HasEnhanced && length < EnhancedLen:
		return Frame{}, 0, InvalidFrame
	case len(b) < n:
		return Frame{}, 0, ErrIncomplete
	}
	f.Private = b[FrameHeaderLen:n:n]
	if f.HasEnhanced {
		f.Enhanced = parseEnhanced(f.Private)
		f.Private = f.Private[EnhancedLen:]
	}
	return f, n, nil
}

// Bits of enhanced data in front of IRD and of ORD.
const (
	bitHigh = 1 << 15 // A, C
	bitLow  = 1 << 14 // B, D
)

func (e *Enhanced) append(b []byte) []byte {
	ird, ord := e.IRD&AnyDepth, e.ORD&AnyDepth
	if e.PeerToPeer {
		ird |= bitHigh
	}
	if e.RTR&RTRSend != 0 {
		ird |= bitLow
	}
	if e.RTR&RTRWrite != 0 {
		ord |= bitHigh
	}
	if e.RTR&RTRRead != 0 {
		ord |= bitLow
	}
	b = binary.BigEndian.AppendUint16(b, ird)
	return binary.BigEndian.AppendUint16(b, ord)
}

func parseEnhanced(b []byte) Enhanced {
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	e := Enhanced{PeerToPeer: ird&bitHigh != 0, IRD: ird & AnyDepth, ORD: ord & AnyDepth}
	if ird&bitLow != 0 {
		e.RTR |= RTRSend
	}
	if ord&bitHigh != 0 {
		e.RTR |= RTRWrite
	}
	if ord&bitLow != 0 {
		e.RTR |= RTRRead
	}
	return e
}

// flag returns bit if set is true.
func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}
