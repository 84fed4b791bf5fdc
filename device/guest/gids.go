package guest

import (
	"net/netip"
	"slices"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// gidTable maps indices to the function's addresses, which InfiniBand programs name by index.
// Entry 0 is the function's own address until the driver changes it. Other addresses are announced
// to peers by the NIC's core, which decides whether the function may have an address.
//
//	AddGID, DelGID ─▶ change ─▶ Owner.Announce ─▶ the core ─▶ peers
//	completion     ◀─ the entry is set or emptied ◀─ its answer
//
// Each session has a new table, so an answer that comes after a reset changes nothing.
type gidTable struct {
	entries  [abi.GIDEntries]abi.GIDEntry
	used     uint64              // one bit per entry
	changing map[uint16][16]byte // entries with a command that has no answer yet, and the address each will have; zero: none
	asked    bool                // the core may have announced an address
}

// newGIDTable returns the table of a function that was enabled.
func newGIDTable(own [16]byte, mac [6]byte) *gidTable {
	t := &gidTable{used: 1, changing: map[uint16][16]byte{}}
	t.entries[0] = abi.GIDEntry{GID: own, MAC: mac}
	return t
}

func (t *gidTable) has(index uint16) bool { return index < abi.GIDEntries && t.used>>index&1 != 0 }

// busy reports whether a command for the entry has no answer yet.
func (t *gidTable) busy(index uint16) bool {
	_, is := t.changing[index]
	return is
}

// gid returns the address of an entry; zero: it is empty.
func (t *gidTable) gid(index uint16) (gid [16]byte) {
	if t.has(index) {
		gid = t.entries[index].GID
	}
	return gid
}

// elsewhere reports whether another entry has the same address. An interface and one above it
// (macvlan, ipvlan) may share an address, and programs may name either.
func (t *gidTable) elsewhere(index uint16, gid [16]byte) bool {
	for i := range uint16(abi.GIDEntries) {
		if i != index && t.has(i) && t.entries[i].GID == gid {
			return true
		}
	}
	return false
}

// unsettled reports whether a command without an answer adds an address to an entry or removes it
// from one.
func (t *gidTable) unsettled(gid [16]byte) bool {
	for i, will := range t.changing {
		if gid != [16]byte{} && (will == gid || t.gid(i) == gid) {
			return true
		}
	}
	return false
}

// set sets an entry; nil empties it.
func (t *gidTable) set(index uint16, e *abi.GIDEntry) {
	if e == nil {
		t.used &^= 1 << index
		return
	}
	t.used |= 1 << index
	t.entries[index] = *e
}

// mayHave reports whether the function may have an address: the configuration gives it, or it is
// the link-local address of the function's MAC, or the function is trusted.
func (f *Device) mayHave(gid [16]byte) bool {
	return f.Trust || gid == pfvf.LinkLocal(f.MAC) || slices.Contains(f.is.Addresses, netip.AddrFrom16(gid).Unmap())
}

// AddGID implements abi.QueryHandler.
func (c *commands) AddGID(e *abi.GIDEntry) abi.Status {
	switch {
	case e.Index >= abi.GIDEntries, e.GID == [16]byte{}:
		return abi.StatusInvalidArgument
	case e.Type != 0, e.VLAN != 0 && e.VLAN != abi.NoVLAN, netip.AddrFrom16(e.GID).Unmap().IsMulticast():
		return abi.StatusUnsupported
	case !c.f.mayHave(e.GID):
		return abi.StatusDenied
	}
	is := *e
	return c.change(e.Index, &is)
}

// DelGID implements abi.QueryHandler.
func (c *commands) DelGID(index uint16) abi.Status {
	if !c.f.gids.has(index) {
		return abi.StatusNotFound
	}
	return c.change(index, nil)
}

// change sets an entry of the table, or empties it (nil), after the core has agreed.
func (c *commands) change(index uint16, e *abi.GIDEntry) abi.Status {
	t, to := c.f.gids, c.Function
	set := func() {
		if t.set(index, e); e != nil {
			to.SetGID(index, e.GID)
		} else {
			to.ClearGID(index)
		}
	}
	var will [16]byte
	if e != nil {
		will = e.GID
	}
	was := t.gid(index)
	if t.busy(index) || t.unsettled(will) || t.unsettled(was) {
		return abi.StatusBusy
	}
	var add, drop [16]byte
	own := c.f.Registers().gid()
	tell := func(gid [16]byte) bool { return gid != own && !t.elsewhere(index, gid) } // whether peers are told of this address: not of the function's own, which they know, nor of one that another entry has
	if tell(will) {
		add = will
	}
	if tell(was) {
		drop = was
	}
	if add == drop {
		set()
		return abi.StatusOK
	}
	t.changing[index], t.asked = will, true
	ticket := c.later()
	c.f.owner.Announce(add, drop, func(st abi.Status) {
		if delete(t.changing, index); st == abi.StatusOK {
			set()
		}
		ticket.Complete(st, nil)
	})
	return abi.StatusPending
}

// QueryGID implements abi.QueryHandler.
func (c *commands) QueryGID(index uint16) (abi.GIDEntry, abi.Status) {
	t := c.f.gids
	if !t.has(index) {
		return abi.GIDEntry{}, abi.StatusNotFound
	}
	e := t.entries[index]
	e.Index = index
	return e, abi.StatusOK
}
