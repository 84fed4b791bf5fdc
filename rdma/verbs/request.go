package verbs

import (
	"encoding/binary"
	"slices"

	"github.com/falcon-vnic/vnic/internal/pool"
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

// local reports whether the request concerns this side only.
func (w *SendWR) local() bool {
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

// readParameters completes a request that concerns this side only from the rest of its entry.
func (w *SendWR) readParameters(rest []byte) (abi.WCStatus, Reason) {
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

// readWord completes an atomic WRITE, which writes 8 bytes that are in the entry.
func (w *SendWR) readWord() (abi.WCStatus, Reason) {
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

// maxWorks limits the send work requests of a QP that were read and are not complete.
const maxWorks = 128

// sendRing holds the send work requests of a QP that were read and are not complete.
//
//	     head            next          tail      producer
//	──────┬───────────────┬─────────────┬───────────┬──
//	      │  with the     │ read, not   │ in guest  │
//	      │  connection   │ issued      │ memory    │
//
// Works complete in order at head. They come from the shard's pool.
type sendRing struct {
	pool             *pool.Pool[SendWR]
	ring             []*SendWR
	head, next, tail uint32
	maxSGE           int
	maxInline        int
	reads            int // READ and atomic works started and not completed
}

func (r *sendRing) init(p *pool.Pool[SendWR], works uint32, maxSGE, maxInline int) {
	r.pool, r.maxSGE, r.maxInline = p, maxSGE, maxInline
	r.ring = make([]*SendWR, works)
}

// forget drops all works.
func (r *sendRing) forget() {
	r.reads = 0
	for ; r.head != r.tail; r.head++ {
		r.release(r.take(r.head))
	}
	r.head, r.next, r.tail = 0, 0, 0
}

// add puts a new work at tail, with room for as many SGEs and inline bytes as the QP's requests may
// have.
func (r *sendRing) add() *SendWR {
	w := r.pool.Get()
	w.SGEs, w.Inline = slices.Grow(w.SGEs, r.maxSGE), slices.Grow(w.Inline, r.maxInline) // both are empty
	w.Slot = r.tail
	*r.place(r.tail) = w
	r.tail++
	return w
}

// take removes the work at index from the ring. The caller must release it.
func (r *sendRing) take(index uint32) *SendWR {
	at := r.place(index)
	w := *at
	*at = nil
	return w
}

func (r *sendRing) release(w *SendWR) {
	clear(w.SGEs) // the pool must not keep regions alive
	*w = SendWR{SGEs: w.SGEs[:0], Inline: w.Inline[:0]}
	r.pool.Put(w)
}

func (r *sendRing) place(index uint32) **SendWR { return &r.ring[index&uint32(len(r.ring)-1)] }
func (r *sendRing) at(index uint32) *SendWR     { return *r.place(index) }

// retireDone removes works at head that were reported.
func (r *sendRing) retireDone() {
	for r.head != r.tail && r.at(r.head).done {
		r.release(r.retire())
	}
}

// retire removes the work at head from the ring.
func (r *sendRing) retire() *SendWR {
	w := r.take(r.head)
	if r.next == r.head {
		r.next++ // it failed before it was issued
	}
	r.head++
	return w
}

// begun reports whether works that were started are still outstanding.
func (r *sendRing) begun() bool {
	return r.head != r.next || r.next != r.tail && r.at(r.next).started
}
