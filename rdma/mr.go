package rdma

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// MR is a registered memory region, or a memory window on one. Its page list is copied at
// registration; its one key serves as lkey and rkey. Work in flight keeps a pointer to it and looks
// at valid before each access, so that deregistration takes effect at once, also for packets that
// falcon would send again. What changes its meaning, as registering it again or binding a window,
// makes a new MR in its place.
type MR struct {
	fn     *Function
	key    uint32
	pd     *PD
	access uint32 // abi.Access bits
	iova   uint64
	length uint64
	skew   uint64 // offset of the first byte in its page
	area   *queues.Area
	valid  bool

	windows int // bound to it
	window  bool
	parent  *MR    // region of a bound window
	qp      *QP    // of a bound window: the only one whose peer may use it
	shift   uint64 // of the window's first byte in the region
}

// validAccess is every access right that can be asked for.
const validAccess = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic |
	abi.AccessMWBind | abi.AccessZeroBased | abi.AccessRelaxedOrdering

// Registration is a memory region whose page list is being read. It belongs to the command that
// began it: nothing else of the function happens until it is done, or the function ends.
type Registration struct {
	mr       *MR
	list     queues.ListReader
	replaces *MR // the region that is registered again
	keepArea bool
}

// RegMR registers memory and returns its keys.
func (f *Function) RegMR(r *abi.RegMR) (lkey, rkey uint32, st abi.Status) {
	g, st := f.StartRegMR(r)
	if st != abi.StatusOK {
		return 0, 0, st
	}
	_, lkey, rkey, st = g.Read(queues.MaxPages)
	return lkey, rkey, st
}

// StartRegMR checks a registration, whose page list is then read in pieces: it may have half a
// million entries.
func (f *Function) StartRegMR(r *abi.RegMR) (*Registration, abi.Status) {
	if !f.working() {
		return nil, abi.StatusBadState
	}
	pd := f.pds.get(r.PDN)
	switch {
	case pd == nil:
		return nil, abi.StatusNotFound
	case r.Length > abi.MaxMRSize:
		return nil, abi.StatusTooLarge
	case badTranslation(r), badAccess(r.Access), r.Access&abi.AccessZeroBased != 0 && r.IOVA != 0:
		return nil, abi.StatusInvalidArgument
	case f.mrs.inUse-f.mws >= f.limits.MRs:
		return nil, abi.StatusNoResources // before the page list is read
	}
	g := &Registration{mr: &MR{
		fn: f, pd: pd, access: r.Access, iova: r.IOVA, length: r.Length, skew: uint64(r.Offset), valid: true,
	}}
	if err := g.list.Start(f.mem, r.Pages, int(r.Levels), queues.PagesFor(r.Offset, r.Length)); err != nil {
		return nil, f.areaStatus(err, r.Pages)
	}
	return g, abi.StatusOK
}

// badTranslation reports whether addresses of a registration make no sense.
func badTranslation(r *abi.RegMR) bool {
	return r.Length == 0 || r.IOVA+r.Length < r.IOVA && r.IOVA+r.Length != 0 || r.Offset >= abi.PageSize
}

// badAccess reports whether rights are unknown, or let peers do what the device itself may not.
func badAccess(access uint32) bool {
	const needLocal = abi.AccessRemoteWrite | abi.AccessRemoteAtomic
	return access&^validAccess != 0 || access&needLocal != 0 && access&abi.AccessLocalWrite == 0
}

