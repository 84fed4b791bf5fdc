package guest

import (
	"net/netip"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// gidTable is what a driver calls its addresses by, as InfiniBand's programs do: by an index. Entry 0
// is the function's own address until the driver sets it. Packets are sent from the function's own
// address whatever entry is named: others are names for the same function, or the driver's that is
// trusted.
type gidTable struct {
	entries [abi.GIDEntries]abi.GIDEntry
	used    uint64 // bit by bit
}

// begin is the table of a function that was enabled.
func (t *gidTable) begin(own [16]byte, mac [6]byte) {
	*t = gidTable{used: 1}
	t.entries[0] = abi.GIDEntry{GID: own, MAC: mac}
}

func (t *gidTable) has(index uint16) bool { return index < abi.GIDEntries && t.used>>index&1 != 0 }

// find returns the entry that has an address.
func (t *gidTable) find(gid [16]byte) (index uint16, ok bool) {
	for i := range t.entries {
		if t.has(uint16(i)) && t.entries[i].GID == gid {
			return uint16(i), true
		}
	}
	return 0, false
}

// linkLocal is the address that a machine gives itself by its MAC address (RFC 4291 §2.5.6).
func linkLocal(m [6]byte) [16]byte {
	return [16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}

// AddGID implements abi.QueryHandler.
func (c *commands) AddGID(e *abi.GIDEntry) abi.Status {
	t := &c.f.gids
	at, taken := t.find(e.GID)
	switch {
	case e.Index >= abi.GIDEntries, e.GID == [16]byte{}:
		return abi.StatusInvalidArgument
	case e.Type != 0, e.VLAN != 0 && e.VLAN != abi.NoVLAN, netip.AddrFrom16(e.GID).Unmap().IsMulticast():
		return abi.StatusUnsupported
	case taken && at != e.Index:
		return abi.StatusAddressInUse
	case e.GID != c.f.Registers().gid() && e.GID != linkLocal(c.f.MAC) && !c.f.Trust:
		return abi.StatusDenied
	}
	t.entries[e.Index] = *e
	t.used |= 1 << e.Index
	c.UseGIDs(t.used)
	return abi.StatusOK
}

// DelGID implements abi.QueryHandler.
func (c *commands) DelGID(index uint16) abi.Status {
	t := &c.f.gids
	if !t.has(index) {
		return abi.StatusNotFound
	}
	t.used &^= 1 << index
	c.UseGIDs(t.used)
	return abi.StatusOK
}

// QueryGID implements abi.QueryHandler.
func (c *commands) QueryGID(index uint16) (abi.GIDEntry, abi.Status) {
	t := &c.f.gids
	if !t.has(index) {
		return abi.GIDEntry{}, abi.StatusNotFound
	}
	e := t.entries[index]
	e.Index = index
	return e, abi.StatusOK
}
