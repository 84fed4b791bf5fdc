package roce

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// issue implements transport.Conn.Issue. The parts of a READ are joined in one request, which is
// sent when it is complete or long enough.
func (s *requester) issue(now transport.Time, r *transport.Request) (n int, err error) {
	if !s.begun {
		s.begun, s.psn = true, wire.PSN(s.terms.Sending.PSN)
		s.ahead = s.psn.Add(-1)
	}
	n = int(min(r.Length-r.Offset, uint32(s.segment)))
	e := s.grows(r)
	if e == nil && (s.entries.Len() == maxEntries || r.Pulls() && s.pulls >= s.reads) {
		return 0, transport.ErrWindow
	}
	if err := s.takeCredit(r, n); err != nil {
		if e != nil { // its answer returns credit
			e.growing = false
			s.wake()
		}
		return 0, err
	}
	if e == nil {
		e = s.entries.Push()
		*e = entry{r: r, op: opcode(r, s.segment), psn: s.psn, offset: r.Offset}
		s.limit.number(e)
	}
	if r.Offset == 0 && s.account.Trace != nil {
		s.noteIssued(r, s.psn)
	}
	e.packets++
	e.length += uint32(n)
	s.psn = s.psn.Add(1)
	r.Begun = true
	r.Pending++
	r.Offset += uint32(n)
	r.Issued = r.Offset == r.Length
	e.growing = e.read() && !r.Issued && e.packets < min(maxRead, s.traffic.Window)
	s.countIssued(e, n)
	if !e.growing {
		s.wake()
	}
	return n, nil
}

// grows returns the entry of the READ request that the next part of r joins, nil if there is none.
func (s *requester) grows(r *transport.Request) *entry {
	if n := s.entries.Len(); n > 0 {
		if e := s.entries.At(n - 1); e.growing && e.r == r {
			return e
		}
	}
	return nil
}

// countIssued counts a part of an entry.
func (s *requester) countIssued(e *entry, n int) {
	if e.pulls() {
		if s.account.PullsTx++; e.packets == 1 {
			s.pulls++
		}
		return
	}
	s.pushes++
	s.account.PushesTx++
	s.account.BytesTx += uint64(n)
}

// opcodes holds the opcodes of an operation's packets.
type opcodes struct{ only, first, middle, last wire.Opcode }

var sends = opcodes{wire.SendOnly, wire.SendFirst, wire.SendMiddle, wire.SendLast}

var ofOperation = map[abi.Opcode]opcodes{
	abi.OpSendImm:        {wire.SendOnlyImm, wire.SendFirst, wire.SendMiddle, wire.SendLastImm},
	abi.OpSendInv:        {wire.SendOnlyInv, wire.SendFirst, wire.SendMiddle, wire.SendLastInv},
	abi.OpWrite:          {wire.WriteOnly, wire.WriteFirst, wire.WriteMiddle, wire.WriteLast},
	abi.OpAtomicWrite:    alone(wire.WriteOnly),
	abi.OpWriteImm:       {wire.WriteOnlyImm, wire.WriteFirst, wire.WriteMiddle, wire.WriteLastImm},
	abi.OpRead:           alone(wire.ReadRequest),
	abi.OpReadInv:        alone(wire.ReadRequest),
	abi.OpCmpSwap:        alone(wire.CmpSwap),
	abi.OpFetchAdd:       alone(wire.FetchAdd),
	abi.OpMaskedCmpSwap:  alone(wire.MaskedCmpSwap),
	abi.OpMaskedFetchAdd: alone(wire.MaskedFetchAdd),
}

// alone returns the opcodes of an operation whose request is one packet.
func alone(op wire.Opcode) opcodes { return opcodes{op, op, op, op} }

// opcode returns the opcode of the next packet of r.
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
