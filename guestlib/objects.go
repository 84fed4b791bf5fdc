package guestlib

// objects holds the device's objects by number, to find them for the device's events.
type objects struct {
	cqs  table[*CQ]
	qps  table[*QP]
	srqs table[*SRQ]
}

// news wakes the waiters of a CQ.
func (o *objects) news(cqn uint32) {
	if cq := o.cqs.get(cqn); cq != nil { // nil: the CQ was destroyed since
		cq.signal()
	}
}

// stop makes sure that no object accesses its memory any more, because the device is closed.
func (o *objects) stop(s *stream) {
	o.qps.each(func(qp *QP) { qp.stop(s, true) })
	o.srqs.each(func(srq *SRQ) { srq.w.stop(s, true) })
	o.cqs.each(func(cq *CQ) { cq.broken(errClosedDevice) })
}

// silence makes sure that no object rings or accesses its memory any more, and removes all objects.
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
