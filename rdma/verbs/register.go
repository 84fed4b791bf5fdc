package verbs

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Registration is a memory region whose page list is being read. From the start it counts as a
// region, and the memory of its list counts too. Until it is done, the objects that it needs cannot
// go away: its protection domain, and the region that is registered again.
type Registration struct {
	regions  *Regions
	mr       *MR
	span     queues.Span
	list     queues.ListReader
	held     int // part of the function's PageListBytes
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

// StartRegMR checks a registration. Its page list, of up to 2^27 entries, is then read in pieces.
func (r *Regions) StartRegMR(c *abi.RegMR) (*Registration, abi.Status) {
	if !r.owner.Working() {
		return nil, abi.StatusBadState
	}
	pd := r.pds.PD(c.PDN)
	span := queues.Span{PageShift: c.PageShift, Offset: c.Offset, Length: c.Length}
	switch {
	case pd == nil:
		return nil, abi.StatusNotFound
	case c.Length > abi.MaxMRSize:
		return nil, abi.StatusTooLarge
	case badTranslation(c.IOVA, &span), badAccess(c.Access), c.Access&abi.AccessZeroBased != 0 && c.IOVA != 0:
		return nil, abi.StatusInvalidArgument
	case r.full():
		return nil, abi.StatusNoResources // before the page list is read
	}
	g := &Registration{regions: r, span: span, mr: &MR{
		owner: r.owner, pd: pd, access: c.Access, iova: c.IOVA, length: c.Length, skew: uint64(c.Offset), valid: true,
	}}
	if err := g.list.Start(r.owner.mem, c.Pages, int(c.Levels), span); err != nil {
		return nil, r.owner.areaStatus(err)
	}
	pd.users++
	r.registering++
	return g, abi.StatusOK
}

// badTranslation reports whether the addresses of a registration are invalid.
func badTranslation(iova uint64, s *queues.Span) bool {
	shift := s.Shift()
	return s.Length == 0 || iova+s.Length-1 < iova ||
		shift < abi.MinPageShift || shift > abi.MaxPageShift || uint64(s.Offset) >= 1<<shift
}

// badAccess reports whether rights are unknown, or give peers a kind of access that the device
// itself does not have.
func badAccess(access uint32) bool {
	return access&^validAccess != 0 || access&needLocalWrite != 0 && access&abi.AccessLocalWrite == 0
}

// needLocalWrite holds the rights that require abi.AccessLocalWrite too.
const needLocalWrite = abi.AccessRemoteWrite | abi.AccessRemoteAtomic

// Left returns how many entries of the page list are still to be read.
func (g *Registration) Left() int { return g.list.Left() }

// Read reads at most pages more entries of the page list. When done is true, the region exists, or
// st is the reason why not.
func (g *Registration) Read(pages int) (done bool, lkey, rkey uint32, st abi.Status) {
	r, o := g.regions, g.regions.owner
	if !g.keepArea {
		done, err := g.list.Read(pages, o.limits.PageListBytes-r.pageListBytes+g.held)
		r.pageListBytes += g.list.Footprint() - g.held
		g.held = g.list.Footprint()
		if err == nil && done {
			g.mr.area, err = queues.NewArea(o.mem, g.list.List(), g.span)
		}
		switch {
		case errors.Is(err, queues.ErrScattered):
			return true, 0, 0, g.end(abi.StatusNoResources)
		case err != nil:
			return true, 0, 0, g.end(o.areaStatus(err))
		case !done:
			return false, 0, 0, abi.StatusOK
		}
		g.mr.area.Head = queues.Data
	}
	if g.replaces != nil {
		st = g.replace()
	} else {
		st = g.add()
	}
	return true, g.mr.key, g.mr.key, g.end(st)
}

// add adds the region, unless the quota was lowered meanwhile.
func (g *Registration) add() abi.Status {
	r := g.regions
	if r.count() >= r.owner.limits.Objects[abi.ObjectMR] || !r.add(g.mr) {
		return abi.StatusNoResources
	}
	return abi.StatusOK
}

// replace puts the new region in the place of the old one. The key stays, unless it would then name
// other memory or was made invalid: peers may still have it.
func (g *Registration) replace() abi.Status {
	old, m, r := g.replaces, g.mr, g.regions
	if old.windows > 0 { // bound while the page list was read
		return abi.StatusBusy
	}
	generation := uint8(old.key)
	if !g.keepArea || !old.valid {
		generation++
	}
	if !g.keepArea {
		r.pageListBytes -= old.footprint()
	}
	old.valid = false
	old.pd.users--
	m.pd.users++
	m.key = r.keys.of(r.table.Replace(r.keys.number(old.key), m, generation))
	return abi.StatusOK
}

// end releases what the registration held, and returns its final status.
func (g *Registration) end(st abi.Status) abi.Status {
	if st != abi.StatusOK {
		g.regions.pageListBytes -= g.held
	}
	g.mr.pd.users--
	if g.replaces != nil {
		g.replaces.changing = false
	} else {
		g.regions.registering--
	}
	return st
}

// reregKnown holds what ReregMR can change.
const reregKnown = abi.ReregTranslation | abi.ReregPD | abi.ReregAccess

// StartReregMR begins to change a region, which stays as it is until the registration is done.
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
	if !g.keepArea {
		g.span = queues.Span{PageShift: c.PageShift, Offset: c.Offset, Length: c.Length}
		m.iova, m.length, m.skew = c.IOVA, c.Length, uint64(c.Offset)
	}
	switch {
	case old.windows > 0, old.changing:
		return nil, abi.StatusBusy
	case old.fast > 0: // work requests register that
		return nil, abi.StatusInvalidArgument
	case m.length > abi.MaxMRSize:
		return nil, abi.StatusTooLarge
	case c.Mask == 0 || c.Mask&^uint32(reregKnown) != 0, !g.keepArea && badTranslation(m.iova, &g.span),
		badAccess(m.access), m.access&abi.AccessZeroBased != 0 && m.iova != 0:
		return nil, abi.StatusInvalidArgument
	}
	if !g.keepArea {
		if err := g.list.Start(r.owner.mem, c.Pages, int(c.Levels), g.span); err != nil {
			return nil, r.owner.areaStatus(err)
		}
	}
	old.changing = true
	m.pd.users++
	return g, abi.StatusOK
}

