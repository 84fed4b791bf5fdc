package fakedev

import (
	"errors"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// maxObjects and so on are the function's limits.
const maxObjects, maxQPEntries, maxCQEntries, maxSGE, maxInline, maxReads = 1000, 1 << 14, 1 << 18, 16, 224, 16

func (s *Session) adminDoorbell(index uint32) {
	if _, err := s.commands.Doorbell(index); err != nil {
		if s.srv.has("any admin doorbell") {
			return
		}
		s.stop(abi.FaultCommand, err.Error())
		return
	}
	entry := make([]byte, abi.AdminCmdSize)
	for s.commands.Ready() > 0 {
		full, err := s.answers.Full()
		if err == nil && full {
			err = errors.New("more commands are outstanding than the queue has entries")
		}
		if err == nil {
			err = s.commands.Read(entry)
		}
		if err != nil {
			s.stop(abi.FaultCommand, err.Error())
			return
		}
		s.commands.Take()
		s.commands.Commit()
		var c abi.AdminCmd
		c.Unmarshal(entry)
		e := abi.AdminCQE{ID: c.ID}
		var after func()
		early := s.srv.has("events before completions")
		s.Out.during(!early)
		e.Status, after = s.execute(c.Opcode, c.Params[:], e.Result[:])
		if early {
			time.Sleep(20 * time.Millisecond)
		}
		if s.srv.has("IDs counted") {
			e.ID = s.commands.Next()
		}
		s.AdminCQE(e)
		if !s.srv.has("no admin events") {
			s.Out.CQEvent(abi.AdminCQ)
		}
		s.Out.during(false)
		if after != nil {
			after()
		}
	}
}

// AdminCQE writes a completion of the admin queue without an event.
func (s *Session) AdminCQE(e abi.AdminCQE) {
	b := make([]byte, abi.AdminCQESize)
	e.Marshal(b)
	s.answers.Write(b)
}

// execute runs a command. after, if any, runs when the completion is out.
func (s *Session) execute(op abi.AdminOp, in, out []byte) (st abi.Status, after func()) {
	switch op {
	case abi.AdminOpQueryDevice:
		(&abi.QueryDeviceResult{
			MaxMRSize: abi.MaxMRSize, NodeGUID: 1, MaxQP: maxObjects, MaxCQ: maxObjects, MaxMR: maxObjects, MaxPD: maxObjects,
			MaxQPEntries: maxQPEntries, MaxCQEntries: maxCQEntries, MaxSGE: maxSGE, MaxInline: maxInline, MaxReadAtomic: maxReads, PathMTU: abi.MTU4096,
		}).Marshal(out)
	case abi.AdminOpQueryObjects:
		(&abi.ObjectCounts{QPs: 1000, CQs: 1000, MRs: 1000, PDs: 1000, AHs: 1000, SRQs: 1000, MWs: 1000, XRCDs: 1000}).Marshal(out)
	case abi.AdminOpAllocPD:
		n := s.next()
		s.pds[n] = true
		(&abi.AllocPDResult{PDN: n}).Marshal(out)
	case abi.AdminOpDeallocPD:
		var p abi.DeallocPD
		p.Unmarshal(in)
		return s.deallocPD(p.PDN), nil
	case abi.AdminOpRegMR:
		return s.regMR(in, out), nil
	case abi.AdminOpDeregMR:
		var p abi.DeregMR
		p.Unmarshal(in)
		if s.mrs[p.LKey] == nil {
			return abi.StatusNotFound, nil
		}
		delete(s.mrs, p.LKey)
	case abi.AdminOpCreateCQ:
		return s.createCQ(in, out), nil
	case abi.AdminOpDestroyCQ:
		var p abi.DestroyCQ
		p.Unmarshal(in)
		switch c := s.cqs[p.CQN]; {
		case c == nil:
			return abi.StatusNotFound, nil
		case c.users > 0:
			return abi.StatusBusy, nil
		}
		delete(s.cqs, p.CQN)
	case abi.AdminOpCreateQP:
		return s.createQP(in, out), nil
	case abi.AdminOpModifyQP, abi.AdminOpQueryQP, abi.AdminOpDestroyQP:
		return s.qpCommand(op, in, out), nil
	case abi.AdminOpCMListen, abi.AdminOpCMUnlisten, abi.AdminOpCMConnect, abi.AdminOpCMAccept, abi.AdminOpCMReject, abi.AdminOpCMDisconnect:
		return s.cmCommand(op, in, out)
	default:
		if s.srv.has("unknown commands succeed") {
			return abi.StatusOK, nil
		}
		return abi.StatusUnknownCommand, nil
	}
	return abi.StatusOK, nil
}

func (s *Session) deallocPD(pdn uint32) abi.Status {
	if !s.pds[pdn] {
		return abi.StatusNotFound
	}
	for _, m := range s.mrs {
		if m.pdn == pdn {
			return abi.StatusBusy
		}
	}
	for _, q := range s.qps {
		if q.pdn == pdn {
			return abi.StatusBusy
		}
	}
	delete(s.pds, pdn)
	return abi.StatusOK
}

func (s *Session) regMR(in, out []byte) abi.Status {
	var p abi.RegMR
	p.Unmarshal(in)
	if !s.pds[p.PDN] {
		return abi.StatusNotFound
	}
	if p.Length == 0 || p.Length > abi.MaxMRSize {
		return abi.StatusTooLarge
	}
	if p.Access&(abi.AccessRemoteWrite|abi.AccessRemoteAtomic) != 0 && p.Access&abi.AccessLocalWrite == 0 {
		return abi.StatusInvalidArgument
	}
	shift := max(p.PageShift, abi.MinPageShift)
	if p.PageShift != 0 && p.PageShift < abi.MinPageShift || shift > abi.MaxPageShift || uint64(p.Offset) >= 1<<shift {
		return abi.StatusInvalidArgument
	}
	pages, skew, err := s.memory.span(&p, shift)
	if err != nil {
		return abi.StatusMemoryFault
	}
	key := s.next() << 8
	s.mrs[key] = &mr{p.PDN, p.Access, p.IOVA, p.Length, skew, pages}
	(&abi.RegMRResult{LKey: key, RKey: key}).Marshal(out)
	return abi.StatusOK
}

func (s *Session) createCQ(in, out []byte) abi.Status {
	var p abi.CreateCQ
	p.Unmarshal(in)
	if p.Log2Entries < 1 || p.Log2Entries > abi.MaxQueueLog2 || p.Vector != 0 {
		return abi.StatusInvalidArgument
	}
	layout := ring.CQLayout(p.Log2Entries)
	mem, err := s.memory.area(p.Pages, p.Levels, layout)
	if err != nil {
		return abi.StatusMemoryFault
	}
	c := &cq{s: s, cqn: s.next(), w: ring.NewCQWriter(mem, layout)}
	s.cqs[c.cqn] = c
	(&abi.CreateCQResult{CQN: c.cqn}).Marshal(out)
	return abi.StatusOK
}

func (s *Session) createQP(in, out []byte) abi.Status {
	var p abi.CreateQP
	p.Unmarshal(in)
	send, recv := s.cqs[p.SendCQ], s.cqs[p.RecvCQ]
	if send == nil || recv == nil || !s.pds[p.PDN] {
		return abi.StatusNotFound
	}
	if p.Type != abi.QPTypeRC {
		return abi.StatusUnsupported
	}
	if 1<<p.SQLog2Stride < max(abi.SendWQEHeader+int(p.MaxInline), abi.SendWQEHeader+16*int(p.MaxSendSGE)) ||
		1<<p.RQLog2Stride < abi.RecvWQEHeader+16*int(p.MaxRecvSGE) {
		return abi.StatusInvalidArgument
	}
	sql, rql := ring.QueueLayout(p.SQLog2Entries, p.SQLog2Stride), ring.QueueLayout(p.RQLog2Entries, p.RQLog2Stride)
	sq, err := s.memory.area(p.SQPages, p.SQLevels, sql)
	rq, err2 := s.memory.area(p.RQPages, p.RQLevels, rql)
	if err != nil || err2 != nil {
		return abi.StatusMemoryFault
	}
	q := &qp{
		sqMem: sq, rqMem: rq, sqLayout: sql, rqLayout: rql, sges: p.MaxSendSGE, inline: uint32(p.MaxInline),
		s: s, qpn: s.next(), pdn: p.PDN, sendCQ: send, recvCQ: recv, sigAll: p.SigAll != 0,
		sq: ring.NewConsumer(sq, sql), rq: ring.NewConsumer(rq, rql), sqe: make([]byte, sql.Stride()), rqe: make([]byte, rql.Stride()),
	}
	send.users++
	recv.users++
	s.qps[q.qpn] = q
	(&abi.CreateQPResult{QPN: q.qpn}).Marshal(out)
	return abi.StatusOK
}

func (s *Session) qpCommand(op abi.AdminOp, in, out []byte) abi.Status {
	var p abi.ModifyQP
	p.Unmarshal(in) // the QPN is first in all three
	q := s.qps[p.QPN]
	if q == nil {
		return abi.StatusNotFound
	}
	switch op {
	case abi.AdminOpModifyQP:
		return s.modify(q, &p)
	case abi.AdminOpQueryQP:
		r := abi.QueryQPResult{QPN: q.qpn, Access: q.access, State: q.state, MaxRdAtomic: q.reads, MaxDestRdAtomic: q.destReads}
		if q.peer != nil {
			r.PeerQPN, r.PeerGID = q.peer.qpn, q.peer.s.gid()
		}
		r.Marshal(out)
	case abi.AdminOpDestroyQP:
		s.disconnect(q)
		q.unwire()
		q.sendCQ.users--
		q.recvCQ.users--
		delete(s.qps, q.qpn)
	}
	return abi.StatusOK
}

// steps are the changes of state of a queue pair, beside those to RESET and ERR.
var steps = map[[2]abi.QPState]bool{
	{abi.QPStateReset, abi.QPStateInit}: true, {abi.QPStateInit, abi.QPStateInit}: true, {abi.QPStateInit, abi.QPStateRTR}: true, {abi.QPStateRTR, abi.QPStateRTS}: true,
	{abi.QPStateRTS, abi.QPStateRTS}: true, {abi.QPStateRTS, abi.QPStateSQD}: true, {abi.QPStateSQD, abi.QPStateSQD}: true, {abi.QPStateSQD, abi.QPStateRTS}: true,
}

// modify is ModifyQP.
func (s *Session) modify(q *qp, p *abi.ModifyQP) abi.Status {
	if p.Mask&abi.QPAttrMaxRdAtomic != 0 {
		q.reads = p.MaxRdAtomic
	}
	if p.Mask&abi.QPAttrMaxDestRdAtomic != 0 {
		q.destReads = p.MaxDestRdAtomic
	}
	if p.Mask&abi.QPAttrState == 0 {
		if p.Mask&abi.QPAttrAccess != 0 {
			q.access = p.Access
		}
		return abi.StatusOK
	}
	from, to := q.state, p.State
	switch {
	case to == abi.QPStateReset:
		s.disconnect(q)
		q.unwire()
		q.restart()
	case to == abi.QPStateErr && from != abi.QPStateReset:
		s.disconnect(q)
		q.fail()
	case !steps[[2]abi.QPState{from, to}] && !s.srv.has("any state"):
		return abi.StatusBadState
	}
	if p.Mask&abi.QPAttrAccess != 0 {
		q.access = p.Access
	}
	q.state = to
	switch {
	case to == abi.QPStateRTR:
		q.wants = *p
		s.srv.wire(q)
	case to == abi.QPStateRTS:
		q.run()
	case to == abi.QPStateSQD && p.Mask&abi.QPAttrSQDNotify != 0 && p.SQDNotify != 0:
		s.Out.Send(0, &abi.AsyncEvent{Type: abi.EventSQDrained, Number: q.qpn})
	}
	return abi.StatusOK
}
