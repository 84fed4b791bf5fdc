package verbs

import (
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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

// supply gives memory to a free region, whose new key is key. Work that uses an earlier
// registration cannot reach the new memory.
func (r *Regions) supply(pd *PD, key uint32, c *abi.FastReg) abi.WCStatus {
	old := r.table.At(keyNumber(key))
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
	m := &MR{
		owner: r.owner, pd: pd, access: c.Access, iova: c.IOVA, length: c.Length, skew: uint64(c.Offset), area: area, valid: true, fast: old.fast,
	}
	r.pageListBytes += area.Footprint() - old.footprint()
	m.key = numberKey(r.table.Replace(keyNumber(key), m, uint8(key)))
	return abi.WCSuccess
}
