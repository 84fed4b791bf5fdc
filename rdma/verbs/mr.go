package verbs

import (
	"encoding/binary"
	"errors"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rdmap"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// MR is a registered memory region, or a memory window bound to one. Its page list is copied at
// registration. Its one key is both the lkey and the rkey.
//
// Work in flight keeps a pointer to the MR until what it sent is acknowledged, and checks valid
// before each access. So deregistration takes effect at once, also for packets that would be sent
// again. Registering again or binding a window does not change an MR: it puts a new one in its
// place.
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

	changing bool // a ReregMR of it is in progress

	fast    int // of AllocMR: maximum of pages; 0: of RegMR
	windows int // number of windows bound to it
	window  bool
	parent  *MR           // region of a bound window
	bound   *Bindings     // of a bound window of type 2: only the peer of this queue pair may use it
	beside  list.Node[MR] // its node in bound
	type1   bool          // a window for the peers of all queue pairs of its protection domain
	shift   uint64        // of the window's first byte in the region
}

// validAccess holds every access right that can be requested.
const validAccess = abi.AccessLocalWrite | RemoteRights | abi.AccessMWBind | abi.AccessZeroBased | abi.AccessRelaxedOrdering

// RemoteRights holds the rights that peers can have.
const RemoteRights = abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic

// footprint returns the host memory that the page list takes.
func (m *MR) footprint() int {
	if m.area == nil {
		return 0
	}
	return m.area.Footprint()
}

// Key returns the key, which is both lkey and rkey.
func (m *MR) Key() uint32 { return m.key }

// covers reports whether n bytes at addr lie in the region.
func (m *MR) covers(addr, n uint64) bool {
	off := addr - m.iova
	return addr >= m.iova && off <= m.length && n <= m.length-off
}

// allows reports whether the region or window is usable, belongs to pd, has every right in need and
// covers n bytes at addr.
func (m *MR) allows(pd *PD, addr, n uint64, need uint32) bool {
	return m.usable() && m.pd == pd && m.access&need == need && m.covers(addr, n)
}

// usable reports whether there is memory behind m.
func (m *MR) usable() bool { return m.valid && (!m.window || m.parent.valid) }

// offset returns the offset in the area of addr, which must be inside m.
func (m *MR) offset(addr uint64) uint64 { return addr - m.iova + m.shift }

// lost returns why memory of the region cannot be accessed now, nil if it can.
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

// Write copies src to memory at addr, which the region covers. An aligned word of 8 bytes is
// written by one store.
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

// unbind ends the binding of a window. Work in flight can no longer use it.
func (m *MR) unbind() {
	if m.valid {
		m.valid = false
		m.parent.windows--
		m.beside.Remove()
	}
}

// invalidateRemote carries out a SEND with invalidate: peers can no longer use the key. A region
// from RegMR remains usable for its own side.
func (m *MR) invalidateRemote() {
	if m.window {
		m.unbind()
		return
	}
	if m.fast > 0 {
		m.valid = false // until the next RegMR request
		return
	}
	m.access &^= RemoteRights
}

// Regions holds the memory regions and windows of a function, which share one space of keys.
type Regions struct {
	owner         *Owner
	pds           *PDs
	table         Table[MR]
	keys          keys
	windows       int // of table
	registering   int // regions whose RegMR is in progress
	pageListBytes int // of the regions' page lists, at most Limits.PageListBytes
	direct        *MR // all of the function's memory, for privileged queues
}

// PageListBytes returns the host memory that the page lists of the regions take.
func (r *Regions) PageListBytes() int { return r.pageListBytes }

// count returns the number of regions without the windows.
func (r *Regions) count() int { return r.table.InUse() - r.windows }

// full reports whether there is no room for another region. Regions whose RegMR is in progress
// count.
func (r *Regions) full() bool { return r.count()+r.registering >= r.owner.limits.Objects[abi.ObjectMR] }

// setLimit sets the limit on regions. Regions and windows do not take each other's room.
func (r *Regions) setLimit(most int) {
	r.table.SetLimit(max(most, r.count()) + max(r.owner.limits.Objects[abi.ObjectMW], r.windows))
}

// named returns the region or window with that key, nil if there is none.
func (r *Regions) named(key uint32) *MR { return r.table.Get(r.keys.number(key)) }

// add assigns a key to m, if there is room.
func (r *Regions) add(m *MR) bool {
	n, ok := r.table.Add(m)
	if ok {
		m.key = r.keys.of(n)
		m.pd.users++
	}
	return ok
}

// DeregMR ends a registration. Operations in flight that use the region fail from now on.
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

// remove deletes a region or a window.
func (r *Regions) remove(m *MR) {
	if m.window {
		m.unbind()
		r.windows--
	} else {
		r.pageListBytes -= m.footprint()
	}
	m.valid, m.area = false, nil
	m.pd.users--
	r.table.Remove(r.keys.number(m.key))
}

