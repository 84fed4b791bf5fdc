package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Doorbell takes one doorbell of the driver. What it claims is checked against the queue in memory;
// nonsense stops the function with abi.FaultDoorbell.
func (o *Objects) Doorbell(now vtime.Time, d *abi.Doorbell) {
	if !o.Working() {
		return
	}
	o.Stats.Doorbells++
	switch d.Kind {
	case abi.DoorbellSQ:
		if q := o.QP(d.Queue); q != nil {
			if o.Trace != nil {
				q.noteEntries(trace.Doorbell, d.Index)
			}
			q.sendDoorbell(d.Index)
		} else {
			o.brokeDoorbell(abi.DRV801, d)
			o.Stop(abi.FaultDoorbell, "SQ doorbell names QP %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellRQ:
		if q := o.QP(d.Queue); q != nil {
			q.recvDoorbell(d.Index)
		} else {
			o.brokeDoorbell(abi.DRV801, d)
			o.Stop(abi.FaultDoorbell, "RQ doorbell names QP %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellSRQ:
		if s := o.SRQ(d.Queue); s != nil {
			s.Doorbell(d.Index)
		} else {
			o.brokeDoorbell(abi.DRV801, d)
			o.Stop(abi.FaultDoorbell, "SRQ doorbell names SRQ %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellCQArm:
		if c := o.CQ(d.Queue); c != nil {
			c.Arm(d.Index, d.Flags&abi.ArmSolicitedOnly != 0)
		} else {
			o.brokeDoorbell(abi.DRV801, d)
			o.Stop(abi.FaultDoorbell, "CQ doorbell names CQ %#x, which does not exist; arm only queues that were created", d.Queue)
		}
	default:
		o.brokeDoorbell(abi.DRV801, d)
		o.Stop(abi.FaultDoorbell, "doorbell kind %d is not for the RDMA engine", uint8(d.Kind))
	}
	o.Settle(now)
}
