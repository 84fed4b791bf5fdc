package verbs

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// maxMessage is the longest message in bytes (InfiniBand: 2^31).
const maxMessage = 1 << 31

// SendWR is one send work request: a copy, made once, of what the driver posted, with the result of
// its checks.
type SendWR struct {
	transport.Request
	SGEs   SGL
	Inline []byte // data of an inline request
	bind   abi.BindMW
	reg    abi.FastReg

	started    bool        // past its fence, and counted if it is a READ or atomic
	done       bool        // reported; in unordered mode perhaps before older works
	unanswered bool        // the response to one of its packets was for another QP
	to         Destination // of a datagram
}

// inside reports whether the request concerns this side only.
func (w *SendWR) inside() bool {
	op := w.WQE.Opcode
	return op == abi.OpLocalInv || op == abi.OpBindMW || op == abi.OpRegMR
}

// parameters returns how many bytes of parameters an operation has behind the header, besides SGEs
// and data.
func parameters(op abi.Opcode) int {
	switch op {
	case abi.OpBindMW:
		return abi.BindMWSize
	case abi.OpRegMR:
		return abi.FastRegSize
	}
	return 0
}

// local completes a request that concerns this side only from the rest of its entry.
func (w *SendWR) local(rest []byte) (abi.WCStatus, Reason) {
	x := &w.WQE
	op, n := uint64(x.Opcode), parameters(x.Opcode)
	switch {
	case x.Flags&abi.SendInline != 0 || x.NumSGE != 0:
		return abi.WCLocQPOpErr, because("opcode %d has no data: no SGEs, and it is not inline", op)
	case len(rest) < n:
		return abi.WCLocQPOpErr, because("opcode %d needs %d bytes behind the header, and the stride of the queue has %d", op, uint64(n), uint64(len(rest)))
	}
	switch x.Opcode {
	case abi.OpBindMW:
		w.bind.Unmarshal(rest)
	case abi.OpRegMR:
		w.reg.Unmarshal(rest)
	}
	return abi.WCSuccess, Reason{}
}

// word completes an atomic WRITE, which writes 8 bytes that are in the entry.
func (w *SendWR) word() (abi.WCStatus, Reason) {
	x := &w.WQE
	switch {
	case x.Flags&abi.SendInline != 0 || x.NumSGE != 0:
		return abi.WCLocQPOpErr, because("an atomic WRITE has its data in Swap: no SGEs, and it is not inline")
	case x.RemoteAddr&7 != 0:
		return abi.WCLocQPOpErr, because("an atomic WRITE goes to an address that 8 divides, not to %#x", x.RemoteAddr)
	}
	w.Inline = binary.LittleEndian.AppendUint64(w.Inline, x.Swap)
	w.Length = uint32(len(w.Inline))
	x.Flags, x.InlineLen = x.Flags|abi.SendInline, 0 // the limit of the queue on inline data does not apply
	return abi.WCSuccess, Reason{}
}

// at returns the position of offset in the request's list.
func (w *SendWR) at(offset uint32) (c Cursor) {
	if len(w.SGEs) > 0 && offset < w.SGEs[0].Length { // usually there is one element
		return Cursor{offset: offset}
	}
	c.Advance(w.SGEs, offset)
	return c
}

// WCOpcode returns the opcode in the completion of an operation op.
func WCOpcode(op abi.Opcode) abi.WCOpcode {
	switch op {
	case abi.OpWrite, abi.OpWriteImm:
		return abi.WCOpWrite
	case abi.OpAtomicWrite:
		return abi.WCOpAtomicWrite
	case abi.OpRead, abi.OpReadInv:
		return abi.WCOpRead
	case abi.OpLocalInv:
		return abi.WCOpLocalInv
	case abi.OpBindMW:
		return abi.WCOpBindMW
	case abi.OpRegMR:
		return abi.WCOpRegMR
	case abi.OpCmpSwap:
		return abi.WCOpCmpSwap
	case abi.OpFetchAdd:
		return abi.WCOpFetchAdd
	case abi.OpMaskedCmpSwap:
		return abi.WCOpMaskedCmpSwap
	case abi.OpMaskedFetchAdd:
		return abi.WCOpMaskedFetchAdd
	}
	return abi.WCOpSend
}
