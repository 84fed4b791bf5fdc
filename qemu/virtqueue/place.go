package virtqueue

import "encoding/binary"

// Flags of a packed ring's descriptors that say who owns them, Virtio §2.8.1.
const (
	flagAvail = 1 << 7
	flagUsed  = 1 << 15
)

// place is the index of a descriptor with the wrap counter at that position.
type place struct {
	index uint16
	wrap  bool
}

func (p place) forward(n, size uint16) place {
	i := int(p.index) + int(n)
	if i >= int(size) {
		return place{uint16(i - int(size)), !p.wrap}
	}
	return place{uint16(i), p.wrap}
}

// word returns the place in the format of the protocol.
func (p place) word() uint16 {
	if p.wrap {
		return p.index | 1<<15
	}
	return p.index
}

func placeOf(w uint16) place { return place{w &^ (1 << 15), w>>15 != 0} }

// available reports whether flags mark the descriptor at p as available.
func (p place) available(flags uint16) bool {
	return flags&flagAvail != 0 == p.wrap && flags&flagUsed != 0 != p.wrap
}

// entry is a used descriptor of a packed ring.
type entry struct {
	index, id, flags uint16
	len              uint32
}

// write writes e to its place in the ring, the flags last.
func (e *entry) write(desc []byte) {
	d := desc[int(e.index)*descLen:]
	binary.LittleEndian.PutUint32(d[8:], e.len)
	store32(d[12:], uint32(e.flags)<<16|uint32(e.id))
}
