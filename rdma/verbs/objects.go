package verbs

import (
	"github.com/falcon-vnic/vnic/queues"
)

// Objects are the objects of one function. Numbers and keys of one function mean nothing to another.
type Objects struct {
	Owner
	PDs
	XRCDs
	Regions
	CQs
	SRQs
}

// Counts says how many objects a function holds.
type Counts struct{ PDs, MRs, MWs, CQs, QPs, SRQs, XRCDs, AHs int }

// Init makes the objects of a function over the guest memory mem.
func (o *Objects) Init(shared *Shared, mem *queues.Memory, limits Limits, out Notifier) {
	owner := &o.Owner
	owner.mem, owner.limits, owner.out = mem, limits.WithDefaults(), out
	l := &owner.limits
	o.PDs = PDs{domains{owner: owner, table: NewTable[Domain](l.PDs, 24, 1)}}
	o.XRCDs = XRCDs{domains{owner: owner, table: NewTable[Domain](l.XRCDs, 16, 1)}}
	o.Regions = Regions{owner: owner, pds: &o.PDs, table: NewTable[MR](l.MRs+l.MWs, 24, 1)}
	o.CQs = CQs{owner: owner, shared: shared, table: NewTable[CQ](l.CQs, 24, 1)}
	o.SRQs = SRQs{
		owner: owner, shared: shared, pds: &o.PDs, xrcds: &o.XRCDs, regions: &o.Regions, cqs: &o.CQs,
		table: NewTable[SRQ](l.SRQs, 16, 1),
	}
}

// SetLimits changes the limits. Objects above a lowered limit stay; no further ones are made until
// enough are gone.
func (o *Objects) SetLimits(limits Limits) {
	o.limits = limits.WithDefaults()
	l := &o.limits
	o.PDs.table.SetLimit(l.PDs)
	o.XRCDs.table.SetLimit(l.XRCDs)
	o.Regions.setLimit()
	o.CQs.table.SetLimit(l.CQs)
	o.SRQs.table.SetLimit(l.SRQs)
}

// Counts returns the number of objects in use.
func (o *Objects) Counts() Counts {
	return Counts{
		PDs: o.PDs.table.InUse(), XRCDs: o.XRCDs.table.InUse(), MRs: o.mrs(), MWs: o.windows,
		CQs: o.CQs.table.InUse(), SRQs: o.SRQs.table.InUse(),
	}
}

// Close destroys every object, of which no queue pair is left, and ends the function.
func (o *Objects) Close() {
	o.SRQs.closeAll()
	o.XRCDs.closeAll()
	o.CQs.closeAll()
	o.Regions.closeAll()
	o.PDs.closeAll()
	o.closed, o.dirty = true, false
}