func (r *Regions) closeAll(vtime.Time) {
	r.table.Each(func(m *MR) {
		if !m.window {
			r.remove(m)
		}
	})
}

// local returns the region with a local key. It returns nil unless the region belongs to protection
// domain pd, has every right in need and covers n bytes at addr.
func (r *Regions) local(pd *PD, key uint32, addr, n uint64, need uint32) *MR {
	m := r.named(key)
	if m == nil || m.window || !m.allows(pd, addr, n, need) {
		return nil
	}
	return m
}

// memory does what local does, and accepts the reserved key, which names device addresses, in a
// privileged queue.
func (r *Regions) memory(pd *PD, privileged bool, key uint32, addr, n uint64, need uint32) *MR {
	if key == abi.ReservedLKey && privileged {
		if addr+n < addr || addr+n > 1<<62 {
			return nil
		}
		return r.direct
	}
	return r.local(pd, key, addr, n, need)
}

// Remote returns the region or window with that key for the peer of a queue pair. It returns nil
// unless the region or window belongs to protection domain pd, gives the right and covers n bytes
// at va. A window of type 2 must be bound to the queue pair.
func (r *Regions) Remote(pd *PD, b *Bindings, rkey uint32, va, n uint64, right uint32) *MR {
	m := r.named(rkey)
	if m == nil || m.window && !m.type1 && m.bound != b || !m.allows(pd, va, n, right) {
		return nil
	}
	return m
}

// wrongRemote returns why Remote returned nothing.
func (r *Regions) wrongRemote(pd *PD, b *Bindings, rkey uint32, right uint32) transport.Refusal {
	switch m := r.named(rkey); {
	case m == nil || !m.usable():
		return transport.UnknownKey
	case m.pd != pd || m.window && !m.type1 && m.bound != b:
		return transport.ForeignKey
	case m.access&right != right:
		return transport.Access
	}
	return transport.OutOfBounds
}

// invalidatable returns the region or window with that key if the peer of a queue pair may
// invalidate it, else nil. It must belong to protection domain pd and give peers some right; a
// window must be bound to the queue pair.
func (r *Regions) invalidatable(pd *PD, b *Bindings, rkey uint32) *MR {
	m := r.named(rkey)
	if m == nil || !m.usable() || m.pd != pd || m.access&RemoteRights == 0 || m.window && m.bound != b {
		return nil
	}
	return m
}

// inDomain reports whether the key belongs to protection domain pd.
func (r *Regions) inDomain(pd *PD, key uint32) bool {
	m := r.named(key)
	return m != nil && m.pd == pd
}

// errContended means that a guest kept changing the word that a masked atomic works on.
var errContended = errors.New("others kept changing the word of the atomic")

// maskedAttempts limits how many races a masked atomic may lose. If other engines win, they make
// progress; a guest may do so without end. A processor that does nothing but add to the word wins
// up to 99 of 100 races, so the limit is far above that. It still ends within a few milliseconds
// what a guest does to itself.
const maskedAttempts = 1 << 14

// Atomic is an atomic operation on 8 bytes.
type Atomic struct {
	Op      abi.Opcode // abi.OpCmpSwap, OpFetchAdd or one of the masked ones
	Compare uint64
	SwapAdd uint64          // to swap in, or to add
	Masks   abi.AtomicMasks // of a masked operation
}

// Atomic carries out a at va, which must be aligned and inside the region, and returns the previous
// value. The operation is atomic to everything else that uses the word, including the guest.
func (m *MR) Atomic(va uint64, a *Atomic) (original uint64, err error) {
	if err := m.lost(); err != nil {
		return 0, err
	}
	switch at := m.offset(va); a.Op {
	case abi.OpCmpSwap:
		return m.area.CompareAndSwap64(at, a.Compare, a.SwapAdd)
	case abi.OpFetchAdd:
		return m.area.FetchAdd64(at, a.SwapAdd)
	default:
		return m.maskedAtomic(at, a)
	}
}

// maskedAtomic carries out a masked atomic at off of the area (RFC 7306 §5.1). Processors have no
// such instruction, so it computes the result and stores it by compare and swap.
func (m *MR) maskedAtomic(off uint64, a *Atomic) (original uint64, err error) {
	if original, err = m.area.Load64(off); err != nil {
		return 0, err
	}
	for range maskedAttempts {
		var result uint64
		if a.Op == abi.OpMaskedCmpSwap {
			result = rdmap.CmpSwap(original, a.Compare, a.Masks.Compare, a.SwapAdd, a.Masks.SwapAdd)
		} else {
			result = rdmap.FetchAdd(original, a.SwapAdd, a.Masks.SwapAdd)
		}
		prev, err := m.area.CompareAndSwap64(off, original, result)
		if err != nil || prev == original {
			return prev, err
		}
		original = prev
	}
	return 0, errContended
}
