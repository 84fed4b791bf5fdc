package rdma

import (
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// MR is a registered memory region. Its page list is copied at registration; its one key serves as lkey and rkey.
// Work in flight keeps a pointer to it and looks at valid before each access, so that deregistration takes effect
// at once, also for packets that falcon would send again.
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
}

// validAccess is every access right that can be asked for.
const validAccess = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic | abi.AccessRelaxedOrdering

// Registration is a memory region whose page list is being read. It belongs to the command that began it: nothing
// else of the function happens until it is done, or the function ends.
type Registration struct {
	mr   *MR
	list queues.ListReader
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

// StartRegMR checks a registration, whose page list is then read in pieces: it may have half a million entries.
func (f *Function) StartRegMR(r *abi.RegMR) (*Registration, abi.Status) {
	if !f.working() {
		return nil, abi.StatusBadState
	}
	pd := f.pds.get(r.PDN)
	const needLocal = abi.AccessRemoteWrite | abi.AccessRemoteAtomic
	switch {
	case pd == nil:
		return nil, abi.StatusNotFound
	case r.Length > abi.MaxMRSize:
		return nil, abi.StatusTooLarge
	case r.Length == 0, r.IOVA+r.Length < r.IOVA && r.IOVA+r.Length != 0,
		r.Offset >= abi.PageSize,
		r.Access&^validAccess != 0,
		r.Access&needLocal != 0 && r.Access&abi.AccessLocalWrite == 0:
		return nil, abi.StatusInvalidArgument
	case f.mrs.inUse >= f.mrs.limit:
		return nil, abi.StatusNoResources // before the page list is read
	}
	g := &Registration{mr: &MR{
		fn: f, pd: pd, access: r.Access, iova: r.IOVA, length: r.Length, skew: uint64(r.Offset), valid: true,
	}}
	if err := g.list.Start(f.mem, r.Pages, int(r.Levels), queues.PagesFor(r.Offset, r.Length)); err != nil {
		return nil, areaStatus(err)
	}
	return g, abi.StatusOK
}

// Read takes at most pages more entries of the page list. When it is done the region exists, or st says why not.
func (g *Registration) Read(pages int) (done bool, lkey, rkey uint32, st abi.Status) {
	m := g.mr
	done, err := g.list.Read(pages)
	if err == nil && done {
		m.area, err = queues.NewArea(m.fn.mem, g.list.List(), uint32(m.skew), m.length)
	}
	switch {
	case err != nil:
		return true, 0, 0, areaStatus(err)
	case !done:
		return false, 0, 0, abi.StatusOK
	case m.fn.pageListBytes+m.area.Footprint() > m.fn.limits.PageListBytes:
		return true, 0, 0, abi.StatusNoResources
	}
	m.fn.pageListBytes += m.area.Footprint()
	m.key, _ = m.fn.mrs.add(m)
	m.pd.users++
	return true, m.key, m.key, abi.StatusOK
}

// DeregMR ends a registration. Operations in flight that use the region fail from here on.
func (f *Function) DeregMR(lkey uint32) abi.Status {
	m := f.mrs.get(lkey)
	if m == nil {
		return abi.StatusNotFound
	}
	m.deregister()
	return abi.StatusOK
}

func (m *MR) deregister() {
	m.valid = false
	m.fn.pageListBytes -= m.area.Footprint()
	m.area = nil
	m.pd.users--
	m.fn.mrs.remove(m.key)
}

// covers reports whether n bytes at addr lie in the region.
func (m *MR) covers(addr, n uint64) bool {
	off := addr - m.iova
	return addr >= m.iova && off <= m.length && n <= m.length-off
}

// mr looks key up: nil unless the region is of protection domain pd, has every right in need and covers n bytes at addr.
func (f *Function) mr(pd *PD, key uint32, addr, n uint64, need uint32) *MR {
	m := f.mrs.get(key)
	if m == nil || m.pd != pd || m.access&need != need || !m.covers(addr, n) {
		return nil
	}
	return m
}

// read copies memory at addr, which the region covers, to dst.
func (m *MR) read(addr uint64, dst []byte) error {
	if !m.valid {
		return errGone
	}
	return m.area.ReadAt(addr-m.iova, dst)
}

// write copies src to memory at addr, which the region covers.
func (m *MR) write(addr uint64, src []byte) error {
	if !m.valid {
		return errGone
	}
	return m.area.WriteAt(addr-m.iova, src)
}

// aligned reports whether addr is a multiple of 8, in the guest's view and in memory.
func (m *MR) aligned(addr uint64) bool { return addr&7 == 0 && (m.skew+addr-m.iova)&7 == 0 }
