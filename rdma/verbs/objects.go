package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
)

// Objects are the objects of one function. Numbers and keys of one function mean
// nothing to another.
type Objects struct {
	Owner
	PDs
	XRCDs
	Regions
	CQs
	SRQs
	AHs
	QPs
}

// Init makes the objects of a function over the guest memory mem: sched gives its queue pairs their
// turns, carriers carry their datagrams.
func (o *Objects) Init(shared *Shared, mem *queues.Memory, limits Limits, out Notifier, sched Scheduler, carriers Carriers) {
	owner := &o.Owner
	owner.mem, owner.limits, owner.out = mem, limits.WithDefaults(), out
	l := &owner.limits
	o.PDs = PDs{domains{owner: owner, table: newTable[Domain](KindPD, l)}}
	o.XRCDs = XRCDs{domains{owner: owner, table: newTable[Domain](KindXRCD, l)}}
	o.Regions = Regions{owner: owner, pds: &o.PDs, table: newTable[MR](KindMR, l)}
	o.Regions.setLimit(l.Objects[KindMR])
	o.CQs = CQs{owner: owner, shared: shared, table: newTable[CQ](KindCQ, l)}
	o.SRQs = SRQs{
		owner: owner, shared: shared, pds: &o.PDs, xrcds: &o.XRCDs, regions: &o.Regions, cqs: &o.CQs,
		table: newTable[SRQ](KindSRQ, l),
	}
	o.AHs = AHs{owner: owner, pds: &o.PDs, carriers: carriers, table: newTable[AH](KindAH, l)}
	o.QPs = QPs{
		owner: owner, shared: shared, sched: sched, pds: &o.PDs, xrcds: &o.XRCDs, regions: &o.Regions, cqs: &o.CQs, srqs: &o.SRQs, ahs: &o.AHs,
		table: newTable[QP](KindQP, l),
	}
}

// collection is the objects of a kind.
func (o *Objects) collection(k Kind) collection {
	switch k {
	case KindQP:
		return &o.QPs
	case KindCQ:
		return &o.CQs
	case KindMR:
		return &o.Regions
	case KindPD:
		return &o.PDs
	case KindAH:
		return &o.AHs
	case KindSRQ:
		return &o.SRQs
	case KindMW:
		return windows{&o.Regions}
	default:
		return &o.XRCDs
	}
}

// each calls f for the objects of each kind.
func (o *Objects) each(f func(k Kind, c collection)) {
	for k := range Kinds {
		f(k, o.collection(k))
	}
}

// SetLimits changes the limits. Objects above a lowered limit stay; no further ones are made until
// enough are gone.
func (o *Objects) SetLimits(limits Limits) {
	o.limits = limits.WithDefaults()
	o.each(func(k Kind, c collection) { c.setLimit(o.limits.Objects[k]) })
}

// Counts returns the number of objects in use.
func (o *Objects) Counts() (n Counts) {
	o.each(func(k Kind, c collection) { n[k] = c.count() })
	return n
}

// Close destroys every object, first the queue pairs, and ends the function.
func (o *Objects) Close(now vtime.Time) {
	o.each(func(_ Kind, c collection) { c.closeAll(now) })
	o.closed, o.dirty = true, false
}

// Release writes all completions that Faults.Hold kept back. It reports whether there were any.
func (o *Objects) Release(now vtime.Time) (any bool) {
	any = o.releaseAll(now)
	o.Settle(now)
	return any
}
