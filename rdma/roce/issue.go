package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Issue implements transport.Conn. The parts of a READ join one request, which goes when the READ is
// whole or long enough.
func (c *Conn) Issue(now transport.Time, r *transport.Request) (n int, err error) {
	s, pulls := &c.requester, r.Pulls()
	if !s.begun {
		s.begun, s.psn = true, wire.PSN(c.terms.Sending.PSN)
		s.ahead = s.psn.Add(-1)
	}
	n = int(min(r.Length-r.Offset, uint32(c.segment)))
	e := s.grows(r)
	switch {
	case c.refused != 0, e == nil && (s.entries.Len() == maxEntries || pulls && s.pulls >= s.reads):
		return 0, transport.ErrWindow
	}
	if err := c.takeCredit(r, n); err != nil {
		if e != nil { // its answer gives credit back
			e.growing = false
			c.wake()
		}
		return 0, err
	}
	if e == nil {
		e = s.entries.Push()
		*e = entry{r: r, op: opcode(r, c.segment), psn: s.psn, offset: r.Offset}
	}
	e.packets++
	e.length += uint32(n)
	s.psn = s.psn.Add(1)
	r.Begun = true
	r.Pending++
	r.Offset += uint32(n)
	r.Issued = r.Offset == r.Length
	e.growing = e.read() && !r.Issued && e.packets < min(maxRead, s.traffic.Window)
	c.countIssued(e, n)
	if !e.growing {
		c.wake()
	}
	return n, nil
}

// grows is the READ request that the next part of r joins, if there is one.
func (s *requester) grows(r *transport.Request) *entry {
	if n := s.entries.Len(); n > 0 {
		if e := s.entries.At(n - 1); e.growing && e.r == r {
			return e
		}
	}
	return nil
}

// countIssued counts a part of an entry.
func (c *Conn) countIssued(e *entry, n int) {
	if e.pulls() {
		if c.account.PullsTx++; e.packets == 1 {
			c.pulls++
		}
		return
	}
	c.pushes++
	c.account.PushesTx++
	c.account.BytesTx += uint64(n)
}

// takeCredit takes what a packet of r with n bytes costs the function.
func (c *Conn) takeCredit(r *transport.Request, n int) error {
	if c.credits == nil {
		return nil
	}
	x := cost(r.Pulls(), n)
	switch {
	case c.credits.Take(&x):
		return nil
	case !c.credits.Possible(&x): // waiting would not help
		r.Status = abi.WCGeneralErr
		return transport.ErrFailed
	}
	c.want = x
	if !c.blocked {
		c.blocked = true
		c.e.creditless = append(c.e.creditless, c)
	}
	c.account.CreditWaits++
	return transport.ErrBlocked
}

// opcodes are those of an operation's packets.
type opcodes struct{ only, first, middle, last wire.Opcode }

var sends = opcodes{wire.SendOnly, wire.SendFirst, wire.SendMiddle, wire.SendLast}

var ofOperation = map[abi.Opcode]opcodes{
	abi.OpSendImm:        {wire.SendOnlyImm, wire.SendFirst, wire.SendMiddle, wire.SendLastImm},
	abi.OpSendInv:        {wire.SendOnlyInv, wire.SendFirst, wire.SendMiddle, wire.SendLastInv},
	abi.OpWrite:          {wire.WriteOnly, wire.WriteFirst, wire.WriteMiddle, wire.WriteLast},
	abi.OpWriteImm:       {wire.WriteOnlyImm, wire.WriteFirst, wire.WriteMiddle, wire.WriteLastImm},
	abi.OpRead:           alone(wire.ReadRequest),
	abi.OpReadInv:        alone(wire.ReadRequest),
	abi.OpCmpSwap:        alone(wire.CmpSwap),
	abi.OpFetchAdd:       alone(wire.FetchAdd),
	abi.OpMaskedCmpSwap:  alone(wire.MaskedCmpSwap),
	abi.OpMaskedFetchAdd: alone(wire.MaskedFetchAdd),
}

// alone is an operation whose request has no data.
func alone(op wire.Opcode) opcodes { return opcodes{op, op, op, op} }

// opcode is that of the next packet of r.
func opcode(r *transport.Request, segment int) wire.Opcode {
	o, ok := ofOperation[r.WQE.Opcode]
	if !ok {
		o = sends
	}
	first, last := r.Offset == 0, r.Length-r.Offset <= uint32(segment)
	switch {
	case first && last:
		return o.only
	case first:
		return o.first
	case last:
		return o.last
	}
	return o.middle
}
