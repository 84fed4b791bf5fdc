package wire

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/rdma/ib"
)

// number24Shift is the place of the 24-bit numbers of XRCETH and DETH in their words. The figures
// of RDMA over Falcon §8.3.9 and §8.3.10 have them on the left; InfiniBand, whose format the text
// says it is, has them on the right. Falcon follows the figures.
const number24Shift = 8

// MaxDataHeaderLen is the longest sequence of headers in front of data (an XRC WRITE with
// immediate). A Falcon connection needs an MTU of the segment and this to carry full segments.
const MaxDataHeaderLen = RBTHLen + ib.XRCETHLen + ib.RETHLen + ib.SETHLen + ib.ImmDtLen

// Bounds of a connection's segment: the most data in one packet, a power of two. Falcon does not bind
// it to InfiniBand's path MTU, whose largest is 4096. Above MaxSegment not even the length of a packet
// would fit Falcon's 16 bits.
const (
	MinSegment = 256
	MaxSegment = 1 << 15
)

// SegmentFor returns the largest segment of at most n bytes, or 0 if n is below MinSegment.
func SegmentFor(n int) int {
	if n < MinSegment {
		return 0
	}
	return 1 << (bits.Len(uint(min(n, MaxSegment))) - 1)
}

// Opcodes holds the headers of each opcode (RDMA over Falcon §8.1.3).
var Opcodes = opcodes()

// opcodes makes the table. The specification has no opcodes for unreliable connections and for XRC;
// they have InfiniBand's prefixes here (docs/wire.md). Responses have no XRCETH.
func opcodes() *ib.Table {
	const (
		send   = ib.HasSETH | ib.HasOETH
		imm    = ib.HasSETH | ib.HasImmDt
		pull   = ib.HasSETH | ib.HasSTETH
		masked = ib.HasAtomicETH | ib.HasAtomicMaskETH | pull
	)
	headers := map[ib.Opcode]ib.Headers{
		ib.SendFirst: send, ib.SendMiddle: send, ib.SendLast: send, ib.SendOnly: send,
		ib.SendLastImm: send | ib.HasImmDt, ib.SendOnlyImm: send | ib.HasImmDt,
		ib.SendLastInv: send | ib.HasIETH, ib.SendOnlyInv: send | ib.HasIETH,
		ib.WriteFirst: ib.HasRETH, ib.WriteMiddle: ib.HasRETH, ib.WriteLast: ib.HasRETH, ib.WriteOnly: ib.HasRETH,
		ib.WriteLastImm: ib.HasRETH | imm, ib.WriteOnlyImm: ib.HasRETH | imm,
		ib.ReadRequest: ib.HasRETH | pull, ib.CmpSwap: ib.HasAtomicETH | pull, ib.FetchAdd: ib.HasAtomicETH | pull,
		ib.MaskedCmpSwap: masked, ib.MaskedFetchAdd: masked,
		ib.ReadRespFirst: ib.HasSTETH, ib.ReadRespMiddle: ib.HasSTETH, ib.ReadRespLast: ib.HasSTETH, ib.ReadRespOnly: ib.HasSTETH,
		ib.AtomicResponse: ib.HasAtomicAckETH | ib.HasSTETH,
	}
	t := new(ib.Table)
	for op, h := range headers {
		name := op.Info().Name
		t.Set(ib.RC|op, name, RBTHLen, h)
		if op <= ib.WriteOnlyImm {
			t.Set(ib.UC|op, "UC "+name, RBTHLen, h)
		}
		if op.Info().Kind != ib.KindResponse {
			h |= ib.HasXRCETH
		}
		t.Set(ib.XRC|op, "XRC "+name, RBTHLen, h)
	}
	t.Set(ib.UD|ib.SendOnly, "UD SEND Only", RBTHLen, ib.HasDETH)
	t.Set(ib.UD|ib.SendOnlyImm, "UD SEND Only with Immediate", RBTHLen, ib.HasDETH|ib.HasImmDt)
	return t
}

// Headers is the header sequence of one packet. RBTH.Opcode decides which extended headers are on
// the wire. Append ignores the others, and Parse leaves them zero.
type Headers struct {
	RBTH RBTH
	ib.Extended
}

// Append appends the encoded sequence to b. For a reserved opcode it appends only the RBTH.
func (h *Headers) Append(b []byte) []byte {
	return h.Extended.Append(h.RBTH.Append(b), Opcodes[h.RBTH.Opcode].Headers, number24Shift)
}

// Length returns what Parse returns, and decodes nothing.
func Length(b []byte) (n int, err error) {
	if len(b) < RBTHLen {
		return 0, ib.ErrShort
	}
	if b[0]>>4 != Version {
		return 0, ib.ErrVersion
	}
	switch n = Opcodes[b[3]].Len; {
	case n == 0:
		return 0, ib.ErrOpcode
	case len(b) < n:
		return 0, ib.ErrShort
	}
	return n, nil
}

// Parse decodes the headers at the start of b into h and returns their length in bytes. The error
// is ib.ErrShort, ib.ErrVersion or ib.ErrOpcode. With an error, h.RBTH is valid only for
// ib.ErrOpcode and for an ib.ErrShort after the base header.
func (h *Headers) Parse(b []byte) (n int, err error) {
	*h = Headers{}
	if h.RBTH, err = ParseRBTH(b); err != nil {
		return 0, err
	}
	switch p := &Opcodes[h.RBTH.Opcode]; {
	case p.Len == 0:
		return 0, ib.ErrOpcode
	case len(b) < p.Len:
		return 0, ib.ErrShort
	default:
		h.Extended.Parse(b[RBTHLen:], p.Headers, number24Shift)
		return p.Len, nil
	}
}

// Data returns the data of an upper-layer part whose headers have length n; see ib.CutData.
func (h *RBTH) Data(part []byte, n int) (data []byte, ok bool) { return ib.CutData(part, n, h.Pad) }

// PushLength returns the Request Length of a push: everything after Falcon's own header, for op
// with n bytes of data (Falcon §7.5). It is 0 if op is not sent in Push Data.
func PushLength(op ib.Opcode, n int) int {
	if p := &Opcodes[op]; p.Len != 0 && op.Info().Kind == ib.KindData {
		return p.Len + ib.Padded(n)
	}
	return 0
}

// PullLength returns the Request Length of a pull: the length of the Pull Data payload that answers
// the request op (Falcon §7.3), 24+n padded for a READ of n bytes, 32 for an atomic. It is 0 if op
// is not sent in a Pull Request.
func PullLength(op ib.Opcode, n int) int {
	switch {
	case Opcodes[op].Len == 0 || op.Info().Kind != ib.KindPull:
		return 0
	case (op &^ ib.ServiceMask).Atomic():
		return Opcodes[ib.AtomicResponse].Len
	}
	return Opcodes[ib.ReadRespOnly].Len + ib.Padded(n)
}
