package rdma

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// A memory window of type 2B is bound by a work request to a part of a region, for the peer of the
// queue pair that bound it alone, and made invalid by another, of either side (InfiniBand §10.6.7):
//
//	AllocMW ─▶ free ──BindMW──▶ bound ──LocalInv, SendInv of the peer, end of the QP──▶ free ─▶ DeallocMW
//
// Each binding brings a new key, of which the program chooses the low byte.

// AllocMW makes a memory window.
func (f *Function) AllocMW(c *abi.AllocMW) (rkey uint32, st abi.Status) {
	pd := f.pds.get(c.PDN)
	switch {
	case !f.working():
		return 0, abi.StatusBadState
	case pd == nil:
		return 0, abi.StatusNotFound
	case c.Type != abi.MWType2:
		return 0, abi.StatusUnsupported
	case f.mws >= f.limits.MWs:
		return 0, abi.StatusNoResources
	}
	m := &MR{fn: f, pd: pd, window: true}
	if !f.addMR(m) {
		return 0, abi.StatusNoResources
	}
	f.mws++
	return m.key, abi.StatusOK
}

// DeallocMW destroys a memory window, bound or not.
func (f *Function) DeallocMW(rkey uint32) abi.Status {
	m := f.mrs.at(keyNumber(rkey))
	if m == nil || !m.window {
		return abi.StatusNotFound
	}
	m.deregister()
	return abi.StatusOK
}

// unbind ends the binding of a window, for work in flight too.
func (m *MR) unbind() {
	if m.valid {
		m.valid = false
		m.parent.windows--
		m.qp.windows--
	}
}

// unbindWindows ends the bindings to q.
func (q *QP) unbindWindows() {
	if q.windows == 0 {
		return
	}
	q.fn.mrs.each(func(m *MR) {
		if m.window && m.qp == q {
			m.unbind()
		}
	})
}

// local completes a request that concerns this side only from the rest of its entry.
func (w *work) local(rest []byte) abi.WCStatus {
	x := &w.wqe
	if x.Flags&abi.SendInline != 0 || x.NumSGE != 0 {
		return abi.WCLocQPOpErr
	}
	if x.Opcode == abi.OpBindMW {
		if len(rest) < abi.BindMWSize {
			return abi.WCLocQPOpErr
		}
		w.bind.Unmarshal(rest)
	}
	return abi.WCSuccess
}

// issueInside carries out a request that concerns this side only. A key becomes invalid when
// nothing before the request can use it any more. It reports whether the next request may follow at
// once.
func (q *QP) issueInside(now falcon.Time, w *work) bool {
	r := &q.req
	if w.wqe.Opcode == abi.OpLocalInv {
		if r.head != r.next {
			return false // a completion wakes the QP
		}
		w.status = q.invalidate(w.wqe.Imm)
	} else {
		w.status = q.bind(w.wqe.RKey, &w.bind)
	}
	w.started, w.issued = true, true
	goOn := w.status == abi.WCSuccess || q.cie
	if goOn {
		r.next++
	}
	q.complete(now)
	return goOn
}

// bind binds the window whose new key is rkey.
func (q *QP) bind(rkey uint32, b *abi.BindMW) abi.WCStatus {
	f := q.fn
	w, m := f.mrs.at(keyNumber(rkey)), f.key(b.LKey)
	const rights = remoteRights | abi.AccessZeroBased
	const needLocal = abi.AccessRemoteWrite | abi.AccessRemoteAtomic
	switch {
	case w == nil || !w.window || w.valid || w.pd != q.pd,
		m == nil || m.window || !m.gives(q.pd, b.Addr, b.Length, abi.AccessMWBind),
		b.Length == 0 || b.Access&^rights != 0,
		b.Access&needLocal != 0 && m.access&abi.AccessLocalWrite == 0:
		return abi.WCMWBindErr
	}
	bound := &MR{
		fn: f, pd: q.pd, access: b.Access, iova: b.Addr, length: b.Length, skew: m.skew, area: m.area, valid: true,
		window: true, parent: m, qp: q, shift: b.Addr - m.iova,
	}
	if b.Access&abi.AccessZeroBased != 0 {
		bound.iova = 0
	}
	bound.key = numberKey(f.mrs.replace(keyNumber(rkey), bound, uint8(rkey)))
	m.windows++
	q.windows++
	return abi.WCSuccess
}

