package rdma

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// fillRequest writes one request packet, on its first transmission and on every other.
func (q *QP) fillRequest(tag uint64, dst []byte) (int, error) {
	s := q.req.tagged(tag)
	if s == nil {
		return 0, errGone
	}
	w := q.req.work(s.work)
	if q.fn.Trace != nil {
		q.noteFilled(w, s)
	}
	n, err := q.fillConnected(s, w, dst)
	if err != nil && q.fn.Trace != nil {
		q.fn.Trace.Unfilled()
	}
	return n, err
}

// fillConnected writes the packet of s, of a QP with a connection of its own.
func (q *QP) fillConnected(s *segment, w *work, dst []byte) (int, error) {
	x := &w.wqe
	h := &q.fn.e.headers
	*h = wire.Headers{RBTH: wire.RBTH{
		Opcode: s.opcode | q.service, DestQP: q.peer, SN: s.sn, Pad: uint8(wire.PadLen(int(s.length))),
	}}
	h.XRC.SRQ = x.RemoteSRQN
	h.SETH.RMSN = s.rmsn
	h.OETH.Offset = s.offset
	h.RETH = wire.RETH{VA: x.RemoteAddr + uint64(s.offset), RKey: x.RKey, Length: s.length}
	h.Imm.Data, h.Inv.RKey = x.Imm, x.Imm
	info := h.RBTH.Opcode.Info()
	data := int(s.length)
	switch info.Kind {
	case wire.KindPushData:
		h.RBTH.Solicited = info.Last && x.Flags&abi.SendSolicited != 0
	default:
		h.RBTH.Pad, data = 0, 0
		if len(w.sges) > 0 && s.length > 0 {
			h.STETH.VA, h.STETH.LKey, _ = w.sges.At(s.at)
		}
		h.Atomic = wire.AtomicETH{VA: x.RemoteAddr, RKey: x.RKey, SwapAdd: x.CompareAdd}
		switch s.opcode {
		case wire.CmpSwap, wire.MaskedCmpSwap:
			h.Atomic.SwapAdd, h.Atomic.Compare = x.Swap, x.CompareAdd
			h.Mask = wire.AtomicMaskETH(w.masks)
		case wire.MaskedFetchAdd:
			h.Mask = wire.AtomicMaskETH{SwapAdd: w.masks.SwapAdd, Compare: ^uint64(0)} // RFC 7306 §5.2.1
		}
	}
	return q.fillData(h, s, w, data, dst)
}

// fillData writes the headers h and data bytes of s behind them.
func (q *QP) fillData(h *wire.Headers, s *segment, w *work, data int, dst []byte) (int, error) {
	if len(dst) < h.RBTH.Opcode.Info().Len+wire.Padded(data) {
		return 0, errGone
	}
	n := len(h.Append(dst[:0]))
	if data > 0 {
		if w.wqe.Flags&abi.SendInline != 0 {
			copy(dst[n:], w.inline[s.offset:][:data])
		} else if !w.spoiled {
			if err := w.sges.Gather(s.at, dst[n:n+data]); err != nil {
				s.status = abi.WCLocProtErr
				if !q.cie {
					return 0, err
				}
				w.spoiled = true
			}
		}
		if w.spoiled {
			// The peer learns of it by a packet without data, and by all that follow of the message
			// (RDMA over Falcon §8.2).
			h.RBTH.CE = true
			h.Append(dst[:0])
			clear(dst[n : n+data])
		}
		n += data
		for range h.RBTH.Pad {
			dst[n] = 0
			n++
		}
	}
	return n, nil
}
