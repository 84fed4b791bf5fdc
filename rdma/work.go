package rdma

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// maxMessage is the longest message in bytes (InfiniBand: 2^31).
const maxMessage = 1 << 31

// work is one send work request: a copy of what the driver posted, made once, with its checks'
// outcome.
type work struct {
	transport.Request
	sges   verbs.SGL
	inline []byte // data of an inline request
	bind   abi.BindMW

	started    bool  // counted as READ or atomic, past its fence
	done       bool  // reported, out of order
	unanswered bool  // the response to a packet was for another QP
	link       *Link // that carries it, of a datagram
}

// inside reports whether the request concerns this side only.
func (w *work) inside() bool { return w.WQE.Opcode == abi.OpLocalInv || w.WQE.Opcode == abi.OpBindMW }

// fetch reads the next entry of the send queue into its ring slot. ok is false when there is none.
func (q *QP) fetch() (w *work, ok bool) {
	b, ok := q.sq.Next(q.fn.e.shared.Entry[:])
	if !ok {
		return nil, false
	}
	r := &q.req
	w = r.add()
	q.fn.Owner.Stats.Posted++
	w.Index = q.sq.Index() - 1
	w.WQE.Unmarshal(b)
	w.Status = q.check(w, b[abi.SendWQEHeader:])
	if q.datagrams() && w.Status == abi.WCSuccess {
		w.Status = q.checkDatagram(w)
	}
	if q.fn.Faults() != nil && w.Status == abi.WCSuccess {
		w.Status = q.fn.Faults().Work(q.number, w.WQE.Opcode)
	}
	if q.fn.Strict() && w.reserved(b) {
		q.sq.Broke(abi.DRV102, b)
	}
	if clause := q.brokenBy(w); clause != 0 {
		q.sq.Broke(clause, b)
	}
	if q.fn.Trace != nil {
		q.noteRead(w)
	}
	return w, true
}

// check completes w from the rest of its entry and says what is wrong with it. From here on the
// shared memory of the entry is not looked at again.
func (q *QP) check(w *work, rest []byte) abi.WCStatus {
	x := &w.WQE
	var need uint32
	switch x.Opcode {
	case abi.OpSend, abi.OpSendImm, abi.OpSendInv, abi.OpWrite, abi.OpWriteImm:
	case abi.OpRead, abi.OpCmpSwap, abi.OpFetchAdd, abi.OpMaskedCmpSwap, abi.OpMaskedFetchAdd:
		if q.attr.maxRdAtomic == 0 {
			return abi.WCLocQPOpErr
		}
		need = abi.AccessLocalWrite
	case abi.OpReadInv:
		if q.attr.maxRdAtomic == 0 || !q.fn.Names(q.pd, x.Imm) {
			return abi.WCLocQPOpErr
		}
		need = abi.AccessLocalWrite
	case abi.OpLocalInv, abi.OpBindMW:
		return w.local(rest)
	default:
		return abi.WCLocQPOpErr
	}
	if x.Flags&abi.SendInline != 0 {
		switch {
		case need != 0 || x.NumSGE != 0:
			return abi.WCLocQPOpErr
		case x.InlineLen > uint32(q.req.maxInline):
			return abi.WCLocLenErr
		}
		w.inline = append(w.inline, rest[:x.InlineLen]...)
		w.Length = x.InlineLen
		return abi.WCSuccess
	}
	if int(x.NumSGE) > q.req.maxSGE {
		return abi.WCLocQPOpErr
	}
	if x.Opcode == abi.OpMaskedCmpSwap || x.Opcode == abi.OpMaskedFetchAdd {
		if x.NumSGE != 1 {
			return abi.WCLocLenErr // and only one SGE is sure to fit the entry behind the masks
		}
		w.Masks.Unmarshal(rest)
		rest = rest[abi.AtomicMasksSize:]
	}
	var total uint64
	var ok bool
	if w.sges, total, ok = q.fn.SGEs(q.pd, w.sges, rest, int(x.NumSGE), need); !ok {
		return abi.WCLocProtErr
	}
	if total > maxMessage {
		return abi.WCLocLenErr
	}
	w.Length = uint32(total)
	if w.Atomic() && (len(w.sges) != 1 || w.Length != 8) {
		return abi.WCLocLenErr
	}
	return abi.WCSuccess
}

// reserved reports whether something is in the reserved bits of the entry.
func (w *work) reserved(entry []byte) bool {
	rest := entry[abi.SendWQEHeader:]
	return w.WQE.Reserved(entry) || w.WQE.Opcode == abi.OpBindMW && len(rest) >= abi.BindMWSize && w.bind.Reserved(rest)
}

// brokenBy names the clause that an entry breaks by its form; what it names may be wrong as well,
// which is no matter of the ABI.
func (q *QP) brokenBy(w *work) abi.Clause {
	x := &w.WQE
	masked := x.Opcode == abi.OpMaskedCmpSwap || x.Opcode == abi.OpMaskedFetchAdd
	switch {
	case masked && !q.fn.Extended():
		return abi.DRV103
	case x.Flags&abi.SendInline != 0 && x.InlineLen > uint32(q.req.maxInline), x.Flags&abi.SendInline == 0 && int(x.NumSGE) > q.req.maxSGE:
		return abi.DRV608
	case masked && x.NumSGE != 1:
		return abi.DRV611
	}
	return 0
}

// local completes a request that concerns this side only from the rest of its entry.
func (w *work) local(rest []byte) abi.WCStatus {
	x := &w.WQE
	if x.Flags&abi.SendInline != 0 || x.NumSGE != 0 {
		return abi.WCLocQPOpErr
	}
	if x.Opcode == abi.OpBindMW {
		if len(rest) < abi.BindMWSize {
			return abi.WCLocQPOpErr
		}
		w.bind.Unmarshal(rest)
	}
	return abi.WCSuccess
}

// tooLong reports whether the request breaks the size limits of the unordered mode (RDMA over
// Falcon §6.4): messages that take a receive have one packet. It holds when there is a connection,
// whose size of packets that is.
func (q *QP) tooLong(w *work) bool {
	return q.unordered && w.TakesReceive() && w.Length > uint32(q.segment)
}

// wcOpcode is the operation a completion of op reports.
func wcOpcode(op abi.Opcode) abi.WCOpcode {
	switch op {
	case abi.OpWrite, abi.OpWriteImm:
		return abi.WCOpWrite
	case abi.OpRead, abi.OpReadInv:
		return abi.WCOpRead
	case abi.OpLocalInv:
		return abi.WCOpLocalInv
	case abi.OpBindMW:
		return abi.WCOpBindMW
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
