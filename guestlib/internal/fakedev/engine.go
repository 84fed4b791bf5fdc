package fakedev

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// gather reads the bytes of an SGL; false if it may not.
func (q *qp) gather(sgl []abi.SGE) ([]byte, bool) {
	out := []byte{}
	for _, e := range sgl {
		m, off := q.s.find(e.LKey, q.pdn, e.Addr, int(e.Length), 0)
		if m == nil {
			return nil, false
		}
		b := make([]byte, e.Length)
		if m.pages.ReadAt(off, b) != nil {
			return nil, false
		}
		out = append(out, b...)
	}
	return out, true
}

// scatter writes data over an SGL.
func (q *qp) scatter(sgl []abi.SGE, data []byte) abi.WCStatus {
	for _, e := range sgl {
		n := min(int(e.Length), len(data))
		m, off := q.s.find(e.LKey, q.pdn, e.Addr, int(e.Length), abi.AccessLocalWrite)
		if m == nil || m.pages.WriteAt(off, data[:n]) != nil {
			return abi.WCLocProtErr
		}
		data = data[n:]
	}
	if len(data) > 0 {
		return abi.WCLocLenErr
	}
	return abi.WCSuccess
}

func readSGL(b []byte, n uint8) []abi.SGE {
	sgl := make([]abi.SGE, n)
	for i := range sgl {
		sgl[i].Unmarshal(b[16*i:])
	}
	return sgl
}

// run executes the posted work until there is none or the peer has no receive.
func (q *qp) run() {
	if q.state == abi.QPStateErr {
		q.flush()
		return
	}
	if q.alone && q.state == abi.QPStateRTS && q.sq.Ready() > 0 && q.sq.Read(q.sqe) == nil {
		q.sq.Take()
		q.sq.Commit()
		var w abi.SendWQE
		w.Unmarshal(q.sqe)
		q.sendCQ.write(abi.CQE{WRID: w.WRID, QPN: q.qpn, Status: abi.WCRetryExcErr, Opcode: sendOpcode(w.Opcode)}, false)
		q.fail()
		return
	}
	for q.state == abi.QPStateRTS && q.peer != nil && q.sq.Ready() > 0 {
		if q.sq.Read(q.sqe) != nil {
			return
		}
		var w abi.SendWQE
		w.Unmarshal(q.sqe)
		length, st, wait := q.execute(&w)
		if wait {
			return
		}
		q.sq.Take()
		if !q.s.srv.has("consumer stays") {
			q.sq.Commit()
		}
		if q.s.srv.has("unsignaled completions") {
			w.Flags |= abi.SendSignaled
		}
		if q.s.srv.has("successes only") {
			st = abi.WCSuccess
		}
		if st != abi.WCSuccess || q.sigAll || w.Flags&abi.SendSignaled != 0 {
			q.sendCQ.write(abi.CQE{WRID: w.WRID, QPN: q.qpn, SrcQP: q.peer.qpn, Status: st, Opcode: sendOpcode(w.Opcode), ByteLen: uint32(length)}, false)
		}
		if st != abi.WCSuccess {
			q.fail()
		}
	}
}

