package guest

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// gidTable is what a driver calls its addresses by, as InfiniBand's programs do: by an index. Entry
// 0 is the function's own address until the driver sets it. Others are announced to peers, which
// the NIC's core does: it says whether an address may be the function's.
//
//	AddGID, DelGID ─▶ change ─▶ Owner.Announce ─▶ the core ─▶ peers
//	completion     ◀─ the entry is set or emptied ◀─ its answer
//
// Each session's function has a table of its own, so that an answer that comes after a reset
// changes nothing.
type gidTable struct {
	entries  [abi.GIDEntries]abi.GIDEntry
	used     uint64              // bit by bit
	changing map[uint16][16]byte // entries whose commands have no answer yet: what they will have, if anything
	asked    bool                // the core may have announced something
}

// newGIDTable is the table of a function that was enabled.
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

// find returns the entry that has an address, or may soon have it.
func (t *gidTable) find(gid [16]byte) (index uint16, ok bool) {
	for i := range uint16(abi.GIDEntries) {
		if t.has(i) && t.entries[i].GID == gid || t.changing[i] == gid && t.busy(i) {
			return i, true
		}
	}
	return 0, false
}

// set makes an entry what it is to be; nil: empty.
func (t *gidTable) set(index uint16, e *abi.GIDEntry) {
	if e == nil {
		t.used &^= 1 << index
		return
	}
	t.used |= 1 << index
	t.entries[index] = *e
}

// linkLocal is the address that a machine gives itself by its MAC address (RFC 4291 §2.5.6).
func linkLocal(m [6]byte) [16]byte {
	return [16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}

// AddGID implements abi.QueryHandler.
func (c *commands) AddGID(e *abi.GIDEntry) abi.Status {
	t := c.f.gids
	at, taken := t.find(e.GID)
	switch {
	case e.Index >= abi.GIDEntries, e.GID == [16]byte{}:
		return abi.StatusInvalidArgument
	case e.Type != 0, e.VLAN != 0 && e.VLAN != abi.NoVLAN, netip.AddrFrom16(e.GID).Unmap().IsMulticast():
		return abi.StatusUnsupported
	case t.busy(e.Index):
		return abi.StatusBusy
	case taken && at != e.Index:
		return abi.StatusAddressInUse
	case e.GID != c.f.Registers().gid() && e.GID != linkLocal(c.f.MAC) && !c.f.Trust:
		return abi.StatusDenied
	}
	is := *e
	return c.change(e.Index, &is)
}

// DelGID implements abi.QueryHandler.
func (c *commands) DelGID(index uint16) abi.Status {
	switch t := c.f.gids; {
	case !t.has(index):
		return abi.StatusNotFound
	case t.busy(index):
		return abi.StatusBusy
	}
	return c.change(index, nil)
}

// change sets an entry of the table, or empties it (nil), when the core has said that it may.
func (c *commands) change(index uint16, e *abi.GIDEntry) abi.Status {
	t, to := c.f.gids, c.Function
	set := func() {
		if t.set(index, e); e != nil {
			to.SetGID(index, e.GID)
		} else {
			to.ClearGID(index)
		}
	}
	var add, drop [16]byte // the function's own address is announced anyhow
	own := c.f.Registers().gid()
	var will [16]byte
	if e != nil {
		will = e.GID
	}
	if will != own {
		add = will
	}
	if t.has(index) && t.entries[index].GID != own {
		drop = t.entries[index].GID
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
