package verbs

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// brokeReset reports a doorbell for a queue of a QP in RESET.
func (q *QP) brokeReset(kind abi.Ring, index uint32) {
	if index != 0 {
		q.owner.Broke(abi.DRV601, kind, q.number, index, binary.LittleEndian.AppendUint32(nil, index))
	}
}

// sendDoorbell takes a doorbell of the send queue.
func (q *QP) sendDoorbell(index uint32) {
	if q.state == abi.QPStateReset {
		q.brokeReset(abi.RingSQ, index)
		return // the driver may be clearing the queue
	}
	if q.sq.Doorbell(index) {
		q.wake()
	}
}

// recvDoorbell takes a doorbell of the receive queue. Receives are read when a message needs one.
func (q *QP) recvDoorbell(index uint32) {
	if q.state == abi.QPStateReset {
		q.brokeReset(abi.RingRQ, index)
		return
	}
	if q.rq.Doorbell(index) && q.state == abi.QPStateErr {
		q.wake()
	}
}