func sendOpcode(op abi.Opcode) abi.WCOpcode {
	switch op {
	case abi.OpWrite, abi.OpWriteImm:
		return abi.WCOpWrite
	case abi.OpAtomicWrite:
		return abi.WCOpAtomicWrite
	case abi.OpRead:
		return abi.WCOpRead
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

// execute does one work request; wait means that the peer has no receive for it.
func (q *qp) execute(w *abi.SendWQE) (length int, st abi.WCStatus, wait bool) {
	p := q.peer
	switch inline := w.Flags&abi.SendInline != 0; {
	case inline && w.InlineLen > q.inline:
		return 0, abi.WCLocLenErr, false
	case !inline && w.NumSGE > q.sges:
		return 0, abi.WCLocQPOpErr, false
	}
	sgl := readSGL(q.sqe[abi.SendWQEHeader:], w.NumSGE)
	var data []byte
	if w.Flags&abi.SendInline != 0 {
		data = q.sqe[abi.SendWQEHeader:][:w.InlineLen]
	} else if op := sendOpcode(w.Opcode); op == abi.WCOpSend || op == abi.WCOpWrite {
		var ok bool
		if data, ok = q.gather(sgl); !ok {
			return 0, abi.WCLocProtErr, false
		}
	}
	needsRecv := w.Opcode == abi.OpSend || w.Opcode == abi.OpSendImm || w.Opcode == abi.OpWriteImm
	if needsRecv && p.rq.Ready() == 0 {
		return 0, 0, true
	}
	tamper := func(b []byte) {
		if q.s.srv.Tamper != nil {
			q.s.srv.Tamper(w.Opcode, b)
		}
	}
	tamper(data)
	switch w.Opcode {
	case abi.OpSend, abi.OpSendImm:
		return 0, p.receive(w, data), false
	case abi.OpWrite, abi.OpWriteImm:
		if len(data) > 0 {
			m, off := p.s.find(w.RKey, p.pdn, w.RemoteAddr, len(data), abi.AccessRemoteWrite)
			if m == nil || p.access&abi.AccessRemoteWrite == 0 {
				return 0, abi.WCRemAccessErr, false
			}
			m.pages.WriteAt(off, data)
		}
		if w.Opcode == abi.OpWriteImm {
			return 0, p.receive(w, data), false
		}
		return 0, abi.WCSuccess, false
	case abi.OpRead:
		n := 0
		for _, e := range sgl {
			n += int(e.Length)
		}
		m, off := p.s.find(w.RKey, p.pdn, w.RemoteAddr, n, abi.AccessRemoteRead)
		if m == nil || p.access&abi.AccessRemoteRead == 0 {
			return 0, abi.WCRemAccessErr, false
		}
		b := make([]byte, n)
		m.pages.ReadAt(off, b)
		tamper(b)
		return n, q.scatter(sgl, b), false
	case abi.OpAtomicWrite:
		m, off := p.s.find(w.RKey, p.pdn, w.RemoteAddr, 8, abi.AccessRemoteWrite)
		if m == nil || p.access&abi.AccessRemoteWrite == 0 {
			return 0, abi.WCRemAccessErr, false
		}
		m.pages.Store64Release(off, w.Swap)
		return 8, abi.WCSuccess, false
	case abi.OpCmpSwap, abi.OpFetchAdd, abi.OpMaskedCmpSwap, abi.OpMaskedFetchAdd:
		m, off := p.s.find(w.RKey, p.pdn, w.RemoteAddr, 8, abi.AccessRemoteAtomic)
		if m == nil || p.access&abi.AccessRemoteAtomic == 0 {
			return 0, abi.WCRemAccessErr, false
		}
		if off%8 != 0 {
			if q.s.srv.has("any alignment") {
				return 8, abi.WCSuccess, false
			}
			return 0, abi.WCRemInvReqErr, false
		}
		old, _ := m.pages.Load64(off)
		masks := abi.AtomicMasks{SwapAdd: ^uint64(0), Compare: ^uint64(0)}
		if w.Opcode == abi.OpMaskedCmpSwap || w.Opcode == abi.OpMaskedFetchAdd {
			masks.Unmarshal(q.sqe[abi.SendWQEHeader:])
			sgl = readSGL(q.sqe[abi.SendWQEHeader+abi.AtomicMasksSize:], w.NumSGE)
		}
		v := old
		switch w.Opcode {
		case abi.OpFetchAdd:
			v = old + w.CompareAdd
		case abi.OpMaskedFetchAdd:
			top := masks.SwapAdd
			v = (old&^top + w.CompareAdd&^top) ^ (old^w.CompareAdd)&top
		default:
			if (old^w.CompareAdd)&masks.Compare == 0 {
				v = old&^masks.SwapAdd | w.Swap&masks.SwapAdd
			}
		}
		m.pages.Store64Release(off, v)
		return 8, q.scatter(sgl, binary.LittleEndian.AppendUint64(nil, old)), false
	}
	return 0, abi.WCLocQPOpErr, false
}

// receive takes a receive of q for a message or an immediate of its peer and returns the sender's
// status.
func (q *qp) receive(w *abi.SendWQE, data []byte) abi.WCStatus {
	q.rq.Read(q.rqe)
	q.rq.Take()
	q.rq.Commit()
	var r abi.RecvWQE
	r.Unmarshal(q.rqe)
	e := abi.CQE{WRID: r.WRID, QPN: q.qpn, SrcQP: q.peer.qpn, Opcode: abi.WCOpRecv, ByteLen: uint32(len(data))}
	if w.Opcode == abi.OpWriteImm {
		e.Opcode = abi.WCOpRecvWriteImm
	} else {
		e.Status = q.scatter(readSGL(q.rqe[abi.RecvWQEHeader:], r.NumSGE), data)
	}
	if w.Opcode != abi.OpSend {
		e.Imm, e.Flags = w.Imm, abi.WCFlagImm
	}
	q.recvCQ.write(e, w.Flags&abi.SendSolicited != 0)
	if e.Status != abi.WCSuccess {
		q.fail()
		return abi.WCRemInvReqErr
	}
	return abi.WCSuccess
}

// broken fails the queue pair for what is wrong in its queues.
func (q *qp) broken(reason string) {
	e := abi.AsyncEvent{Type: abi.EventQPFatal, Number: q.qpn, Status: uint32(abi.WCLocQPOpErr), PrivLen: uint16(min(len(reason), 64))}
	copy(e.Priv[:], reason)
	q.s.Out.Send(0, &e)
	q.fail()
}

// fail moves to ERR and flushes.
func (q *qp) fail() {
	q.state = abi.QPStateErr
	q.flush()
}

func (q *qp) flush() {
	if q.s.srv.has("no flush") {
		return
	}
	for q.sq.Ready() > 0 && q.sq.Read(q.sqe) == nil {
		q.sq.Take()
		q.sq.Commit()
		var w abi.SendWQE
		w.Unmarshal(q.sqe)
		q.sendCQ.write(abi.CQE{WRID: w.WRID, QPN: q.qpn, Status: abi.WCWRFlushErr, Opcode: sendOpcode(w.Opcode)}, false)
	}
	for q.rq.Ready() > 0 && q.rq.Read(q.rqe) == nil {
		q.rq.Take()
		q.rq.Commit()
		var r abi.RecvWQE
		r.Unmarshal(q.rqe)
		q.recvCQ.write(abi.CQE{WRID: r.WRID, QPN: q.qpn, Status: abi.WCWRFlushErr, Opcode: abi.WCOpRecv}, false)
	}
}
