package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Objects holds the objects of one function. Numbers and keys of one function are not valid in
// another.
type Objects struct {
	Owner
	PDs
	XRCDs
	Regions
	CQs
	SRQs
	AHs
	QPs
	Groups
}

// Init prepares the objects of a function with the guest memory mem. sched gives its queue pairs
// their turns, destinations carries their datagrams.
func (o *Objects) Init(shared *Shared, mem *queues.Memory, limits Limits, out Notifier, sched Scheduler, destinations Destinations) {
	owner := &o.Owner
	owner.mem, owner.limits, owner.out = mem, limits.WithDefaults(), out
	owner.gids.used = 1 // the function's own address, until the driver changes the table
	l := &owner.limits
	o.PDs = PDs{domains{owner: owner, table: newTable[Domain](abi.ObjectPD, l)}}
	o.XRCDs = XRCDs{domains{owner: owner, table: newTable[Domain](abi.ObjectXRCD, l)}}
	o.Regions = Regions{owner: owner, pds: &o.PDs, table: newTable[MR](abi.ObjectMR, l)}
	o.Regions.setLimit(l.Objects[abi.ObjectMR])
	o.Regions.direct = &MR{owner: owner, key: abi.ReservedLKey, area: queues.Direct(mem), valid: true}
	o.CQs = CQs{owner: owner, shared: shared, table: newTable[CQ](abi.ObjectCQ, l)}
	o.SRQs = SRQs{
		owner: owner, shared: shared, pds: &o.PDs, xrcds: &o.XRCDs, regions: &o.Regions, cqs: &o.CQs,
		table: newTable[SRQ](abi.ObjectSRQ, l),
	}
	o.AHs = AHs{owner: owner, pds: &o.PDs, destinations: destinations, table: newTable[AH](abi.ObjectAH, l)}
	o.QPs = QPs{
		owner: owner, shared: shared, sched: sched, pds: &o.PDs, xrcds: &o.XRCDs, regions: &o.Regions, cqs: &o.CQs, srqs: &o.SRQs, ahs: &o.AHs,
		groups: &o.Groups, table: newTable[QP](abi.ObjectQP, l),
	}
	o.Groups = Groups{owner: owner, qps: &o.QPs, destinations: destinations, most: l.Objects[abi.ObjectMCG]}
}

// collection returns the objects of one kind.
func (o *Objects) collection(k abi.Object) collection {
	switch k {
	case abi.ObjectQP:
		return &o.QPs
	case abi.ObjectCQ:
		return &o.CQs
	case abi.ObjectMR:
		return &o.Regions
	case abi.ObjectPD:
		return &o.PDs
	case abi.ObjectAH:
		return &o.AHs
	case abi.ObjectSRQ:
		return &o.SRQs
	case abi.ObjectMW:
		return windows{&o.Regions}
	case abi.ObjectMCG:
		return &o.Groups
	default:
		return &o.XRCDs
	}
}

// each calls f for the objects of each kind.
func (o *Objects) each(f func(k abi.Object, c collection)) {
	for k := range abi.NumObjects {
		f(k, o.collection(k))
	}
}

// SetLimits changes the limits. Objects above a lowered limit stay; new ones are refused until
// enough are gone.
func (o *Objects) SetLimits(limits Limits) {
	o.limits = limits.WithDefaults()
	o.each(func(k abi.Object, c collection) { c.setLimit(o.limits.Objects[k]) })
}

// Counts returns the number of objects in use.
func (o *Objects) Counts() (n Counts) {
	o.each(func(k abi.Object, c collection) { n[k] = c.count() })
	return n
}

// Close destroys every object, queue pairs first, and ends the function.
func (o *Objects) Close(now vtime.Time) {
	o.each(func(_ abi.Object, c collection) { c.closeAll(now) })
	o.closed, o.dirty = true, false
}

// Release writes all completions that Faults.Hold held back. It reports whether there were any.
func (o *Objects) Release(now vtime.Time) (any bool) {
	any = o.releaseAll(now)
	o.Settle(now)
	return any
}
