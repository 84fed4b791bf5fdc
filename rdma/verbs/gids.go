package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// gids are the addresses that the driver may send from, by the indexes of its GID table.
type gids struct {
	used uint64 // which entries there are, bit by bit
	at   [abi.GIDEntries][16]byte
}

// SetGID says what address an entry of the driver's GID table has.
func (o *Owner) SetGID(index uint16, gid [16]byte) {
	o.gids.used |= 1 << index
	o.gids.at[index] = gid
}

// ClearGID says that an entry is empty. What was made with it keeps its address.
func (o *Owner) ClearGID(index uint16) { o.gids.used &^= 1 << index }

// GID returns the address that an entry of the driver's GID table has. No index past the table has
// one.
func (o *Owner) GID(index uint8) (gid [16]byte, ok bool) {
	if o.gids.used>>index&1 == 0 {
		return gid, false
	}
	return o.gids.at[index], true
}

// joins reports whether packets can have both addresses: those of one version of IP. A source that
// nobody has named fits every destination.
func joins(src, dst [16]byte) bool { return src == [16]byte{} || IsIPv4(src) == IsIPv4(dst) }
