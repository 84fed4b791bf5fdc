package verbs

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// A work request binds a memory window of type 2B to a part of a region. Only the peer of the queue
// pair that bound the window may use it. A work request of either side makes it invalid again
// (InfiniBand §10.6.7):
//
//	AllocMW ─▶ free ──BindMW──▶ bound ──LocalInv, SendInv of the peer, end of the QP──▶ free ─▶ DeallocMW
//
// A window of type 1 (§10.6.7.2.1) may be bound by any queue pair of its protection domain, and the
// peers of all of them may use it:
//
//	AllocMW ─▶ free ──BindMW──▶ bound ──BindMW──▶ bound elsewhere ──BindMW of no bytes──▶ free ─▶ DeallocMW
//
// Nothing else ends its binding. Each binding has a new key, of which the program chooses the low
// byte.

// Bindings holds the windows bound to one queue pair. A pointer to it identifies the queue pair.
type Bindings struct{ windows list.List[MR] }

// windows presents the memory windows among the regions of a function as a kind of objects.
type windows struct{ of *Regions }

func (w windows) count() int   { return w.of.windows }
func (w windows) setLimit(int) { w.of.setLimit(w.of.owner.limits.Objects[abi.ObjectMR]) }

func (w windows) closeAll(vtime.Time) {
	w.of.table.Each(func(m *MR) {
		if m.window {
			w.of.remove(m)
		}
	})
}

// AllocMW makes a memory window.
func (r *Regions) AllocMW(c *abi.AllocMW) (rkey uint32, st abi.Status) {
	pd := r.pds.PD(c.PDN)
	switch {
	case !r.owner.Working():
		return 0, abi.StatusBadState
	case pd == nil:
		return 0, abi.StatusNotFound
	case c.Type != abi.MWType1 && c.Type != abi.MWType2:
		return 0, abi.StatusUnsupported
	case r.windows >= r.owner.limits.Objects[abi.ObjectMW]:
		return 0, abi.StatusNoResources
	}
	m := &MR{owner: r.owner, pd: pd, window: true, type1: c.Type == abi.MWType1}
	if !r.add(m) {
		return 0, abi.StatusNoResources
	}
	r.windows++
	return m.key, abi.StatusOK
}

// DeallocMW destroys a memory window, bound or not.
func (r *Regions) DeallocMW(rkey uint32) abi.Status {
	m := r.table.At(r.keys.number(rkey))
	if m == nil || !m.window {
		return abi.StatusNotFound
	}
	r.remove(m)
	return abi.StatusOK
}

// bind binds the window whose new key is rkey. A window of type 1 that is bound to no bytes becomes
// free.
func (r *Regions) bind(pd *PD, to *Bindings, rkey uint32, b *abi.BindMW) abi.WCStatus {
	w, m := r.table.At(r.keys.number(rkey)), r.named(b.LKey)
	rights := uint32(RemoteRights | abi.AccessZeroBased)
	switch {
	case w == nil || !w.window || w.pd != pd:
		return abi.WCMWBindErr
	case w.type1 && b.Length == 0:
		w.unbind()
		free := &MR{owner: r.owner, pd: pd, window: true, type1: true}
		free.key = r.keys.of(r.table.Replace(r.keys.number(rkey), free, uint8(rkey)))
		return abi.WCSuccess
	case w.type1:
		rights = RemoteRights
	}
	switch {
	case w.valid && !w.type1,
		m == nil || m.window || !m.allows(pd, b.Addr, b.Length, abi.AccessMWBind),
		b.Length == 0 || b.Access&^rights != 0,
		b.Access&needLocalWrite != 0 && m.access&abi.AccessLocalWrite == 0:
		return abi.WCMWBindErr
	}
	bound := &MR{
		owner: r.owner, pd: pd, access: b.Access, iova: b.Addr, length: b.Length, skew: m.skew, area: m.area, valid: true,
		window: true, type1: w.type1, parent: m, shift: b.Addr - m.iova,
	}
	if w.unbind(); !w.type1 {
		bound.bound = to
		to.windows.PushBack(&bound.beside, bound)
	}
	if b.Access&abi.AccessZeroBased != 0 {
		bound.iova = 0
	}
	bound.key = r.keys.of(r.table.Replace(r.keys.number(rkey), bound, uint8(rkey)))
	m.windows++
	return abi.WCSuccess
}

// unbindAll ends all bindings to the queue pair.
func (b *Bindings) unbindAll() {
	for m := b.windows.First(); m != nil; m = b.windows.First() {
		m.unbind()
	}
}

// invalidate makes a key invalid for a request of the queue pair's own side. The key is that of a
// window bound to the queue pair, or of a region, which must be registered again before it can be
// used.
func (r *Regions) invalidate(pd *PD, b *Bindings, key uint32) abi.WCStatus {
	m := r.named(key)
	if m == nil || !m.usable() || m.pd != pd || m.window && m.bound != b || m.windows > 0 {
		return abi.WCMWBindErr
	}
	if m.window {
		m.unbind()
	}
	m.valid = false
	return abi.WCSuccess
}
