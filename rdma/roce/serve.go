package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// takeRead takes a READ that is next: it takes as many PSNs as its response has packets.
func (c *Conn) takeRead(now transport.Time, h *wire.Headers) {
	n := h.RETH.Length
	if n > maxMessage || c.unanswered() >= c.terms.Serves {
		c.refuse(now, transport.Invalid, true)
		return
	}
	memory, r := c.user.Read(h.RETH.RKey, h.RETH.VA, n)
	if r != transport.Accepted {
		c.refuse(now, r, true)
		return
	}
	packets := c.packets(n)
	c.account.PullsRx += uint64(packets)
	psn := c.expected
	c.took(packets, true)
	c.read(now, h, psn, packets, memory)
}

// packets is how many the response to a READ of n bytes has.
func (c *Conn) packets(n uint32) int { return max(1, (int(n)+c.segment-1)/c.segment) }

// unanswered is how many READs and atomics wait for their answer.
func (c *Conn) unanswered() int { return c.answers.Len() }

// read makes the response to a READ due, as the function's rate has it.
func (c *Conn) read(now transport.Time, h *wire.Headers, psn wire.PSN, packets int, memory transport.Memory) {
	at := c.user.AnswerAt(now)
	if at > now {
		c.account.RateWaits++
		c.account.PullsDeferred++
	}
	c.user.Answered(int(h.RETH.Length))
	c.insert(answer{psn: psn, left: packets, msn: c.msn, memory: memory, addr: h.RETH.VA, length: h.RETH.Length, at: at})
	c.wake()
}

// takeAtomic carries out an atomic that is next.
func (c *Conn) takeAtomic(now transport.Time, op wire.Opcode, h *wire.Headers) {
	if c.unanswered() >= c.terms.Serves {
		c.refuse(now, transport.Invalid, true)
		return
	}
	x := &c.e.atomic
	*x = transport.Atomic{
		Op: abi.OpMaskedFetchAdd, Addr: h.Atomic.VA, RKey: h.Atomic.RKey, Compare: h.Atomic.Compare, SwapAdd: h.Atomic.SwapAdd,
		Masks: abi.AtomicMasks(h.Mask),
	}
	switch op {
	case wire.CmpSwap:
		x.Op = abi.OpCmpSwap
	case wire.FetchAdd:
		x.Op = abi.OpFetchAdd
	case wire.MaskedCmpSwap:
		x.Op = abi.OpMaskedCmpSwap
	}
	original, r := c.user.Atomic(x)
	if r != transport.Accepted {
		c.refuse(now, r, true)
		return
	}
	c.account.PullsRx++
	psn := c.expected
	c.took(1, true)
	c.keep(result{psn: psn, original: original, msn: c.msn, present: true})
	c.repeatAtomic(psn)
}

// repeatAtomic makes the answer to an atomic due, if its result is kept.
func (c *Conn) repeatAtomic(psn wire.PSN) {
	if r := c.result(psn); r != nil {
		c.insert(answer{psn: psn, left: 1, atomic: true, original: r.original, msn: r.msn})
		c.wake()
	}
}

// duplicate takes a request that came before (IBA §9.7.5.1.1): data is acknowledged again, as of now;
// a READ is carried out again, or what is asked of it; an atomic is not.
func (c *Conn) duplicate(now transport.Time, h *wire.Headers) {
	op, ok := c.operation(h)
	switch {
	case !ok:
	case op.Info().Data:
		c.answer(c.expected.Add(-1), wire.SynAck)
	case op == wire.ReadRequest:
		c.readAgain(now, h)
	default:
		c.repeatAtomic(h.BTH.PSN)
	}
}

// readAgain carries out a READ again.
func (c *Conn) readAgain(now transport.Time, h *wire.Headers) {
	n := h.RETH.Length
	packets := c.packets(n)
	if n > maxMessage || h.BTH.PSN.Add(packets).Sub(c.expected) > 0 || c.unanswered() >= 2*c.terms.Serves {
		return
	}
	if memory, r := c.user.Read(h.RETH.RKey, h.RETH.VA, n); r == transport.Accepted {
		c.read(now, h, h.BTH.PSN, packets, memory)
	}
}
