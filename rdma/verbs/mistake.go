package verbs

import (
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Mistake describes what is wrong with a work request that fails because of an error on its own
// side. The driver gets the status in the completion; this is for people who look for the cause.
// The request need not break a clause of docs/abi: examples are an operation that the queue pair
// does not have, a key, a length.
type Mistake struct {
	Ring   abi.Ring // RingSQ, RingRQ or RingSRQ
	Queue  uint32   // the QP or SRQ
	Index  uint32   // of the entry
	Status abi.WCStatus
	Why    Reason
}

// Reason is a text that is formatted only when it is read, because a driver may make mistakes as
// fast as it posts.
type Reason struct {
	format string
	args   [4]uint64
	n      int
}

func because(format string, args ...uint64) Reason {
	r := Reason{format: format}
	r.n = copy(r.args[:], args)
	return r
}

func (r Reason) String() string {
	args := make([]any, r.n)
	for i := range args {
		args[i] = r.args[i]
	}
	return fmt.Sprintf(r.format, args...)
}

// mistaken reports what is wrong with the entry of a queue.
func (u *WorkQueue) mistaken(index uint32, st abi.WCStatus, why Reason) {
	u.owner.out.Mistake(&Mistake{Ring: u.kind, Queue: u.number, Index: index, Status: st, Why: why})
}

// wrongSGE returns why Regions.SGEs rejected one of the n elements in b.
func (r *Regions) wrongSGE(pd *PD, privileged bool, b []byte, n int, need uint32) Reason {
	for i := range n {
		var x abi.SGE
		x.Unmarshal(b[i*abi.SGESize:])
		if x.Length == 0 || r.memory(pd, privileged, x.LKey, x.Addr, uint64(x.Length), need) != nil {
			continue
		}
		at, key := uint64(i), uint64(x.LKey)
		switch m := r.named(x.LKey); {
		case x.LKey == abi.ReservedLKey:
			return because("SGE %d: the reserved lkey %#x is for privileged queues, and device addresses below 2^62", at, key)
		case m == nil || m.window:
			return because("SGE %d: lkey %#x names no memory region", at, key)
		case m.pd != pd:
			return because("SGE %d: lkey %#x is of another protection domain than the queue", at, key)
		case !m.usable():
			return because("SGE %d: lkey %#x has no memory now: it was invalidated, or never registered", at, key)
		case m.access&need != need:
			return because("SGE %d: lkey %#x has no local write access, which what comes in needs", at, key)
		default:
			return because("SGE %d: %d bytes at %#x are not inside the region of lkey %#x", at, uint64(x.Length), x.Addr, key)
		}
	}
	return because("an SGE names no memory of the queue")
}

// notInside returns why a request that concerns this side only was refused.
func (w *SendWR) notInside() Reason {
	x := &w.WQE
	switch x.Opcode {
	case abi.OpLocalInv:
		return because("the key to invalidate, %#x, is no valid region or bound window of the QP's protection domain, or windows are bound to it", uint64(x.Imm))
	case abi.OpRegMR:
		return because("key %#x is no free region of the QP's protection domain for %d bytes, or the page list, address or rights are impossible", uint64(x.RKey), w.reg.Length)
	}
	return because("window %#x is none of the QP's protection domain, or bound already; or lkey %#x gives no memory to bind: %d bytes at %#x", uint64(x.RKey), uint64(w.bind.LKey), w.bind.Length, w.bind.Addr)
}

// tooShort reports a receive that is too small for a message of at least n bytes. In a receive
// queue the message number is the index of the entry. For a shared receive queue only the ID of the
// request is known.
func (r *responder) tooShort(v *Receive, message uint32, n uint64) {
	if v.SRQ != nil {
		v.SRQ.queue.mistaken(0, abi.WCLocLenErr, because("the receive with ID %#x has room for %d bytes, and its message has %d or more", v.WRID, v.Capacity, n))
		return
	}
	r.rq.mistaken(message, abi.WCLocLenErr, because("it has room for %d bytes, and its message has %d or more", v.Capacity, n))
}