// Read takes at most pages more entries of the page list. When it is done the region exists, or st
// says why not.
func (g *Registration) Read(pages int) (done bool, lkey, rkey uint32, st abi.Status) {
	m := g.mr
	if g.keepArea {
		return g.replace()
	}
	done, err := g.list.Read(pages)
	if err == nil && done {
		m.area, err = queues.NewArea(m.fn.mem, g.list.List(), uint32(m.skew), m.length)
	}
	switch {
	case err != nil:
		return true, 0, 0, m.fn.areaStatus(err, 0)
	case !done:
		return false, 0, 0, abi.StatusOK
	case m.fn.pageListBytes+m.area.Footprint() > m.fn.limits.PageListBytes:
		return true, 0, 0, abi.StatusNoResources
	}
	if g.replaces != nil {
		return g.replace()
	}
	if !m.fn.addMR(m) {
		return true, 0, 0, abi.StatusNoResources // the quota was lowered meanwhile
	}
	m.fn.pageListBytes += m.area.Footprint()
	return true, m.key, m.key, abi.StatusOK
}

// DeregMR ends a registration. Operations in flight that use the region fail from here on.
func (f *Function) DeregMR(lkey uint32) abi.Status {
	m := f.key(lkey)
	switch {
	case m == nil || m.window:
		return abi.StatusNotFound
	case m.windows > 0:
		return abi.StatusBusy
	}
	m.deregister()
	return abi.StatusOK
}

// deregister forgets a region or a window.
func (m *MR) deregister() {
	if m.window {
		m.unbind()
		m.fn.mws--
	} else {
		m.fn.pageListBytes -= m.area.Footprint()
	}
	m.valid, m.area = false, nil
	m.pd.users--
	m.fn.mrs.remove(keyNumber(m.key))
}

// Keys are the numbers of the table with the generation in the low byte, where programs expect the
// part of a window's key that they choose.
func numberKey(number uint32) uint32 { return bits.RotateLeft32(number, 8) }
func keyNumber(key uint32) uint32    { return bits.RotateLeft32(key, -8) }

// key returns the region or window with that key.
func (f *Function) key(key uint32) *MR { return f.mrs.get(keyNumber(key)) }

// addMR gives m its key, if there is room.
func (f *Function) addMR(m *MR) bool {
	n, ok := f.mrs.add(m)
	if ok {
		m.key = numberKey(n)
		m.pd.users++
	}
	return ok
}

// covers reports whether n bytes at addr lie in the region.
func (m *MR) covers(addr, n uint64) bool {
	off := addr - m.iova
	return addr >= m.iova && off <= m.length && n <= m.length-off
}

// mr looks a local key up: nil unless the region is of protection domain pd, has every right in
// need and covers n bytes at addr.
func (f *Function) mr(pd *PD, key uint32, addr, n uint64, need uint32) *MR {
	m := f.key(key)
	if m == nil || m.window || !m.gives(pd, addr, n, need) {
		return nil
	}
	return m
}

// gives reports whether the region or window is there for pd, has every right in need and covers n
// bytes at addr.
func (m *MR) gives(pd *PD, addr, n uint64, need uint32) bool {
	return m.usable() && m.pd == pd && m.access&need == need && m.covers(addr, n)
}

// usable reports whether there is memory behind m.
func (m *MR) usable() bool { return m.valid && (!m.window || m.parent.valid) }

// offset is where addr, which m covers, lies in its area.
func (m *MR) offset(addr uint64) uint64 { return addr - m.iova + m.shift }

// read copies memory at addr, which the region covers, to dst.
func (m *MR) read(addr uint64, dst []byte) error {
	if !m.usable() {
		return errGone
	}
	if m.fn.faults != nil && m.fn.faults.Access() {
		return errInjected
	}
	return m.area.ReadAt(m.offset(addr), dst)
}

// write copies src to memory at addr, which the region covers.
func (m *MR) write(addr uint64, src []byte) error {
	if !m.usable() {
		return errGone
	}
	if m.fn.faults != nil && m.fn.faults.Access() {
		return errInjected
	}
	return m.area.WriteAt(m.offset(addr), src)
}

// aligned reports whether addr is a multiple of 8, in the guest's view and in memory.
func (m *MR) aligned(addr uint64) bool { return addr&7 == 0 && (m.skew+m.offset(addr))&7 == 0 }
