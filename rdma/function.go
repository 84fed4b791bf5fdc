package rdma

import (
	"fmt"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Notifier takes what a function has to tell its driver. The methods are called in the middle of
// other work: they must only append to a bounded queue and not call back into the engine.
type Notifier interface {
	// CQEvent says that an armed completion queue has news.
	CQEvent(cqn uint32)
	// AsyncEvent reports what happened to the QP, CQ or SRQ called number; status is an
	// abi.WCStatus where one tells why.
	AsyncEvent(typ abi.EventType, number, status uint32, reason string)
	// Fault puts the function into its error state. It is called at most once in the function's
	// life.
	Fault(code abi.Fault, reason string)
	// Violation says which clause of docs/abi the driver broke, and how. It keeps v.
	Violation(v *abi.Violation)
}

// Function is the verbs side of one PF or VF: its protection domains, memory regions, completion
// queues and queue pairs. Numbers and keys of one function mean nothing to another.
type Function struct {
	e      *Engine
	id     uint32
	mem    *queues.Memory
	limits Limits
	out    Notifier

	eventIndex bool   // the driver rings only when the event index asks for it
	armWord    bool   // the driver arms completion queues in their headers
	faults     Faults // nil: in service
	strict     bool   // look for what is wrong but harms nobody
	extended   bool   // the driver knows abi.FeatureExtendedVerbs

	pds table[PD]
	mrs table[MR] // and memory windows: they share the keys
	cqs table[CQ]
	qps table[QP]

	schedule
	srqs  table[SRQ]
	xrcds table[XRCD]

	gsi     *QP // has number 1
	ahs     table[AH]
	links   map[LinkKey]*Link
	passive map[*Link]struct{} // that peers opened

	linkSerial uint32     // of the next one
	held       int        // datagrams in the links' queues
	holding    list[Link] // links that hold some; first the one whose destination was heard of the longest ago

	mws int // of mrs

	pageListBytes int // of the MRs' page lists, at most limits.PageListBytes

	fault  abi.Fault
	closed bool
	// dirty asks settle to move QPs to ERR after a fault or a CQ overflow. It is set where doing so
	// at once would change queues under the feet of the caller.
	dirty bool
	stats Stats
	trace *trace.Ring // nil: nobody traces the function
}

// Counts says how many objects a function holds.
type Counts struct{ PDs, MRs, MWs, CQs, QPs, SRQs, XRCDs, AHs int }

// NewFunction makes the verbs side of function id over the guest memory mem.
func (e *Engine) NewFunction(id uint32, mem *queues.Memory, limits Limits, out Notifier) *Function {
	limits = limits.WithDefaults()
	f := &Function{
		e: e, id: id, mem: mem, limits: limits, out: out,
		pds: newTable[PD](limits.PDs, 24, 1),
		mrs: newTable[MR](limits.MRs+limits.MWs, 24, 1),
		cqs: newTable[CQ](limits.CQs, 24, 1),
		qps: newTable[QP](limits.QPs, 16, 2), // QPs 0 and 1 are InfiniBand's special ones

		srqs:  newTable[SRQ](limits.SRQs, 16, 1),
		xrcds: newTable[XRCD](limits.XRCDs, 16, 1),

		ahs:     newTable[AH](limits.AHs, 24, 1),
		links:   map[LinkKey]*Link{},
		passive: map[*Link]struct{}{},
	}
	f.rate, f.weight = new(credit.Bucket), 1
	e.fns = append(e.fns, f)
	return f
}

// ID is the function's number.
func (f *Function) ID() uint32 { return f.id }

// Limits returns the limits in force.
func (f *Function) Limits() Limits { return f.limits }

// SetLimits changes the limits. Objects above a lowered limit stay; no further ones are made until
// enough are gone.
func (f *Function) SetLimits(limits Limits) {
	f.limits = limits.WithDefaults()
	f.pds.setLimit(f.limits.PDs)
	f.mrs.setLimit(max(f.limits.MRs, f.mrs.inUse-f.mws) + max(f.limits.MWs, f.mws)) // neither takes the other's room
	f.cqs.setLimit(f.limits.CQs)
	f.qps.setLimit(f.limits.QPs)
	f.srqs.setLimit(f.limits.SRQs)
	f.xrcds.setLimit(f.limits.XRCDs)
	f.ahs.setLimit(f.limits.AHs)
}

// Counts returns the number of objects in use.
func (f *Function) Counts() Counts {
	return Counts{
		PDs: f.pds.inUse, MRs: f.mrs.inUse - f.mws, MWs: f.mws, CQs: f.cqs.inUse, QPs: f.qps.inUse, SRQs: f.srqs.inUse,
		XRCDs: f.xrcds.inUse, AHs: f.ahs.inUse,
	}
}

// Stats returns the function's counters.
func (f *Function) Stats() Stats { return f.stats }

// Fault returns why the function stopped, abi.FaultNone while it works.
func (f *Function) Fault() abi.Fault { return f.fault }

// Close destroys every object, closes the connections and ends the function. It writes no
// completions.
func (f *Function) Close(now falcon.Time) {
	if f.closed {
		return
	}
	f.eachQP(func(q *QP) { q.destroy(now) })
	f.closeLinks(now)
	f.srqs.each(func(s *SRQ) { s.destroy() })
	f.xrcds.each(func(x *XRCD) { f.xrcds.remove(x.number) })
	f.cqs.each(func(c *CQ) {
		c.stop()
		f.cqs.remove(c.number)
	})
	f.mrs.each(func(m *MR) {
		if m.window {
			m.deregister()
		}
	})
	f.mrs.each(func(m *MR) { m.deregister() })
	f.ahs.each(func(a *AH) { f.ahs.remove(a.number) })
	f.pds.each(func(p *PD) { f.pds.remove(p.number) })
	f.closed = true
	f.dirty = false
	f.e.forget(f)
}

// QP returns the queue pair called qpn, nil when there is none.
func (f *Function) QP(qpn uint32) *QP {
	if qpn == gsiNumber {
		return f.gsi
	}
	return f.qps.get(qpn)
}

// eachQP calls do for every queue pair, which it may destroy.
func (f *Function) eachQP(do func(*QP)) {
	f.qps.each(do)
	if f.gsi != nil {
		do(f.gsi)
	}
}

// working reports whether commands and doorbells are taken.
func (f *Function) working() bool { return !f.closed && f.fault == abi.FaultNone }

// stop is called where guest memory or a doorbell proves the driver broken. The QPs follow at the
// next settle.
func (f *Function) stop(code abi.Fault, format string, args ...any) {
	if !f.working() {
		return
	}
	f.fault = code
	f.dirty = true
	f.out.Fault(code, fmt.Sprintf(format, args...))
}

// memoryFault stops the function because a queue cannot be accessed.
func (f *Function) memoryFault(what string, number uint32, err error) {
	f.stop(abi.FaultMemory, "%s %#x: %v", what, number, err)
}

// settle finishes what stop and a CQ overflow began. Every entry point ends with it.
func (f *Function) settle(now falcon.Time) {
	for f.dirty {
		f.dirty = false
		stopped := !f.working()
		f.eachQP(func(q *QP) {
			switch {
			case stopped:
				q.abandon(now)
			case q.sendCQ.broken() || q.recvCQ.broken():
				q.fail(now, abi.WCGeneralErr, "completion queue failed")
			}
		})
		f.srqs.each(func(s *SRQ) {
			if s.cq.broken() {
				s.fail()
			}
		})
	}
}

// Doorbell takes one doorbell of the driver. What it claims is checked against the queue in memory;
// nonsense stops the function with abi.FaultDoorbell.
func (f *Function) Doorbell(now falcon.Time, d *abi.Doorbell) {
	if !f.working() {
		return
	}
	f.stats.Doorbells++
	switch d.Kind {
	case abi.DoorbellSQ:
		if q := f.QP(d.Queue); q != nil {
			if f.trace != nil {
				q.noteEntries(trace.Doorbell, d.Index)
			}
			q.sendDoorbell(d.Index)
		} else {
			f.brokeDoorbell(abi.DRV801, d)
			f.stop(abi.FaultDoorbell, "SQ doorbell names QP %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellRQ:
		if q := f.QP(d.Queue); q != nil {
			q.recvDoorbell(d.Index)
		} else {
			f.brokeDoorbell(abi.DRV801, d)
			f.stop(abi.FaultDoorbell, "RQ doorbell names QP %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellSRQ:
		if s := f.srqs.get(d.Queue); s != nil {
			s.queue.doorbell(d.Index)
		} else {
			f.brokeDoorbell(abi.DRV801, d)
			f.stop(abi.FaultDoorbell, "SRQ doorbell names SRQ %#x, which does not exist; ring only for queues that were created", d.Queue)
		}
	case abi.DoorbellCQArm:
		if c := f.cqs.get(d.Queue); c != nil {
			c.armFor(d.Index, d.Flags&abi.ArmSolicitedOnly != 0)
		} else {
			f.brokeDoorbell(abi.DRV801, d)
			f.stop(abi.FaultDoorbell, "CQ doorbell names CQ %#x, which does not exist; arm only queues that were created", d.Queue)
		}
	default:
		f.brokeDoorbell(abi.DRV801, d)
		f.stop(abi.FaultDoorbell, "doorbell kind %d is not for the RDMA engine", uint8(d.Kind))
	}
	f.settle(now)
}
