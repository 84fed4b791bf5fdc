package wire

import (
	"encoding/binary"
	"fmt"
)

// Versions of DDP and RDMAP.
const (
	DDPVersion   = 1
	RDMAPVersion = 1
)

// Lengths of the headers in bytes: control fields and buffer model.
const (
	TaggedLen   = 14
	UntaggedLen = 18
)

// Queues of untagged buffers (RFC 7306 §10.2).
const (
	QueueSend           = 0 // also Immediate Data
	QueueRequest        = 1 // READ Requests and Atomic Requests, which share a sequence
	QueueTerminate      = 2
	QueueAtomicResponse = 3
)

// Opcode is the opcode of an RDMA message (RFC 5040 §4.1, RFC 7306 §4.1).
type Opcode uint8

// Opcodes.
const (
	OpWrite Opcode = iota
	OpReadRequest
	OpReadResponse
	OpSend
	OpSendInv
	OpSendSE
	OpSendSEInv
	OpTerminate
	OpImmediate
	OpImmediateSE
	OpAtomicRequest
	OpAtomicResponse

	opcodes
)

// OpcodeInfo describes the messages with one opcode (RFC 5040 figure 5, RFC 7306 figure 2).
type OpcodeInfo struct {
	Name       string
	Tagged     bool
	Queue      uint32 // of an untagged message
	Invalidate bool   // the header has an STag to invalidate
	Solicited  bool   // the receive completion is a solicited event
}

var opcodeInfos = [opcodes]OpcodeInfo{
	OpWrite:          {Name: "WRITE", Tagged: true},
	OpReadRequest:    {Name: "READ Request", Queue: QueueRequest},
	OpReadResponse:   {Name: "READ Response", Tagged: true},
	OpSend:           {Name: "SEND", Queue: QueueSend},
	OpSendInv:        {Name: "SEND with Invalidate", Queue: QueueSend, Invalidate: true},
	OpSendSE:         {Name: "SEND with SE", Queue: QueueSend, Solicited: true},
	OpSendSEInv:      {Name: "SEND with SE and Invalidate", Queue: QueueSend, Invalidate: true, Solicited: true},
	OpTerminate:      {Name: "Terminate", Queue: QueueTerminate},
	OpImmediate:      {Name: "Immediate Data", Queue: QueueSend},
	OpImmediateSE:    {Name: "Immediate Data with SE", Queue: QueueSend, Solicited: true},
	OpAtomicRequest:  {Name: "Atomic Request", Queue: QueueRequest},
	OpAtomicResponse: {Name: "Atomic Response", Queue: QueueAtomicResponse},
}

// Valid reports whether there is such a message.
func (op Opcode) Valid() bool { return op < opcodes }

// Info describes the messages with a valid opcode.
func (op Opcode) Info() *OpcodeInfo { return &opcodeInfos[op] }

func (op Opcode) String() string {
	if !op.Valid() {
		return fmt.Sprintf("reserved opcode %#x", uint8(op))
	}
	return opcodeInfos[op].Name
}

// Header is what each DDP segment of an RDMA message begins with (RFC 5041 §4, RFC 5040 §4.1). The
// opcode decides which of the two it is, and whether it has an STag to invalidate.
//
//	                                 0                   1
//	                                 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
//	                                +-+-+-------+---+---+---+-------+
//	both                            |T|L| Resrv | DV| RV|Rsv|Opcode |
//	+-------------------------------+-+-+-------+---+---+---+-------+
//	|                     STag                      |
//	+-----------------------------------------------+        tagged
//	|                 TO (64 bits)                  |
//	+-----------------------------------------------+
//
//	+-----------------------------------------------+
//	|           STag to invalidate, or 0            |
//	+-----------------------------------------------+
//	|                      QN                       |        untagged
//	+-----------------------------------------------+
//	|                      MSN                      |
//	+-----------------------------------------------+
//	|                      MO                       |
//	+-----------------------------------------------+
type Header struct {
	Opcode Opcode
	Last   bool // the segment is the last one of its message

	// Of a tagged segment: where its data belongs.
	STag uint32
	TO   uint64

	// Of an untagged segment. Its queue is that of its opcode.
	Invalidate uint32
	MSN        uint32 // message of its queue, from 1
	MO         uint32 // where in the message its data begins
}

const (
	bitTagged = 0x80
	bitLast   = 0x40
)

// Append appends the encoded header to b; for a reserved opcode nothing.
func (h *Header) Append(b []byte) []byte {
	if !h.Opcode.Valid() {
		return b
	}
	info, be := h.Opcode.Info(), binary.BigEndian
	b = append(b, DDPVersion|flag(info.Tagged, bitTagged)|flag(h.Last, bitLast), RDMAPVersion<<6|byte(h.Opcode))
	if info.Tagged {
		b = be.AppendUint32(b, h.STag)
		return be.AppendUint64(b, h.TO)
	}
	invalidate := uint32(0)
	if info.Invalidate {
		invalidate = h.Invalidate
	}
	b = be.AppendUint32(b, invalidate)
	b = be.AppendUint32(b, info.Queue)
	b = be.AppendUint32(b, h.MSN)
	return be.AppendUint32(b, h.MO)
}

// ParseHeader decodes the header at the start of a ULPDU and returns its length. The error is a
// Cause: a version or an opcode that is not known, an opcode with the wrong buffer model, a queue
// that is not the opcode's, or LengthMismatch for a ULPDU that is shorter than its header.
func ParseHeader(ulpdu []byte) (h Header, n int, err error) {
	if len(ulpdu) < 2 {
		return Header{}, 0, LengthMismatch
	}
	ddp, rdmap, be := ulpdu[0], ulpdu[1], binary.BigEndian
	tagged := ddp&bitTagged != 0
	h = Header{Opcode: Opcode(rdmap & 0xf), Last: ddp&bitLast != 0}
	switch {
	case ddp&3 != DDPVersion && tagged:
		return Header{}, 0, TaggedVersion
	case ddp&3 != DDPVersion:
		return Header{}, 0, UntaggedVersion
	case rdmap>>6 != RDMAPVersion:
		return Header{}, 0, InvalidVersion
	case !h.Opcode.Valid() || h.Opcode.Info().Tagged != tagged:
		return Header{}, 0, UnexpectedOpcode
	case tagged && len(ulpdu) < TaggedLen, !tagged && len(ulpdu) < UntaggedLen:
		return Header{}, 0, LengthMismatch
	case tagged:
		h.STag, h.TO = be.Uint32(ulpdu[2:]), be.Uint64(ulpdu[6:])
		return h, TaggedLen, nil
	}
	info := h.Opcode.Info()
	if be.Uint32(ulpdu[6:]) != info.Queue {
		return Header{}, 0, InvalidQueue
	}
	if info.Invalidate {
		h.Invalidate = be.Uint32(ulpdu[2:])
	}
	h.MSN, h.MO = be.Uint32(ulpdu[10:]), be.Uint32(ulpdu[14:])
	return h, UntaggedLen, nil
}
