package verbs

import (
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Registration is a memory region whose page list is being read. It belongs to the command that
// began it: nothing else of the function happens until it is done, or the function ends.
type Registration struct {
	regions  *Regions
	mr       *MR
	list     queues.ListReader
	replaces *MR // the region that is registered again
	keepArea bool
}

// RegMR registers memory and returns its keys.
func (r *Regions) RegMR(c *abi.RegMR) (lkey, rkey uint32, st abi.Status) {
	g, st := r.StartRegMR(c)
	if st != abi.StatusOK {
		return 0, 0, st
	}
	_, lkey, rkey, st = g.Read(queues.MaxPages)
	return lkey, rkey, st
}

// StartRegMR checks a registration, whose page list is then read in pieces: it may have half a
// million entries.
func (r *Regions) StartRegMR(c *abi.RegMR) (*Registration, abi.Status) {
	if !r.owner.Working() {
		return nil, abi.StatusBadState
	}
	pd := r.pds.PD(c.PDN)
	switch {
	case pd == nil:
		return nil, abi.StatusNotFound
	case c.Length > abi.MaxMRSize:
		return nil, abi.StatusTooLarge
	case badTranslation(c), badAccess(c.Access), c.Access&abi.AccessZeroBased != 0 && c.IOVA != 0:
		return nil, abi.StatusInvalidArgument
	case r.count() >= r.owner.limits.Objects[abi.ObjectMR]:
		return nil, abi.StatusNoResources // before the page list is read
	}
	g := &Registration{regions: r, mr: &MR{
		owner: r.owner, pd: pd, access: c.Access, iova: c.IOVA, length: c.Length, skew: uint64(c.Offset), valid: true,
	}}
	if err := g.list.Start(r.owner.mem, c.Pages, int(c.Levels), queues.PagesFor(c.Offset, c.Length)); err != nil {
		return nil, r.owner.areaStatus(err)
	}
	return g, abi.StatusOK
}

// badTranslation reports whether addresses of a registration make no sense.
func badTranslation(c *abi.RegMR) bool {
	return c.Length == 0 || c.IOVA+c.Length < c.IOVA && c.IOVA+c.Length != 0 || c.Offset >= abi.PageSize
}

// badAccess reports whether rights are unknown, or let peers do what the device itself may not.
func badAccess(access uint32) bool {
	return access&^validAccess != 0 || access&needLocalWrite != 0 && access&abi.AccessLocalWrite == 0
}

// needLocalWrite are the rights that need abi.AccessLocalWrite beside.
const needLocalWrite = abi.AccessRemoteWrite | abi.AccessRemoteAtomic

// Read takes at most pages more entries of the page list. When it is done the region exists, or st
// says why not.
func (g *Registration) Read(pages int) (done bool, lkey, rkey uint32, st abi.Status) {
	m, r, o := g.mr, g.regions, g.regions.owner
	if g.keepArea {
		return g.replace()
	}
	done, err := g.list.Read(pages)
	if err == nil && done {
		m.area, err = queues.NewArea(o.mem, g.list.List(), uint32(m.skew), m.length)
	}
	switch {
	case err != nil:
		return true, 0, 0, o.areaStatus(err)
	case !done:
		return false, 0, 0, abi.StatusOK
	case r.pageListBytes+m.area.Footprint() > o.limits.PageListBytes:
		return true, 0, 0, abi.StatusNoResources
	}
	if g.replaces != nil {
		return g.replace()
	}
	if !r.add(m) {
		return true, 0, 0, abi.StatusNoResources // the quota was lowered meanwhile
	}
	r.pageListBytes += m.area.Footprint()
	return true, m.key, m.key, abi.StatusOK
}

// reregKnown is what ReregMR can change.
const reregKnown = abi.ReregTranslation | abi.ReregPD | abi.ReregAccess

// StartReregMR begins to change a region, which keeps its meaning until the registration is read.
func (r *Regions) StartReregMR(c *abi.ReregMR) (*Registration, abi.Status) {
	if !r.owner.Working() {
		return nil, abi.StatusBadState
	}
	old := r.named(c.LKey)
	if old == nil || old.window {
		return nil, abi.StatusNotFound
	}
	m := &MR{owner: r.owner, pd: old.pd, access: old.access, iova: old.iova, length: old.length, skew: old.skew, area: old.area, valid: true}
	g := &Registration{regions: r, mr: m, replaces: old, keepArea: c.Mask&abi.ReregTranslation == 0}
	if c.Mask&abi.ReregPD != 0 {
		if m.pd = r.pds.PD(c.PDN); m.pd == nil {
			return nil, abi.StatusNotFound
		}
	}
	if c.Mask&abi.ReregAccess != 0 {
		m.access = c.Access
	}
	t := &abi.RegMR{IOVA: c.IOVA, Length: c.Length, Offset: c.Offset}
	if g.keepArea {
		t = &abi.RegMR{IOVA: m.iova, Length: m.length, Offset: uint32(m.skew)}
	}
	switch {
	case old.windows > 0:
		return nil, abi.StatusBusy
	case old.fast > 0: // work requests register that
		return nil, abi.StatusInvalidArgument
	case t.Length > abi.MaxMRSize:
		return nil, abi.StatusTooLarge
	case c.Mask == 0 || c.Mask&^uint32(reregKnown) != 0, badTranslation(t), badAccess(m.access), m.access&abi.AccessZeroBased != 0 && t.IOVA != 0:
		return nil, abi.StatusInvalidArgument
	}
	m.iova, m.length, m.skew = t.IOVA, t.Length, uint64(t.Offset)
	if !g.keepArea {
		if err := g.list.Start(r.owner.mem, c.Pages, int(c.Levels), queues.PagesFor(c.Offset, c.Length)); err != nil {
			return nil, r.owner.areaStatus(err)
		}
	}
	return g, abi.StatusOK
}

// replace puts the new region into the place of the old.
func (g *Registration) replace() (done bool, lkey, rkey uint32, st abi.Status) {
	old, m, r := g.replaces, g.mr, g.regions
	if old.windows > 0 { // bound while the page list was read
		return true, 0, 0, abi.StatusBusy
	}
	r.pageListBytes += m.area.Footprint() - old.area.Footprint()
	old.valid = false
	old.pd.users--
	m.pd.users++
	m.key = numberKey(r.table.Replace(keyNumber(old.key), m, uint8(old.key)+1))
	return true, m.key, m.key, abi.StatusOK
}
