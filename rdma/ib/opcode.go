package ib

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Opcode is the opcode of a base header: the service in the top three bits, the operation in the
// low five (IBA table 38, RDMA over Falcon §8.1.3).
type Opcode uint8

// Services.
const (
	RC  Opcode = 0x00 // reliable connection
	UC  Opcode = 0x20 // unreliable connection
	UD  Opcode = 0x60 // unreliable datagram
	XRC Opcode = 0xa0 // extended reliable connection

	// ServiceMask keeps the service of an opcode.
	ServiceMask Opcode = 0xe0
)

// Operations.
const (
	SendFirst      Opcode = 0x00
	SendMiddle     Opcode = 0x01
	SendLast       Opcode = 0x02
	SendLastImm    Opcode = 0x03
	SendOnly       Opcode = 0x04
	SendOnlyImm    Opcode = 0x05
	WriteFirst     Opcode = 0x06
	WriteMiddle    Opcode = 0x07
	WriteLast      Opcode = 0x08
	WriteLastImm   Opcode = 0x09
	WriteOnly      Opcode = 0x0a
	WriteOnlyImm   Opcode = 0x0b
	ReadRequest    Opcode = 0x0c
	ReadRespFirst  Opcode = 0x0d
	ReadRespMiddle Opcode = 0x0e
	ReadRespLast   Opcode = 0x0f
	ReadRespOnly   Opcode = 0x10
	Acknowledge    Opcode = 0x11
	AtomicResponse Opcode = 0x12
	CmpSwap        Opcode = 0x13
	FetchAdd       Opcode = 0x14
	SendLastInv    Opcode = 0x16
	SendOnlyInv    Opcode = 0x17

	// InfiniBand has no masked atomics (RFC 7306 §5) and leaves these numbers free. RDMA over
	// Falcon sends them, RoCEv2 has others on the wire.
	MaskedCmpSwap  Opcode = 0x18
	MaskedFetchAdd Opcode = 0x19
)

// Kind is what a packet is for.
type Kind uint8

// Kinds of packets.
const (
	KindData     Kind = iota + 1 // carries data of a SEND or WRITE
	KindPull                     // requests a READ or an atomic
	KindResponse                 // sent to the requester
)

// Info describes an operation.
type Info struct {
	Name        string
	Kind        Kind       // 0: there is no such operation
	Verb        abi.Opcode // of a request: what it asks for. A SEND or WRITE is one with immediate data, or a key to invalidate, only in its last packet
	First, Last bool       // of its message
}

var infos = [32]Info{
	SendFirst:      {"SEND First", KindData, abi.OpSend, true, false},
	SendMiddle:     {"SEND Middle", KindData, abi.OpSend, false, false},
	SendLast:       {"SEND Last", KindData, abi.OpSend, false, true},
	SendLastImm:    {"SEND Last with Immediate", KindData, abi.OpSendImm, false, true},
	SendLastInv:    {"SEND Last with Invalidate", KindData, abi.OpSendInv, false, true},
	SendOnly:       {"SEND Only", KindData, abi.OpSend, true, true},
	SendOnlyImm:    {"SEND Only with Immediate", KindData, abi.OpSendImm, true, true},
	SendOnlyInv:    {"SEND Only with Invalidate", KindData, abi.OpSendInv, true, true},
	WriteFirst:     {"WRITE First", KindData, abi.OpWrite, true, false},
	WriteMiddle:    {"WRITE Middle", KindData, abi.OpWrite, false, false},
	WriteLast:      {"WRITE Last", KindData, abi.OpWrite, false, true},
	WriteLastImm:   {"WRITE Last with Immediate", KindData, abi.OpWriteImm, false, true},
	WriteOnly:      {"WRITE Only", KindData, abi.OpWrite, true, true},
	WriteOnlyImm:   {"WRITE Only with Immediate", KindData, abi.OpWriteImm, true, true},
	ReadRequest:    {"READ Request", KindPull, abi.OpRead, true, true},
	CmpSwap:        {"CmpSwap", KindPull, abi.OpCmpSwap, true, true},
	FetchAdd:       {"FetchAdd", KindPull, abi.OpFetchAdd, true, true},
	MaskedCmpSwap:  {"Masked CmpSwap", KindPull, abi.OpMaskedCmpSwap, true, true},
	MaskedFetchAdd: {"Masked FetchAdd", KindPull, abi.OpMaskedFetchAdd, true, true},
	ReadRespFirst:  {"READ Response First", KindResponse, 0, true, false},
	ReadRespMiddle: {"READ Response Middle", KindResponse, 0, false, false},
	ReadRespLast:   {"READ Response Last", KindResponse, 0, false, true},
	ReadRespOnly:   {"READ Response Only", KindResponse, 0, true, true},
	AtomicResponse: {"ATOMIC Response", KindResponse, 0, true, true},
	Acknowledge:    {"Acknowledge", KindResponse, 0, true, true},
}

// Info describes the operation of an opcode, whatever its service.
func (op Opcode) Info() *Info { return &infos[op&^ServiceMask] }

// Atomic reports whether an operation, an opcode without service, is a request for an atomic.
func (op Opcode) Atomic() bool {
	return op == CmpSwap || op == FetchAdd || op == MaskedCmpSwap || op == MaskedFetchAdd
}

// packets holds the operations of a request's packets.
type packets struct{ only, first, middle, last Opcode }

// ofVerb is indexed by what a request asks for.
var ofVerb = [64]packets{
	abi.OpSend:           {SendOnly, SendFirst, SendMiddle, SendLast},
	abi.OpSendImm:        {SendOnlyImm, SendFirst, SendMiddle, SendLastImm},
	abi.OpSendInv:        {SendOnlyInv, SendFirst, SendMiddle, SendLastInv},
	abi.OpWrite:          {WriteOnly, WriteFirst, WriteMiddle, WriteLast},
	abi.OpAtomicWrite:    {WriteOnly, WriteFirst, WriteMiddle, WriteLast},
	abi.OpWriteImm:       {WriteOnlyImm, WriteFirst, WriteMiddle, WriteLastImm},
	abi.OpRead:           {ReadRequest, ReadRequest, ReadRequest, ReadRequest},
	abi.OpReadInv:        {ReadRequest, ReadRequest, ReadRequest, ReadRequest},
	abi.OpCmpSwap:        {only: CmpSwap},
	abi.OpFetchAdd:       {only: FetchAdd},
	abi.OpMaskedCmpSwap:  {only: MaskedCmpSwap},
	abi.OpMaskedFetchAdd: {only: MaskedFetchAdd},
}

// Operation returns the operation of a packet of a request: the packet may be the first and the
// last of its message.
func Operation(verb abi.Opcode, first, last bool) Opcode {
	p := &ofVerb[verb&63]
	switch {
	case first && last:
		return p.only
	case first:
		return p.first
	case last:
		return p.last
	}
	return p.middle
}

// Table says which extended headers the packets of a format have, by their opcodes.
type Table [256]Packet

// Packet describes the packets with one opcode.
type Packet struct {
	Name    string
	Headers Headers
	Len     int // base and extended headers together, bytes; 0: the opcode is reserved
}

// Set makes an opcode known. base is the length of the base header.
func (t *Table) Set(op Opcode, name string, base int, headers Headers) {
	t[op] = Packet{Name: name, Headers: headers, Len: base + headers.Len()}
}

// Name returns the name of an opcode with its service.
func (t *Table) Name(op Opcode) string {
	if t[op].Len == 0 {
		return fmt.Sprintf("reserved opcode %#02x", uint8(op))
	}
	return t[op].Name
}
