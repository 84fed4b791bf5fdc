package wire

import "fmt"

// Opcode is the RBTH opcode: the service in the top three bits, the operation in the low five
// (RDMA over Falcon §8.1.3).
type Opcode uint8

// Opcodes of the reliable connection service.
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
	AtomicResponse Opcode = 0x12
	CmpSwap        Opcode = 0x13
	FetchAdd       Opcode = 0x14
	SendLastInv    Opcode = 0x16
	SendOnlyInv    Opcode = 0x17
)

// Opcodes of masked atomics (RFC 7306 §5), which RDMA over Falcon reserves: an own choice
// (docs/wire.md).
const (
	MaskedCmpSwap  Opcode = 0x18
	MaskedFetchAdd Opcode = 0x19
)

// Opcodes of the unreliable datagram service.
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
)

// ServiceMask keeps the operation of an opcode; what is above it is the service.
const ServiceMask Opcode = 0x1f

// UC is the service prefix of opcodes of unreliable connections, InfiniBand's 001b; the
// specification assigns none (docs/wire.md). UC|op carries what op carries; there are SENDs without
// a key to invalidate, and WRITEs.
const UC Opcode = 0x20

// XRC is the service prefix of XRC opcodes, InfiniBand's 101b; the specification assigns none.
// XRC|op carries XRCETH when op is a request and then what op carries.
const XRC Opcode = 0xa0

// Kind is the Falcon packet type an opcode travels in.
type Kind uint8

// Kinds of packets.
const (
	KindPushData Kind = iota + 1
	KindPullRequest
	KindPullData
)

// Header names one extended header in an opcode's header set.
type Header uint16

// Extended headers, in the order in which those an opcode has follow RBTH.
const (
	HdrXRCETH Header = 1 << iota
	HdrDETH
	HdrRETH
	HdrAtomicETH
	HdrAtomicMaskETH
	HdrAtomicAckETH
	HdrSETH
	HdrOETH
	HdrSTETH
	HdrImmDt
	HdrIETH
)

// headerLens is indexed by the bit number of a Header.
var headerLens = [...]int{
	XRCETHLen, DETHLen, RETHLen, AtomicETHLen, AtomicMaskETHLen, AtomicAckETHLen,
	SETHLen, OETHLen, STETHLen, ImmDtLen, IETHLen,
}

// MaxHeaderLen is the longest sequence of RDMA headers of one packet in bytes (an XRC masked atomic
// request).
const MaxHeaderLen = RBTHLen + XRCETHLen + AtomicETHLen + AtomicMaskETHLen + SETHLen + STETHLen

// MaxDataHeaderLen is the longest sequence of headers in front of data (an XRC WRITE with
// immediate). A Falcon connection needs an MTU of the path MTU and this to carry full segments.
const MaxDataHeaderLen = RBTHLen + XRCETHLen + RETHLen + SETHLen + ImmDtLen

// Info is what the opcode table says about one opcode.
type Info struct {
	Name    string
	Kind    Kind
	Headers Header // the set of extended headers; the order is the order of the constants
	Len     int    // RBTH and the extended headers together, bytes
	First   bool   // begins a message
	Last    bool   // ends a message
}

var opcodes = buildOpcodes()

func buildOpcodes() (t [256]Info) {
	set := func(op Opcode, name string, kind Kind, first, last bool, headers Header) {
		n := RBTHLen
		for i, l := range headerLens {
			if headers&(1<<i) != 0 {
				n += l
			}
		}
		t[op] = Info{Name: name, Kind: kind, Headers: headers, Len: n, First: first, Last: last}
	}
	const (
		send   = HdrSETH | HdrOETH
		write  = HdrRETH
		imm    = HdrRETH | HdrSETH | HdrImmDt
		read   = HdrRETH | HdrSETH | HdrSTETH
		atomic = HdrAtomicETH | HdrSETH | HdrSTETH
	)
	for _, s := range []struct {
		prefix Opcode
		name   string
		extra  Header
	}{{0, "", 0}, {XRC, "XRC ", HdrXRCETH}} {
		request := func(op Opcode, name string, kind Kind, first, last bool, headers Header) {
			set(s.prefix|op, s.name+name, kind, first, last, headers|s.extra)
		}
		response := func(op Opcode, name string, first, last bool, headers Header) {
			set(s.prefix|op, s.name+name, KindPullData, first, last, headers)
		}
		request(SendFirst, "SEND First", KindPushData, true, false, send)
		request(SendMiddle, "SEND Middle", KindPushData, false, false, send)
		request(SendLast, "SEND Last", KindPushData, false, true, send)
		request(SendLastImm, "SEND Last with Immediate", KindPushData, false, true, send|HdrImmDt)
		request(SendOnly, "SEND Only", KindPushData, true, true, send)
		request(SendOnlyImm, "SEND Only with Immediate", KindPushData, true, true, send|HdrImmDt)
		request(SendLastInv, "SEND Last with Invalidate", KindPushData, false, true, send|HdrIETH)
		request(SendOnlyInv, "SEND Only with Invalidate", KindPushData, true, true, send|HdrIETH)
		request(WriteFirst, "WRITE First", KindPushData, true, false, write)
		request(WriteMiddle, "WRITE Middle", KindPushData, false, false, write)
		request(WriteLast, "WRITE Last", KindPushData, false, true, write)
		request(WriteLastImm, "WRITE Last with Immediate", KindPushData, false, true, imm)
		request(WriteOnly, "WRITE Only", KindPushData, true, true, write)
		request(WriteOnlyImm, "WRITE Only with Immediate", KindPushData, true, true, imm)
		request(ReadRequest, "READ Request", KindPullRequest, true, true, read)
		request(CmpSwap, "CmpSwap", KindPullRequest, true, true, atomic)
		request(FetchAdd, "FetchAdd", KindPullRequest, true, true, atomic)
		request(MaskedCmpSwap, "Masked CmpSwap", KindPullRequest, true, true, atomic|HdrAtomicMaskETH)
		request(MaskedFetchAdd, "Masked FetchAdd", KindPullRequest, true, true, atomic|HdrAtomicMaskETH)
		response(ReadRespFirst, "READ Response First", true, false, HdrSTETH)
		response(ReadRespMiddle, "READ Response Middle", false, false, HdrSTETH)
		response(ReadRespLast, "READ Response Last", false, true, HdrSTETH)
		response(ReadRespOnly, "READ Response Only", true, true, HdrSTETH)
		response(AtomicResponse, "ATOMIC Response", true, true, HdrAtomicAckETH|HdrSTETH)
	}
	for op := SendFirst; op <= WriteOnlyImm; op++ {
		t[UC|op] = t[op]
		t[UC|op].Name = "UC " + t[op].Name
	}
	set(UDSendOnly, "UD SEND Only", KindPushData, true, true, HdrDETH)
	set(UDSendOnlyImm, "UD SEND Only with Immediate", KindPushData, true, true, HdrDETH|HdrImmDt)
	return t
}

// Info returns the table's entry for op, or nil when op is reserved.
func (op Opcode) Info() *Info {
	if i := &opcodes[op]; i.Len != 0 {
		return i
	}
	return nil
}

// HeaderLen is the length of RBTH and op's extended headers in bytes, 0 when op is reserved.
func (op Opcode) HeaderLen() int { return opcodes[op].Len }

// String names op as the specification does.
func (op Opcode) String() string {
	if i := op.Info(); i != nil {
		return i.Name
	}
	return fmt.Sprintf("reserved opcode %#02x", uint8(op))
}
