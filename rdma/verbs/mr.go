package verbs

import (
	"encoding/binary"
	"math/bits"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// MR is a registered memory region, or a memory window on one. Its page list is copied at
// registration; its one key serves as lkey and rkey. Work in flight keeps a pointer to it, until
// what it sent is acknowledged, and looks at valid before each access, so that deregistration takes
// effect at once, also for packets that would be sent again. What changes its meaning, as
// registering it again or binding a window, makes a new MR in its place.
type MR struct {
	owner  *Owner
	key    uint32
	pd     *PD
	access uint32 // abi.Access bits
	iova   uint64
	length uint64
	skew   uint64 // offset of the first byte in its page
	area   *queues.Area
	valid  bool

	changing bool // ReregMR is not done with it

	fast    int // of AllocMR: most pages it may have; 0: of RegMR
	windows int // bound to it
	window  bool
	parent  *MR           // region of a bound window
	bound   *Bindings     // of a bound window of type 2: only the peer of their queue pair may use it
	beside  list.Node[MR] // its place among them
	type1   bool          // a window for the peers of all queue pairs of its protection domain
	shift   uint64        // of the window's first byte in the region
}

// validAccess is every access right that can be asked for.
const validAccess = abi.AccessLocalWrite | RemoteRights | abi.AccessMWBind | abi.AccessZeroBased | abi.AccessRelaxedOrdering

// RemoteRights are those that peers can have.
const RemoteRights = abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic

// footprint is the host memory that the page list takes.
func (m *MR) footprint() int {
	if m.area == nil {
		return 0
	}
	return m.area.Footprint()
}

// Key is the lkey and the rkey.
func (m *MR) Key() uint32 { return m.key }

// covers reports whether n bytes at addr lie in the region.
func (m *MR) covers(addr, n uint64) bool {
	off := addr - m.iova
	return addr >= m.iova && off <= m.length && n <= m.length-off
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

// lost says why memory of the region cannot be accessed now.
func (m *MR) lost() error {
	switch {
	case !m.usable():
		return errGone
	case m.owner.faults != nil && m.owner.faults.Access():
		return errInjected
	}
	return nil
}

// Read copies memory at addr, which the region covers, to dst.
func (m *MR) Read(addr uint64, dst []byte) error {
	if err := m.lost(); err != nil {
		return err
	}
	return m.area.ReadAt(m.offset(addr), dst)
}

// Write copies src to memory at addr, which the region covers; a word by one store.
func (m *MR) Write(addr uint64, src []byte) error {
	if err := m.lost(); err != nil {
		return err
	}
	if len(src) == 8 && m.aligned(addr) {
		return m.area.Store64Release(m.offset(addr), binary.LittleEndian.Uint64(src))
	}
	return m.area.WriteAt(m.offset(addr), src)
}

// aligned reports whether addr is a multiple of 8, in the guest's view and in memory.
func (m *MR) aligned(addr uint64) bool { return addr&7 == 0 && (m.skew+m.offset(addr))&7 == 0 }

// unbind ends the binding of a window, for work in flight too.
func (m *MR) unbind() {
	if m.valid {
		m.valid = false
		m.parent.windows--
		m.beside.Remove()
	}
}

// invalidateRemote is what a SEND with invalidate does: the key means nothing to peers any more. A
// region goes on serving its own side.
func (m *MR) invalidateRemote() {
	if m.window {
		m.unbind()
		return
	}
	if m.fast > 0 {
		m.valid = false // for the next RegMR request
		return
	}
	m.access &^= RemoteRights
}

// Regions are the memory regions and windows of a function, which share the keys.
type Regions struct {
	owner         *Owner
	pds           *PDs
	table         Table[MR]
	windows       int // of table
	registering   int // regions that RegMR is not done with
	pageListBytes int // of the regions' page lists, at most Limits.PageListBytes
	direct        *MR // all of the function's memory, for privileged queues
}

// PageListBytes is the host memory that the page lists of the regions take.
func (r *Regions) PageListBytes() int { return r.pageListBytes }

// count is how many regions there are, without the windows.
func (r *Regions) count() int { return r.table.InUse() - r.windows }

// full reports whether there is no room for another region, those that RegMR is not done with
// included.
func (r *Regions) full() bool { return r.count()+r.registering >= r.owner.limits.Objects[abi.ObjectMR] }

// setLimit takes the limit over. Neither kind takes the other's room.
func (r *Regions) setLimit(most int) {
	r.table.SetLimit(max(most, r.count()) + max(r.owner.limits.Objects[abi.ObjectMW], r.windows))
}

// Keys are the numbers of the table with the generation in the low byte, where programs expect the
// part of a window's key that they choose.
func numberKey(number uint32) uint32 { return bits.RotateLeft32(number, 8) }
func keyNumber(key uint32) uint32    { return bits.RotateLeft32(key, -8) }

// named returns the region or window with that key.
func (r *Regions) named(key uint32) *MR { return r.table.Get(keyNumber(key)) }

// add gives m its key, if there is room.
func (r *Regions) add(m *MR) bool {
	n, ok := r.table.Add(m)
	if ok {
		m.key = numberKey(n)
		m.pd.users++
	}
	return ok
}

// DeregMR ends a registration. Operations in flight that use the region fail from here on.
func (r *Regions) DeregMR(lkey uint32) abi.Status {
	m := r.named(lkey)
	switch {
	case m == nil || m.window:
		return abi.StatusNotFound
	case m.windows > 0, m.changing:
		return abi.StatusBusy
	}
	r.remove(m)
	return abi.StatusOK
}

// remove forgets a region or a window.
func (r *Regions) remove(m *MR) {
	if m.window {
		m.unbind()
		r.windows--
	} else {
		r.pageListBytes -= m.footprint()
	}
	m.valid, m.area = false, nil
	m.pd.users--
	r.table.Remove(keyNumber(m.key))
}

func (r *Regions) closeAll(vtime.Time) {
	r.table.Each(func(m *MR) {
		if !m.window {
			r.remove(m)
		}
	})
}

// local looks a local key up: nil unless the region is of protection domain pd, has every right in
// need and covers n bytes at addr.
func (r *Regions) local(pd *PD, key uint32, addr, n uint64, need uint32) *MR {
	m := r.named(key)
	if m == nil || m.window || !m.gives(pd, addr, n, need) {
		return nil
	}
	return m
}

// memory is local for a queue that may be privileged: then the reserved key names device addresses.
func (r *Regions) memory(pd *PD, privileged bool, key uint32, addr, n uint64, need uint32) *MR {
	if key == abi.ReservedLKey && privileged {
		if addr+n < addr || addr+n > 1<<62 {
			return nil
		}
		return r.direct
	}
	return r.local(pd, key, addr, n, need)
}

// Remote looks a key up for the peer of a queue pair: nil unless the region or window is of
// protection domain pd, gives the right and covers n bytes at va, and a window of type 2 is bound
// to the queue pair.
func (r *Regions) Remote(pd *PD, b *Bindings, rkey uint32, va, n uint64, right uint32) *MR {
	m := r.named(rkey)
	if m == nil || m.window && !m.type1 && m.bound != b || !m.gives(pd, va, n, right) {
		return nil
	}
	return m
}

// invalidatable returns the region or window whose key the peer of a queue pair may invalidate: one
// of protection domain pd that gives peers any right, a window bound to the queue pair.
func (r *Regions) invalidatable(pd *PD, b *Bindings, rkey uint32) *MR {
	m := r.named(rkey)
	if m == nil || !m.usable() || m.pd != pd || m.access&RemoteRights == 0 || m.window && m.bound != b {
		return nil
	}
	return m
}

// Names reports whether a key is of protection domain pd.
func (r *Regions) Names(pd *PD, key uint32) bool {
	m := r.named(key)
	return m != nil && m.pd == pd
}
