package verbs

import "github.com/falcon-vnic/vnic/queues"

// Objects are the objects of one function, queue pairs aside. Numbers and keys of one function mean
// nothing to another.
type Objects struct {
	Owner
	PDs
	XRCDs
	Regions
	CQs
	SRQs
	AHs
}

// Init makes the objects of a function over the guest memory mem.
func (o *Objects) Init(shared *Shared, mem *queues.Memory, limits Limits, out Notifier) {
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
	o.AHs = AHs{owner: owner, pds: &o.PDs, table: newTable[AH](KindAH, l)}
}

// collection is the objects of a kind, nil of queue pairs.
func (o *Objects) collection(k Kind) collection {
	switch k {
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
	case KindXRCD:
		return &o.XRCDs
	}
	return nil
}

// each calls f for the objects of each kind.
func (o *Objects) each(f func(k Kind, c collection)) {
	for k := range Kinds {
		if c := o.collection(k); c != nil {
			f(k, c)
		}
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

// Close destroys every object, of which no queue pair is left, and ends the function.
func (o *Objects) Close() {
	o.each(func(_ Kind, c collection) { c.closeAll() })
	o.closed, o.dirty = true, false
}
