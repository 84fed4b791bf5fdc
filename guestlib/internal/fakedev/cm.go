package fakedev

import "github.com/falcon-vnic/vnic/queues/abi"

func (s *Session) cmCommand(op abi.AdminOp, in, out []byte) (abi.Status, func()) {
	switch op {
	case abi.AdminOpCMListen:
		var p abi.CMListen
		p.Unmarshal(in)
		if p.Service >= abi.FirstReservedService {
			return abi.StatusDenied, nil
		}
		if s.listeners[p.Service] {
			return abi.StatusAddressInUse, nil
		}
		s.listeners[p.Service] = true
	case abi.AdminOpCMUnlisten:
		var p abi.CMUnlisten
		p.Unmarshal(in)
		if !s.listeners[p.Service] {
			return abi.StatusNotFound, nil
		}
		delete(s.listeners, p.Service)
	case abi.AdminOpCMConnect:
		var p abi.CMConnect
		p.Unmarshal(in)
		return s.connect(p, out)
	case abi.AdminOpCMAccept:
		var p abi.CMAccept
		p.Unmarshal(in)
		return s.acceptRequest(p)
	case abi.AdminOpCMReject:
		var p abi.CMReject
		p.Unmarshal(in)
		c := s.srv.conns[p.CMID]
		if c == nil || c.target != s || c.passive != nil {
			return abi.StatusNotFound, nil
		}
		priv, st := s.private(p.Priv, p.PrivLen)
		c.reject(p.Reason, priv)
		return st, nil
	case abi.AdminOpCMDisconnect:
		var p abi.CMDisconnect
		p.Unmarshal(in)
		c := s.srv.conns[p.CMID]
		if c == nil || c.active.s != s && (c.passive == nil || c.passive.s != s) {
			return abi.StatusNotFound, nil
		}
		return abi.StatusOK, func() { c.end() }
	}
	return abi.StatusOK, nil
}

func (s *Session) private(addr uint64, n uint16) ([]byte, abi.Status) {
	if n == 0 {
		return nil, abi.StatusOK
	}
	p, err := s.memory.page(addr &^ (abi.PageSize - 1))
	if err != nil || n > abi.PrivateMax {
		return nil, abi.StatusMemoryFault
	}
	return append([]byte(nil), p[addr%abi.PageSize:][:n]...), abi.StatusOK
}

func (s *Session) event(t abi.EventType, number, status uint32, priv []byte) *abi.AsyncEvent {
	e := &abi.AsyncEvent{Type: t, Number: number, Status: status, PrivLen: uint16(len(priv))}
	copy(e.Priv[:], priv)
	return e
}

func (s *Session) connect(p abi.CMConnect, out []byte) (abi.Status, func()) {
	q := s.qps[p.QPN]
	if q == nil {
		return abi.StatusNotFound, nil
	}
	switch {
	case p.Service >= abi.FirstReservedService:
		return abi.StatusDenied, nil
	case q.state != abi.QPStateInit || q.conn != nil:
		return abi.StatusBadState, nil
	}
	if s.Out.behind(256) && !s.srv.has("events without end") {
		return abi.StatusBusy, nil
	}
	priv, st := s.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st, nil
	}
	var target *Session
	for _, t := range s.srv.sessions {
		if t != nil && t.gid() == p.DGID {
			target = t
		}
	}
	if target == nil {
		return abi.StatusUnreachable, nil
	}
	s.srv.cmid++
	c := &conn{id: s.srv.cmid, active: q, target: target}
	(&abi.CMConnectResult{CMID: c.id}).Marshal(out)
	if !target.listeners[p.Service] {
		if s.Out.behind(128) && c.id%2 == 0 && s.srv.has("events of late lost") {
			return abi.StatusOK, nil
		}
		return abi.StatusOK, func() { s.Out.Send(0, s.event(abi.EventRejected, c.id, uint32(abi.StatusRefused), nil)) }
	}
	s.srv.conns[c.id] = c
	q.conn = c
	e := s.event(abi.EventConnectRequest, c.id, 0, priv)
	e.Service, e.SrcGID, e.PeerQPN = p.Service, s.gid(), q.qpn
	return abi.StatusOK, func() { target.Out.Send(0, e) }
}

func (s *Session) acceptRequest(p abi.CMAccept) (abi.Status, func()) {
	c, q := s.srv.conns[p.CMID], s.qps[p.QPN]
	if c == nil || c.target != s || c.passive != nil || q == nil {
		return abi.StatusNotFound, nil
	}
	if q.state != abi.QPStateInit {
		return abi.StatusBadState, nil
	}
	priv, st := s.private(p.Priv, p.PrivLen)
	if st != abi.StatusOK {
		return st, nil
	}
	c.passive = q
	a := c.active
	q.conn = c
	a.peer, q.peer = q, a
	a.state, q.state = abi.QPStateRTS, abi.QPStateRTS
	a.reads, q.reads = min(a.reads, q.destReads), min(q.reads, a.destReads)
	return abi.StatusOK, func() {
		s.Out.Send(0, s.event(abi.EventEstablished, c.id, 0, nil))
		a.s.Out.Send(0, s.event(abi.EventEstablished, c.id, 0, priv))
	}
}

func (c *conn) reject(reason uint32, priv []byte) {
	s := c.active.s
	c.active.conn = nil
	delete(s.srv.conns, c.id)
	s.Out.Send(0, s.event(abi.EventRejected, c.id, reason, priv))
}

// end tears a connection down and tells both ends.
func (c *conn) end() {
	delete(c.target.srv.conns, c.id)
	for _, q := range []*qp{c.active, c.passive} {
		if q != nil {
			q.conn, q.peer = nil, nil
			q.fail()
			q.s.Out.Send(0, q.s.event(abi.EventDisconnected, c.id, 0, nil))
		}
	}
}

func (s *Session) disconnect(q *qp) {
	if q.conn != nil {
		q.conn.end()
	}
}

// dropRequests rejects the requests this session has not answered.
func (s *Session) dropRequests() {
	for _, c := range s.srv.conns {
		if c.target == s && c.passive == nil {
			c.reject(uint32(abi.StatusRefused), nil)
		}
	}
}