// invalidate makes a key of q's own side invalid: a window bound to q, or a region, which is
// registered again before it is of use.
func (q *QP) invalidate(key uint32) abi.WCStatus {
	m := q.fn.key(key)
	if m == nil || !m.usable() || m.pd != q.pd || m.window && m.qp != q || m.windows > 0 {
		return abi.WCMWBindErr
	}
	if m.window {
		m.unbind()
	}
	m.valid = false
	return abi.WCSuccess
}

// invalidateRemote is what a SEND with invalidate does: the key means nothing to peers any more. A
// region goes on serving its own side.
func (m *MR) invalidateRemote() {
	if m.window {
		m.unbind()
		return
	}
	m.access &^= remoteRights
}

// reregKnown is what ReregMR can change.
const reregKnown = abi.ReregTranslation | abi.ReregPD | abi.ReregAccess

// StartReregMR begins to change a region, which keeps its meaning until the registration is read.
func (f *Function) StartReregMR(r *abi.ReregMR) (*Registration, abi.Status) {
	if !f.working() {
		return nil, abi.StatusBadState
	}
	old := f.key(r.LKey)
	if old == nil || old.window {
		return nil, abi.StatusNotFound
	}
	m := &MR{fn: f, pd: old.pd, access: old.access, iova: old.iova, length: old.length, skew: old.skew, area: old.area, valid: true}
	g := &Registration{mr: m, replaces: old, keepArea: r.Mask&abi.ReregTranslation == 0}
	if r.Mask&abi.ReregPD != 0 {
		if m.pd = f.pds.get(r.PDN); m.pd == nil {
			return nil, abi.StatusNotFound
		}
	}
	if r.Mask&abi.ReregAccess != 0 {
		m.access = r.Access
	}
	t := &abi.RegMR{IOVA: r.IOVA, Length: r.Length, Offset: r.Offset}
	if g.keepArea {
		t = &abi.RegMR{IOVA: m.iova, Length: m.length, Offset: uint32(m.skew)}
	}
	switch {
	case old.windows > 0:
		return nil, abi.StatusBusy
	case t.Length > abi.MaxMRSize:
		return nil, abi.StatusTooLarge
	case r.Mask == 0 || r.Mask&^uint32(reregKnown) != 0, badTranslation(t), badAccess(m.access), m.access&abi.AccessZeroBased != 0 && t.IOVA != 0:
		return nil, abi.StatusInvalidArgument
	}
	m.iova, m.length, m.skew = t.IOVA, t.Length, uint64(t.Offset)
	if !g.keepArea {
		if err := g.list.Start(f.mem, r.Pages, int(r.Levels), queues.PagesFor(r.Offset, r.Length)); err != nil {
			return nil, f.areaStatus(err, r.Pages)
		}
	}
	return g, abi.StatusOK
}

// replace puts the new region into the place of the old.
func (g *Registration) replace() (done bool, lkey, rkey uint32, st abi.Status) {
	old, m := g.replaces, g.mr
	f := m.fn
	if old.windows > 0 { // bound while the page list was read
		return true, 0, 0, abi.StatusBusy
	}
	f.pageListBytes += m.area.Footprint() - old.area.Footprint()
	old.valid = false
	old.pd.users--
	m.pd.users++
	m.key = numberKey(f.mrs.replace(keyNumber(old.key), m, uint8(old.key)+1))
	return true, m.key, m.key, abi.StatusOK
}
