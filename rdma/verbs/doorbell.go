package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Doorbell handles one doorbell of the driver. Its index is checked against the queue in memory. A
// doorbell that names no queue is only counted (DEV-801): it may have crossed the command that
// destroyed the queue.
func (o *Objects) Doorbell(now vtime.Time, d *abi.Doorbell) {
	if !o.Working() {
		return
	}
	o.Stats.Doorbells++
	if !o.rang(d) {
		o.Stats.BadDoorbells++
		o.brokeDoorbell(abi.DRV801, d)
	}
	o.Settle(now)
}

// rang passes a doorbell to the queue that it names. It returns false if there is no such queue.
func (o *Objects) rang(d *abi.Doorbell) bool {
	switch d.Kind {
	case abi.DoorbellSQ, abi.DoorbellRQ:
		q := o.QP(d.Queue)
		switch {
		case q == nil:
			return false
		case d.Kind == abi.DoorbellRQ:
			q.recvDoorbell(d.Index)
		default:
			if o.Trace != nil {
				q.noteEntries(trace.Doorbell, d.Index)
			}
			q.sendDoorbell(d.Index)
		}
	case abi.DoorbellSRQ:
		s := o.SRQ(d.Queue)
		if s == nil {
			return false
		}
		s.Doorbell(d.Index)
	case abi.DoorbellCQArm:
		c := o.CQ(d.Queue)
		if c == nil {
			return false
		}
		c.Arm(d.Index, d.Flags&abi.ArmSolicitedOnly != 0)
	default:
		return false
	}
	return true
}