// A region for fast registration gets its memory by a work request. It loses the memory by another
// work request of either side, or by DeregMR (InfiniBand §10.6.3.3):
//
//	AllocMR ─▶ free ──RegMR──▶ valid ──LocalInv, SendInv of the peer──▶ free ─▶ DeregMR
//
// Each registration has a new key, of which the program chooses the low byte.

// AllocMR makes a region without memory.
func (r *Regions) AllocMR(c *abi.AllocMR) (keys abi.RegMRResult, st abi.Status) {
	pd := r.pds.PD(c.PDN)
	switch {
	case !r.owner.Working():
		return keys, abi.StatusBadState
	case pd == nil:
		return keys, abi.StatusNotFound
	case c.MaxPages == 0:
		return keys, abi.StatusInvalidArgument
	case c.MaxPages > abi.MaxFastPages:
		return keys, abi.StatusTooLarge
	case r.full():
		return keys, abi.StatusNoResources
	}
	m := &MR{owner: r.owner, pd: pd, fast: int(c.MaxPages)}
	if !r.add(m) {
		return keys, abi.StatusNoResources
	}
	return abi.RegMRResult{LKey: m.key, RKey: m.key}, abi.StatusOK
}

// fastRegister gives memory to a free region, whose new key is key. Work that uses an earlier
// registration cannot reach the new memory.
func (r *Regions) fastRegister(pd *PD, key uint32, c *abi.FastReg) abi.WCStatus {
	old := r.table.At(r.keys.number(key))
	span := queues.Span{PageShift: c.PageShift, Offset: c.Offset, Length: c.Length}
	switch {
	case old == nil || old.fast == 0 || old.valid || old.pd != pd,
		badTranslation(c.IOVA, &span) || badAccess(c.Access),
		span.Pages() > old.fast,
		c.Access&abi.AccessZeroBased != 0 && c.IOVA != 0:
		return abi.WCMWBindErr
	}
	area, err := queues.ReadArea(r.owner.mem, c.Pages, 1, span)
	if err != nil || r.pageListBytes-old.footprint()+area.Footprint() > r.owner.limits.PageListBytes {
		return abi.WCMWBindErr
	}
	area.Head = queues.Data
	m := &MR{
		owner: r.owner, pd: pd, access: c.Access, iova: c.IOVA, length: c.Length, skew: uint64(c.Offset), area: area, valid: true, fast: old.fast,
	}
	r.pageListBytes += area.Footprint() - old.footprint()
	m.key = r.keys.of(r.table.Replace(r.keys.number(key), m, uint8(key)))
	return abi.WCSuccess
}
