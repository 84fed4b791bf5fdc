package guestlib

// objects are those that the device knows by number, for what it tells of them.
type objects struct {
	cqs  table[*CQ]
	qps  table[*QP]
	srqs table[*SRQ]
}

// news wakes who waits for a CQ.
func (o *objects) news(cqn uint32) {
	if cq := o.cqs.get(cqn); cq != nil { // else it was destroyed in the meantime
		cq.signal()
	}
}

// stop makes sure that no object touches its memory any more: the device is closed.
func (o *objects) stop(s *stream) {
	o.qps.each(func(qp *QP) { qp.stop(s, true) })
	o.srqs.each(func(srq *SRQ) { srq.w.stop(s, true) })
	o.cqs.each(func(cq *CQ) { cq.broken(errClosedDevice) })
}

// silence makes sure that no object rings or touches its memory any more, and forgets the objects.
func (o *objects) silence(s *stream, why error) {
	o.qps.drain(func(qp *QP) {
		qp.stop(s, true)
		qp.setError()
	})
	o.srqs.drain(func(srq *SRQ) { srq.w.stop(s, true) })
	o.cqs.drain(func(cq *CQ) {
		s.silence(&cq.bell, true)
		cq.broken(why)
	})
}
