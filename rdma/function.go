package rdma

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Function is the verbs side of one PF or VF: its protection domains, memory regions, completion
// queues and queue pairs. Numbers and keys of one function mean nothing to another.
type Function struct {
	verbs.Objects
	e  *Engine
	id uint32

	schedule
	qps verbs.Table[QP]

	gsi     *QP // has number 1
	links   map[LinkKey]*Link
	passive map[*Link]struct{} // that peers opened

	linkSerial uint32          // of the next one
	held       int             // datagrams in the links' queues
	holding    list.List[Link] // links that hold some; first the one whose destination was heard of the longest ago

	stats Stats // beside those of the objects
}

// NewFunction makes the verbs side of function id over the guest memory mem.
func (e *Engine) NewFunction(id uint32, mem *queues.Memory, limits verbs.Limits, out verbs.Notifier) *Function {
	f := &Function{e: e, id: id, links: map[LinkKey]*Link{}, passive: map[*Link]struct{}{}}
	f.Init(&e.shared, mem, limits, out)
	f.qps = verbs.NewTable[QP](f.Limits().Objects[verbs.KindQP], 16, 2) // QPs 0 and 1 are InfiniBand's special ones
	f.rate = new(credit.Bucket)
	e.fns = append(e.fns, f)
	return f
}

// ID is the function's number.
func (f *Function) ID() uint32 { return f.id }

// SetLimits changes the limits. Objects above a lowered limit stay; no further ones are made until
// enough are gone.
func (f *Function) SetLimits(limits verbs.Limits) {
	f.Objects.SetLimits(limits)
	f.qps.SetLimit(f.Limits().Objects[verbs.KindQP])
}

// Counts returns the number of objects in use.
func (f *Function) Counts() verbs.Counts {
	n := f.Objects.Counts()
	n[verbs.KindQP] = f.qps.InUse()
	return n
}

// Stats returns the function's counters.
func (f *Function) Stats() Stats {
	s := f.stats
	s.Stats, s.Counters = f.Owner.Stats, f.Account.Counters
	return s
}

// Close destroys every object, closes the connections and ends the function. It writes no
// completions.
func (f *Function) Close(now vtime.Time) {
	if f.Closed() {
		return
	}
	f.eachQP(func(q *QP) { q.destroy(now) })
	f.closeLinks(now)
	f.Objects.Close()
	f.e.forget(f)
}

// QP returns the queue pair called qpn, nil when there is none.
func (f *Function) QP(qpn uint32) *QP {
	if qpn == gsiNumber {
		return f.gsi
	}
	return f.qps.Get(qpn)
}

// eachQP calls do for every queue pair, which it may destroy.
func (f *Function) eachQP(do func(*QP)) {
	f.qps.Each(do)
	if f.gsi != nil {
		do(f.gsi)
	}
}

// settle finishes what stop and a CQ overflow began. Every entry point ends with it.
func (f *Function) settle(now vtime.Time) {
	for f.Unsettled() {
		stopped := !f.Working()
		f.eachQP(func(q *QP) {
			switch {
			case stopped:
				q.abandon(now)
			case q.sendCQ.Broken() || q.recvCQ.Broken():
				q.fail(now, abi.WCGeneralErr, "completion queue failed")
			}
		})
		f.FailBroken()
	}
}

// Doorbell takes one doorbell of the driver. What it claims is checked against the queue in memory;
// nonsense stops the function with abi.FaultDoorbell.
func (f *Function) Doorbell(now vtime.Time, d *abi.Doorbell) {
	if !f.Working() {
		return
	}
	f.stats.Doorbells++
	switch d.Kind {
	case abi.DoorbellSQ:
		if q := f.QP(d.Queue); q != nil {
			if f.Trace != nil {
				q.noteEntries(trace.Doorbell, d.Index)
			}
			q.sendDoorbell(d.Index)
		} else {
			f.BrokeDoorbell(abi.DRV801, d)
			f.Stop(abi.FaultDoorbell, "SQ doorbell names QP %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellRQ:
		if q := f.QP(d.Queue); q != nil {
			q.recvDoorbell(d.Index)
		} else {
			f.BrokeDoorbell(abi.DRV801, d)
			f.Stop(abi.FaultDoorbell, "RQ doorbell names QP %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellSRQ:
		if s := f.SRQ(d.Queue); s != nil {
			s.Doorbell(d.Index)
		} else {
			f.BrokeDoorbell(abi.DRV801, d)
			f.Stop(abi.FaultDoorbell, "SRQ doorbell names SRQ %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellCQArm:
		if c := f.CQ(d.Queue); c != nil {
			c.Arm(d.Index, d.Flags&abi.ArmSolicitedOnly != 0)
		} else {
			f.BrokeDoorbell(abi.DRV801, d)
			f.Stop(abi.FaultDoorbell, "CQ doorbell names CQ %#x, which does not exist; arm only queues that were created", d.Queue)
		}
	default:
		f.BrokeDoorbell(abi.DRV801, d)
		f.Stop(abi.FaultDoorbell, "doorbell kind %d is not for the RDMA engine", uint8(d.Kind))
	}
	f.settle(now)
}

// Unstick looks at all send queues again that Stuck may have kept back.
func (f *Function) Unstick(now vtime.Time) {
	f.eachQP((*QP).wake)
	f.settle(now)
}

// Release writes all completions that Hold kept back. It reports whether there were any.
func (f *Function) Release(now vtime.Time) (any bool) {
	any = f.ReleaseAll(now)
	f.settle(now)
	return any
}
