package verbs

import (
	"github.com/falcon-vnic/vnic/queues/abi"
)

// sendDoorbell handles a doorbell of the send queue.
func (s *requester) sendDoorbell(index uint32) {
	q := s.q
	if q.state == abi.QPStateReset {
		q.owner.rungInReset(abi.RingSQ, q.number, index)
		return // the driver may be clearing the queue
	}
	if s.sq.Doorbell(index) {
		q.wake()
	}
}

// recvDoorbell handles a doorbell of the receive queue. Receives are read only when a message needs
// one.
func (r *responder) recvDoorbell(index uint32) {
	q := r.q
	if q.state == abi.QPStateReset {
		q.owner.rungInReset(abi.RingRQ, q.number, index)
		return
	}
	if r.rq.Doorbell(index) && q.state == abi.QPStateErr {
		q.wake()
	}
}
