package fakedev

import (
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

type mr struct {
	pdn    uint32
	access uint32
	iova   uint64
	length uint64
	pages  paged
}

type cq struct {
	s         *Session
	cqn       uint32
	w         *ring.CQWriter
	armed     bool
	solicited bool   // only these count
	last      uint32 // index after the last entry that counts as solicited
	users     int
}

type qp struct {
	s              *Session
	qpn, pdn       uint32
	state          abi.QPState
	sendCQ, recvCQ *cq
	sigAll         bool
	access         uint32
	sq, rq         *ring.Consumer
	sqe, rqe       []byte // scratch
	conn           *conn
	peer           *qp
	wants          abi.ModifyQP // of the move to RTR: whom it names as its peer
}

func (c *cq) arm(d abi.Doorbell) {
	c.armed, c.solicited = true, d.Flags&abi.ArmSolicitedOnly != 0
	newest := c.w.Next()
	if c.solicited {
		newest = c.last
	}
	if int32(newest-d.Index) > 0 {
		c.fire()
	}
}

func (c *cq) fire() {
	c.armed = false
	c.s.CQEvent(c.cqn)
}

// write adds an entry; solicited says that it counts for a solicited arm.
func (c *cq) write(e abi.CQE, solicited bool) {
	b := make([]byte, abi.CQESize)
	e.Timestamp = uint64(c.w.Next()) + 1
	e.Marshal(b)
	if err := c.w.Write(b); err != nil {
		c.s.Send(0, &abi.AsyncEvent{Type: abi.EventCQError, Number: c.cqn})
		return
	}
	c.w.Commit()
	solicited = solicited || e.Status != abi.WCSuccess
	if solicited {
		c.last = c.w.Next()
	}
	if c.armed && (solicited || !c.solicited) {
		c.fire()
	}
}

// WriteCQE puts any entry into a completion queue, as a broken device might.
func (s *Session) WriteCQE(cqn uint32, e abi.CQE) {
	s.srv.mu.Lock()
	defer s.srv.mu.Unlock()
	s.cqs[cqn].write(e, true)
}

func (s *Session) next() uint32 {
	s.number++
	return s.number + 1 // QP numbers are not 0 or 1
}

func (s *Session) adminDoorbell(index uint32) {
	if _, err := s.commands.Doorbell(index); err != nil {
		s.stop(abi.FaultCommand, err.Error())
		return
	}
	entry := make([]byte, abi.AdminCmdSize)
	for s.commands.Ready() > 0 {
		if err := s.commands.Read(entry); err != nil {
			s.stop(abi.FaultCommand, err.Error())
			return
		}
		s.commands.Take()
		var c abi.AdminCmd
		c.Unmarshal(entry)
		e := abi.AdminCQE{ID: c.ID}
		var after func()
		e.Status, after = s.execute(c.Opcode, c.Params[:], e.Result[:])
		s.AdminCQE(e)
		s.CQEvent(abi.AdminCQ)
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
			MaxMRSize: abi.MaxMRSize, NodeGUID: 1, MaxQP: 1000, MaxCQ: 1000, MaxMR: 1000, MaxPD: 1000, MaxQPEntries: 1 << 14,
			MaxCQEntries: 1 << 16, MaxSGE: 16, MaxInline: 224, MaxReadAtomic: 16, PathMTU: abi.MTU4096,
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
	pages, err := s.pageList(p.Pages, p.Levels, int((uint64(p.Offset)+p.Length+abi.PageSize-1)/abi.PageSize))
	if err != nil {
		return abi.StatusMemoryFault
	}
	key := s.next() << 8
	s.mrs[key] = &mr{p.PDN, p.Access, p.IOVA, p.Length, pages}
	(&abi.RegMRResult{LKey: key, RKey: key}).Marshal(out)
	return abi.StatusOK
}

func (s *Session) createCQ(in, out []byte) abi.Status {
	var p abi.CreateCQ
	p.Unmarshal(in)
	if p.Log2Entries < 1 || p.Log2Entries > abi.MaxQueueLog2 {
		return abi.StatusInvalidArgument
	}
	layout := ring.CQLayout(p.Log2Entries)
	mem, err := s.area(p.Pages, p.Levels, layout)
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
	sq, err := s.area(p.SQPages, p.SQLevels, sql)
	rq, err2 := s.area(p.RQPages, p.RQLevels, rql)
	if err != nil || err2 != nil {
		return abi.StatusMemoryFault
	}
	q := &qp{
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
		if p.Mask&abi.QPAttrAccess != 0 {
			q.access = p.Access
		}
		if p.Mask&abi.QPAttrState != 0 {
			switch {
			case p.State == abi.QPStateErr:
				q.fail()
			case p.State == abi.QPStateInit && q.state == abi.QPStateReset:
				q.state = abi.QPStateInit
			case p.State == abi.QPStateRTR && q.state == abi.QPStateInit:
				q.state, q.wants = abi.QPStateRTR, p
				s.srv.wire(q)
			case p.State == abi.QPStateRTS && q.state == abi.QPStateRTR:
				q.state = abi.QPStateRTS
				q.run()
			case p.State == abi.QPStateSQD && q.state == abi.QPStateRTS:
				q.state = abi.QPStateSQD
				if p.Mask&abi.QPAttrSQDNotify != 0 && p.SQDNotify != 0 {
					s.Send(0, &abi.AsyncEvent{Type: abi.EventSQDrained, Number: q.qpn})
				}
			case p.State == abi.QPStateRTS && q.state == abi.QPStateSQD:
				q.state = abi.QPStateRTS
				q.run()
			default:
				return abi.StatusBadState
			}
		}
	case abi.AdminOpQueryQP:
		r := abi.QueryQPResult{QPN: q.qpn, Access: q.access, State: q.state}
		if q.peer != nil {
			r.PeerQPN, r.PeerGID = q.peer.qpn, q.peer.s.gid()
		}
		r.Marshal(out)
	case abi.AdminOpDestroyQP:
		s.disconnect(q)
		q.sendCQ.users--
		q.recvCQ.users--
		delete(s.qps, q.qpn)
	}
	return abi.StatusOK
}

// wire joins q with the queue pair it names, if that names q.
func (srv *Server) wire(q *qp) {
	for _, s := range srv.sessions {
		if s == nil {
			continue
		}
		p := s.qps[q.wants.DestQPN]
		if p != nil && s.gid() == q.wants.DGID && p.state != abi.QPStateInit && p.wants.DestQPN == q.qpn && p.wants.DGID == q.s.gid() {
			p.peer, q.peer = q, p
			p.run()
		}
	}
}
