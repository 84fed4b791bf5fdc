package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// gids holds the addresses that the driver may send from, indexed like its GID table.
type gids struct {
	used uint64 // bit set of the entries that are in use
	at   [abi.GIDEntries][16]byte
}

// SetGID sets the address of an entry of the driver's GID table.
func (o *Owner) SetGID(index uint16, gid [16]byte) {
	o.gids.used |= 1 << index
	o.gids.at[index] = gid
}

// ClearGID empties an entry. Objects made with it keep its address.
func (o *Owner) ClearGID(index uint16) { o.gids.used &^= 1 << index }

// GID returns the address of an entry of the driver's GID table; ok is false if the entry is empty
// or past the table.
func (o *Owner) GID(index uint8) (gid [16]byte, ok bool) {
	if o.gids.used>>index&1 == 0 {
		return gid, false
	}
	return o.gids.at[index], true
}

// joins reports whether one packet can have both addresses, which must be of one IP version. A
// source that was not set fits every destination.
func joins(src, dst [16]byte) bool { return src == [16]byte{} || IsIPv4(src) == IsIPv4(dst) }
