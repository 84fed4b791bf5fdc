package rof

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// issue implements transport.Conn.Issue.
func (i *initiator) issue(now falcon.Time, r *transport.Request) (n int, err error) {
	pulls := r.Pulls()
	if !r.Begun {
		r.Begun = true
		if r.TakesReceive() {
			r.Number = i.rmsn
			i.rmsn++
		}
	}
	if len(i.free) == 0 || pulls && i.pulls >= i.reads || !pulls && i.pushes >= maxPushes {
		return 0, transport.ErrWindow
	}
	s := segment{r: r, opcode: i.opcode(r), sn: i.sn, rmsn: r.Number, offset: r.Offset, length: i.segmentLength(r)}
	if pulls {
		s.rmsn = i.pullRMSN
	}
	if err := i.hand(now, &s, i.nextTag()); err != nil {
		return 0, i.refused(r, err)
	}
	i.issued(i.keep(&s), pulls)
	return int(s.length), nil
}

// hand passes a segment to the carrier.
func (i *initiator) hand(now falcon.Time, s *segment, tag uint64) error {
	op := s.opcode | i.service
	info := op.Info()
	switch {
	case info.Kind == wire.KindPullRequest:
		return i.carrier.Pull(now, tag, info.Len, wire.PullLength(op, int(s.length)))
	case info.Last:
		return i.carrier.PushLast(now, tag, wire.PushLength(op, int(s.length))) // the message waits for this acknowledgement
	}
	return i.carrier.Push(now, tag, wire.PushLength(op, int(s.length)))
}

// refused translates the error of a carrier that did not take a segment of r.
func (i *initiator) refused(r *transport.Request, err error) error {
	switch {
	case errors.Is(err, falcon.ErrXoff):
		i.account.CreditWaits++
		return transport.ErrBlocked
	case errors.Is(err, falcon.ErrDraining), i.terms.Unreliable && errors.Is(err, falcon.ErrClosed):
		return transport.ErrEnding
	}
	// The connection is closed and its event follows, or falcon does not accept the length.
	r.Status, r.Vendor, r.Issued = abi.WCGeneralErr, vendorErr(falcon.CmplLocalRsrc, synNone), true
	if errors.Is(err, falcon.ErrClosed) {
		r.Status = abi.WCRetryExcErr
	}
	return transport.ErrFailed
}

// issued counts a segment that the carrier took.
func (i *initiator) issued(s *segment, pulls bool) {
	r := s.r
	if i.account.Trace != nil {
		i.noteIssued(s)
	}
	i.sn++
	r.Pending++
	if pulls {
		i.pulls++
		i.pullRMSN++
		i.account.PullsTx++
	} else {
		i.pushes++
		i.account.PushesTx++
		i.account.BytesTx += uint64(s.length)
	}
	r.Offset += s.length
	r.Issued = r.Offset == r.Length
}

// segmentLength returns the data length of r's next segment: at most the segment size of the
// connection, and for a READ within one element of its scatter list (RDMA over Falcon §6.7).
func (i *initiator) segmentLength(r *transport.Request) uint32 {
	n := min(r.Length-r.Offset, uint32(i.segment))
	if r.Reads() {
		_, _, left := i.user.Element(r, r.Offset)
		n = min(n, left)
	}
	return n
}

