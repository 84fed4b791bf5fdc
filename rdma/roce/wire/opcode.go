package wire

import (
	"fmt"

	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// Opcode is the BTH opcode: the service in the top three bits, the operation in the low five (IBA
// table 38).
type Opcode uint8

// Services.
const (
	RC  Opcode = 0x00
	UC  Opcode = 0x20
	UD  Opcode = 0x60
	XRC Opcode = 0xa0

	// ServiceMask keeps the service of an opcode.
	ServiceMask Opcode = 0xe0
)

// Operations: those of RDMA over Falcon, which are InfiniBand's, and the acknowledgement.
const (
	SendFirst      = Opcode(falcon.SendFirst)
	SendMiddle     = Opcode(falcon.SendMiddle)
	SendLast       = Opcode(falcon.SendLast)
	SendLastImm    = Opcode(falcon.SendLastImm)
	SendOnly       = Opcode(falcon.SendOnly)
	SendOnlyImm    = Opcode(falcon.SendOnlyImm)
	WriteFirst     = Opcode(falcon.WriteFirst)
	WriteMiddle    = Opcode(falcon.WriteMiddle)
	WriteLast      = Opcode(falcon.WriteLast)
	WriteLastImm   = Opcode(falcon.WriteLastImm)
	WriteOnly      = Opcode(falcon.WriteOnly)
	WriteOnlyImm   = Opcode(falcon.WriteOnlyImm)
	ReadRequest    = Opcode(falcon.ReadRequest)
	ReadRespFirst  = Opcode(falcon.ReadRespFirst)
	ReadRespMiddle = Opcode(falcon.ReadRespMiddle)
	ReadRespLast   = Opcode(falcon.ReadRespLast)
	ReadRespOnly   = Opcode(falcon.ReadRespOnly)
	Acknowledge    = Opcode(0x11)
	AtomicResponse = Opcode(falcon.AtomicResponse)
	CmpSwap        = Opcode(falcon.CmpSwap)
	FetchAdd       = Opcode(falcon.FetchAdd)
	SendLastInv    = Opcode(falcon.SendLastInv)
	SendOnlyInv    = Opcode(falcon.SendOnlyInv)
)

// Masked atomics, for which InfiniBand has no opcodes. These are our choice among the opcodes that
// it leaves to manufacturers (docs/roce.md). With XRC the prefix is XRCVendor.
const (
	Vendor         Opcode = 0xc0
	XRCVendor      Opcode = 0xe0
	MaskedCmpSwap         = Vendor | CmpSwap
	MaskedFetchAdd        = Vendor | FetchAdd
)

// CNP is the congestion notification packet (Annex A17.9.3).
const CNP Opcode = 0x81

// CNPReserved is the number of reserved bytes after the BTH of a CNP.
const CNPReserved = 16

// header is one extended header in an opcode's header set.
type header uint16

// Extended headers, in the order in which they follow the BTH.
const (
	hdrXRCETH header = 1 << iota
	hdrDETH
	hdrRETH
	hdrAtomicETH
	hdrAtomicMaskETH
	hdrAETH
	hdrAtomicAckETH
	hdrImmDt
	hdrIETH
)

// headerLens is indexed by the bit number of a header.
var headerLens = [...]int{
	XRCETHLen, DETHLen, falcon.RETHLen, falcon.AtomicETHLen, falcon.AtomicMaskETHLen, AETHLen, falcon.AtomicAckETHLen,
	falcon.ImmDtLen, falcon.IETHLen,
}

// MaxHeaderLen is the longest sequence of headers of one packet in bytes (an XRC masked atomic).
const MaxHeaderLen = BTHLen + XRCETHLen + falcon.AtomicETHLen + falcon.AtomicMaskETHLen

// MaxDataHeaderLen is the longest sequence of a packet that has data.
const MaxDataHeaderLen = BTHLen + XRCETHLen + falcon.RETHLen + falcon.ImmDtLen

// Info describes an opcode.
type Info struct {
	Name        string
	Len         int // BTH and the extended headers together, bytes
	First, Last bool
	Data        bool // carries data of a SEND or WRITE
	Response    bool // sent to the requester

	headers header
}

var opcodes = buildOpcodes()

func buildOpcodes() (t [256]Info) {
	set := func(op Opcode, i Info) {
		i.Len = BTHLen
		for bit, l := range headerLens {
			if i.headers&(1<<bit) != 0 {
				i.Len += l
			}
		}
		t[op] = i
	}
	type row struct {
		op          Opcode
		name        string
		first, last bool
		headers     header
	}
	sends := []row{
		{SendFirst, "SEND First", true, false, 0},
		{SendMiddle, "SEND Middle", false, false, 0},
		{SendLast, "SEND Last", false, true, 0},
		{SendLastImm, "SEND Last with Immediate", false, true, hdrImmDt},
		{SendOnly, "SEND Only", true, true, 0},
		{SendOnlyImm, "SEND Only with Immediate", true, true, hdrImmDt},
	}
	writes := []row{
		{WriteFirst, "WRITE First", true, false, hdrRETH},
		{WriteMiddle, "WRITE Middle", false, false, 0},
		{WriteLast, "WRITE Last", false, true, 0},
		{WriteLastImm, "WRITE Last with Immediate", false, true, hdrImmDt},
		{WriteOnly, "WRITE Only", true, true, hdrRETH},
		{WriteOnlyImm, "WRITE Only with Immediate", true, true, hdrRETH | hdrImmDt},
	}
	invalidates := []row{
		{SendLastInv, "SEND Last with Invalidate", false, true, hdrIETH},
		{SendOnlyInv, "SEND Only with Invalidate", true, true, hdrIETH},
	}
	pulls := []row{
		{ReadRequest, "READ Request", true, true, hdrRETH},
		{CmpSwap, "CmpSwap", true, true, hdrAtomicETH},
		{FetchAdd, "FetchAdd", true, true, hdrAtomicETH},
	}
	masked := []row{
		{MaskedCmpSwap, "Masked CmpSwap", true, true, hdrAtomicETH | hdrAtomicMaskETH},
		{MaskedFetchAdd, "Masked FetchAdd", true, true, hdrAtomicETH | hdrAtomicMaskETH},
	}
	responses := []row{
		{ReadRespFirst, "READ Response First", true, false, hdrAETH},
		{ReadRespMiddle, "READ Response Middle", false, false, 0},
		{ReadRespLast, "READ Response Last", false, true, hdrAETH},
		{ReadRespOnly, "READ Response Only", true, true, hdrAETH},
		{Acknowledge, "Acknowledge", true, true, hdrAETH},
		{AtomicResponse, "ATOMIC Acknowledge", true, true, hdrAETH | hdrAtomicAckETH},
	}
	add := func(prefix Opcode, service string, extra header, i Info, lists ...[]row) {
		for _, list := range lists {
			for _, r := range list {
				i.Name, i.First, i.Last, i.headers = service+r.name, r.first, r.last, r.headers|extra
				set(prefix|r.op, i)
			}
		}
	}
	data, response := Info{Data: true}, Info{Response: true}
	add(RC, "RC ", 0, data, sends, writes, invalidates)
	add(RC, "RC ", 0, Info{}, pulls, masked)
	add(RC, "RC ", 0, response, responses)
	add(XRC, "XRC ", hdrXRCETH, data, sends, writes, invalidates)
	add(XRC, "XRC ", hdrXRCETH, Info{}, pulls, masked)
	add(XRC, "XRC ", 0, response, responses)
	add(UC, "UC ", 0, data, sends, writes)
	add(UD, "UD ", hdrDETH, data, sends[4:])
	set(CNP, Info{Name: "CNP", Response: true, First: true, Last: true})
	return t
}

// Info returns the table's entry for op, nil if op is reserved.
func (op Opcode) Info() *Info {
	if i := &opcodes[op]; i.Len != 0 {
		return i
	}
	return nil
}

// HeaderLen returns the length of the BTH and op's extended headers in bytes, 0 if op is reserved.
func (op Opcode) HeaderLen() int { return opcodes[op].Len }

// HasAETH reports whether a packet has an AETH.
func (op Opcode) HasAETH() bool { return opcodes[op].headers&hdrAETH != 0 }

// String returns the name of op with its service.
func (op Opcode) String() string {
	if i := op.Info(); i != nil {
		return i.Name
	}
	return fmt.Sprintf("reserved opcode %#02x", uint8(op))
}
