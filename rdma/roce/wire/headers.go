package wire

import "github.com/falcon-vnic/vnic/rdma/ib"

// The opcodes of masked atomics have a prefix of those that InfiniBand leaves to manufacturers, and
// are otherwise those of the atomics (docs/roce.md). With XRC the prefix is XRC|Vendor.
const (
	Vendor ib.Opcode = 0xc0
	vendor           = Vendor - ib.MaskedCmpSwap + ib.CmpSwap // from an operation to its opcode
)

// CNP is the congestion notification packet (Annex A17.9.3).
const CNP ib.Opcode = 0x81

// CNPReserved is the number of reserved bytes after the BTH of a CNP.
const CNPReserved = 16

// MaxHeaderLen is the longest sequence of headers of one packet in bytes (an XRC masked atomic).
const MaxHeaderLen = BTHLen + ib.XRCETHLen + ib.AtomicETHLen + ib.AtomicMaskETHLen

// MaxDataHeaderLen is the longest sequence of a packet that has data.
const MaxDataHeaderLen = BTHLen + ib.XRCETHLen + ib.RETHLen + ib.ImmDtLen

// Opcode returns the opcode of an operation of a service.
func Opcode(service, operation ib.Opcode) ib.Opcode {
	if operation >= ib.MaskedCmpSwap {
		operation += vendor
	}
	return service | operation
}

// Operation returns the operation of an opcode, without its service.
func Operation(op ib.Opcode) ib.Opcode {
	if op&Vendor == Vendor {
		return op&^ib.ServiceMask + ib.MaskedCmpSwap - ib.CmpSwap
	}
	return op &^ ib.ServiceMask
}

// Opcodes holds the headers of each opcode (IBA table 38).
var Opcodes = opcodes()

func opcodes() *ib.Table {
	const masked = ib.HasAtomicETH | ib.HasAtomicMaskETH
	headers := map[ib.Opcode]ib.Headers{
		ib.SendFirst: 0, ib.SendMiddle: 0, ib.SendLast: 0, ib.SendOnly: 0,
		ib.SendLastImm: ib.HasImmDt, ib.SendOnlyImm: ib.HasImmDt, ib.SendLastInv: ib.HasIETH, ib.SendOnlyInv: ib.HasIETH,
		ib.WriteFirst: ib.HasRETH, ib.WriteMiddle: 0, ib.WriteLast: 0, ib.WriteOnly: ib.HasRETH,
		ib.WriteLastImm: ib.HasImmDt, ib.WriteOnlyImm: ib.HasRETH | ib.HasImmDt,
		ib.ReadRequest: ib.HasRETH, ib.CmpSwap: ib.HasAtomicETH, ib.FetchAdd: ib.HasAtomicETH,
		ib.MaskedCmpSwap: masked, ib.MaskedFetchAdd: masked,
		ib.ReadRespFirst: ib.HasAETH, ib.ReadRespMiddle: 0, ib.ReadRespLast: ib.HasAETH, ib.ReadRespOnly: ib.HasAETH,
		ib.Acknowledge: ib.HasAETH, ib.AtomicResponse: ib.HasAETH | ib.HasAtomicAckETH,
	}
	t := new(ib.Table)
	for op, h := range headers {
		name := op.Info().Name
		t.Set(Opcode(ib.RC, op), "RC "+name, BTHLen, h)
		if op <= ib.WriteOnlyImm {
			t.Set(ib.UC|op, "UC "+name, BTHLen, h)
		}
		if op.Info().Kind != ib.KindResponse {
			h |= ib.HasXRCETH
		}
		t.Set(Opcode(ib.XRC, op), "XRC "+name, BTHLen, h)
	}
	t.Set(ib.UD|ib.SendOnly, "UD SEND Only", BTHLen, ib.HasDETH)
	t.Set(ib.UD|ib.SendOnlyImm, "UD SEND Only with Immediate", BTHLen, ib.HasDETH|ib.HasImmDt)
	t.Set(CNP, "CNP", BTHLen, 0)
	return t
}

// Headers is the header sequence of one packet. BTH.Opcode decides which extended headers are on
// the wire. Append ignores the others, and Parse leaves them zero.
type Headers struct {
	BTH BTH
	ib.Extended
}

// Append appends the encoded sequence to b. For a reserved opcode it appends only the BTH.
func (h *Headers) Append(b []byte) []byte {
	return h.Extended.Append(h.BTH.Append(b), Opcodes[h.BTH.Opcode].Headers, 0)
}

// Parse decodes the headers at the start of b into h and returns their length in bytes. The error
// is ib.ErrShort, ib.ErrVersion or ib.ErrOpcode. With an error, h.BTH is valid only for
// ib.ErrOpcode and for an ib.ErrShort after the base header.
func (h *Headers) Parse(b []byte) (n int, err error) {
	*h = Headers{}
	if h.BTH, err = ParseBTH(b); err != nil {
		return 0, err
	}
	switch p := &Opcodes[h.BTH.Opcode]; {
	case p.Len == 0:
		return 0, ib.ErrOpcode
	case len(b) < p.Len:
		return 0, ib.ErrShort
	default:
		h.Extended.Parse(b[BTHLen:], p.Headers, 0)
		return p.Len, nil
	}
}

// Data returns the data of a transport packet without ICRC, whose headers have length n; see
// ib.CutData.
func (h *BTH) Data(packet []byte, n int) (data []byte, ok bool) { return ib.CutData(packet, n, h.Pad) }