// opcode returns the wire opcode of r's next segment.
func (i *initiator) opcode(r *transport.Request) wire.Opcode {
	first := r.Offset == 0
	last := r.Length-r.Offset <= uint32(i.segment)
	pick := func(only, begin, middle, end wire.Opcode) wire.Opcode {
		switch {
		case first && last:
			return only
		case first:
			return begin
		case last:
			return end
		}
		return middle
	}
	switch r.WQE.Opcode {
	case abi.OpSendImm:
		return pick(wire.SendOnlyImm, wire.SendFirst, wire.SendMiddle, wire.SendLastImm)
	case abi.OpSendInv:
		return pick(wire.SendOnlyInv, wire.SendFirst, wire.SendMiddle, wire.SendLastInv)
	case abi.OpWrite, abi.OpAtomicWrite:
		return pick(wire.WriteOnly, wire.WriteFirst, wire.WriteMiddle, wire.WriteLast)
	case abi.OpWriteImm:
		return pick(wire.WriteOnlyImm, wire.WriteFirst, wire.WriteMiddle, wire.WriteLastImm)
	case abi.OpRead, abi.OpReadInv:
		return wire.ReadRequest
	case abi.OpCmpSwap:
		return wire.CmpSwap
	case abi.OpFetchAdd:
		return wire.FetchAdd
	case abi.OpMaskedCmpSwap:
		return wire.MaskedCmpSwap
	case abi.OpMaskedFetchAdd:
		return wire.MaskedFetchAdd
	}
	return pick(wire.SendOnly, wire.SendFirst, wire.SendMiddle, wire.SendLast)
}

// fillRequest writes one request packet, for its first and every later transmission.
func (i *initiator) fillRequest(tag uint64, dst []byte) (int, error) {
	s := i.tagged(tag)
	if s == nil {
		return 0, errGone
	}
	if i.account.Trace != nil {
		i.noteFilled(s)
	}
	n, err := i.fill(s, dst)
	if err != nil && i.account.Trace != nil {
		i.account.Trace.Unfilled()
	}
	return n, err
}

// fill writes the headers and data of a segment.
func (i *initiator) fill(s *segment, dst []byte) (int, error) {
	r, x, h := s.r, &s.r.WQE, &i.e.headers
	*h = wire.Headers{RBTH: wire.RBTH{
		Opcode: s.opcode | i.service, DestQP: i.terms.Peer, SN: s.sn, Pad: uint8(wire.PadLen(int(s.length))),
	}}
	h.XRC.SRQ = x.RemoteSRQN
	h.SETH.RMSN = s.rmsn
	h.OETH.Offset = s.offset
	h.RETH = wire.RETH{VA: x.RemoteAddr + uint64(s.offset), RKey: x.RKey, Length: s.length}
	h.Imm.Data, h.Inv.RKey = x.Imm, x.Imm
	info := h.RBTH.Opcode.Info()
	data := int(s.length)
	if info.Kind == wire.KindPushData {
		h.RBTH.Solicited = r.TakesReceive() && info.Last && x.Flags&abi.SendSolicited != 0
	} else {
		h.RBTH.Pad, data = 0, 0
		if s.length > 0 {
			addr, lkey, _ := i.user.Element(r, s.offset)
			h.STETH = wire.STETH{VA: addr, LKey: lkey}
		}
		h.Atomic = wire.AtomicETH{VA: x.RemoteAddr, RKey: x.RKey, SwapAdd: x.CompareAdd}
		switch s.opcode {
		case wire.CmpSwap, wire.MaskedCmpSwap:
			h.Atomic.SwapAdd, h.Atomic.Compare = x.Swap, x.CompareAdd
			h.Mask = wire.AtomicMaskETH(r.Masks)
		case wire.MaskedFetchAdd:
			h.Mask = wire.AtomicMaskETH{SwapAdd: r.Masks.SwapAdd, Compare: ^uint64(0)} // RFC 7306 §5.2.1
		}
	}
	if len(dst) < info.Len+wire.Padded(data) {
		return 0, errGone
	}
	n := len(h.Append(dst[:0]))
	if data == 0 {
		return n, nil
	}
	if !r.Spoiled {
		if err := i.user.Gather(r, s.offset, dst[n:n+data]); err != nil {
			s.status = abi.WCLocProtErr
			if !i.terms.InError {
				return 0, err
			}
			r.Spoiled = true
		}
	}
	if r.Spoiled {
		// The peer is informed by this packet, which has no valid data, and by all later packets of
		// the message (RDMA over Falcon §8.2).
		h.RBTH.CE = true
		h.Append(dst[:0])
		clear(dst[n : n+data])
	}
	n += data
	for range h.RBTH.Pad {
		dst[n] = 0
		n++
	}
	return n, nil
}
