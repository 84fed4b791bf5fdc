package fakedev

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

type mr struct {
	pdn    uint32
	access uint32
	iova   uint64
	length uint64
	skew   uint64 // of the first byte in its page
	pages  paged
}

type cq struct {
	s         *Session
	cqn       uint32
	w         *ring.CQWriter
	armed     bool
	failed    bool   // it overflowed
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
	sqMem, rqMem   paged
	sqLayout       ring.Layout
	rqLayout       ring.Layout
	sges           uint8  // at most, of a send
	inline         uint32 // bytes at most
	alone          bool   // its peer has left
	reads          uint8  // in flight: MaxRdAtomic
	destReads      uint8
	conn           *conn
	peer           *qp
	wants          abi.ModifyQP // of the move to RTR: whom it names as its peer
}

// conn is a connection or a request for one. Both ends know it by the same id.
type conn struct {
	id      uint32
	active  *qp
	passive *qp // nil until accepted
	target  *Session
}

func (c *cq) arm(d abi.Doorbell) {
	solicited := d.Flags&abi.ArmSolicitedOnly != 0
	newest := c.w.Next()
	news := newest != d.Index
	if solicited {
		news = int32(c.last-d.Index) > 0
	}
	switch {
	case news && c.s.srv.has("arm waits for the next"):
		c.armed, c.solicited = true, solicited
	case news:
		c.fire()
	case c.armed: // a request for any entry outranks one for solicited entries
		c.solicited = c.solicited && solicited
	default:
		c.armed, c.solicited = true, solicited
	}
}

func (c *cq) fire() {
	c.armed = c.s.srv.has("armed for ever")
	if !c.s.srv.has("no CQ events") {
		c.s.Out.CQEvent(c.cqn)
	}
}

// write adds an entry; solicited says that it counts for a solicited arm.
func (c *cq) write(e abi.CQE, solicited bool) {
	b := make([]byte, abi.CQESize)
	if e.Timestamp = c.s.srv.clock(); c.s.srv.has("clock apart") {
		e.Timestamp = uint64(c.w.Next()) + 1
	}
	e.Marshal(b)
	if c.failed || c.s.state != abi.StateReady && !c.s.srv.has("doorbells after a fault") {
		return
	}
	if c.s.srv.has("reserved bytes written") {
		b[35] = 1
	}
	switch err := c.w.Write(b); {
	case errors.Is(err, ring.ErrFull) && c.s.srv.has("silent overflow"):
		return
	case err != nil:
		c.failed = true
		c.s.Out.Send(0, &abi.AsyncEvent{Type: abi.EventCQError, Number: c.cqn})
		for _, q := range c.s.qps {
			if q.sendCQ == c || q.recvCQ == c {
				q.fail()
			}
		}
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

// restart forgets everything posted.
func (q *qp) restart() {
	q.state, q.alone = abi.QPStateReset, false
	q.sq, q.rq = ring.NewConsumer(q.sqMem, q.sqLayout), ring.NewConsumer(q.rqMem, q.rqLayout)
}

// unwire ends what wire began; the peer notices when it has work.
func (q *qp) unwire() {
	if p := q.peer; p != nil && q.conn == nil {
		p.peer, q.peer = nil, nil
		p.alone = true
	}
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
