package virtqueue

import "encoding/binary"

// Ledger records the position of a packed ring, in memory that outlives the ring's process. The
// ring also records the used descriptors that it is about to write, so that Resume can write them
// again.
//
//	0      2     4       6     8
//	┌──────┬─────┬───────┬─────┬───────────────────────────────┐
//	│ from │ to  │ count │  0  │ count × {index, id, flags, 0, │
//	└──────┴─────┴───────┴─────┴──────────── length: 12 bytes} ┘
//
// With count 0 the ring's position is from. The ledger has room for all descriptors that the
// largest ring can complete at once. A nil Ledger records nothing.
type Ledger []byte

const (
	// LedgerSize is the size of a Ledger in bytes, rounded up to whole pages. A smaller ring never
	// touches the pages that it does not need.
	LedgerSize = (8 + MaxSize*entryLen + 4095) / 4096 * 4096
	entryLen   = 12
)

// settle records the ring's position, and that no write is pending.
func (l Ledger) settle(at uint16) {
	if l != nil {
		store64(l, uint64(at))
	}
}

// begin records the used descriptors that are about to be written, and the position after them.
func (l Ledger) begin(list []entry, to uint16) {
	if l == nil {
		return
	}
	for i := range list {
		b, e := l[8+i*entryLen:], &list[i]
		binary.LittleEndian.PutUint16(b, e.index)
		binary.LittleEndian.PutUint16(b[2:], e.id)
		binary.LittleEndian.PutUint16(b[4:], e.flags)
		binary.LittleEndian.PutUint32(b[8:], e.len)
	}
	store64(l, uint64(to)<<16|uint64(len(list))<<32)
}

// Resume writes the used descriptors that the previous device was about to write, and returns the
// position where the next device continues (Config.Base). No device may be running the ring. It
// returns false if the ring is not in the guest's memory or the ledger is invalid.
func (l Ledger) Resume(mem *RAM, desc uint64, size uint16) (base uint32, ok bool) {
	ring, err := mem.slice(desc, descLen*uint64(size))
	if err != nil || len(l) < LedgerSize || !aligned(ring, 16) {
		return 0, false
	}
	at, count := l.stands()
	if count > 0 {
		if err := Guard(func() { ok = l.redo(ring, size, count) }); err != nil || !ok {
			return 0, false
		}
		l.settle(at)
	}
	return uint32(at) * 0x10001, placeOf(at).index < size
}

// redo writes the pending descriptors again, unless the first one, which is written last, is
// already in the ring: then the driver may have consumed them all and reused their places.
func (l Ledger) redo(ring []byte, size uint16, count int) bool {
	if count > int(size) {
		return false
	}
	for i := range count {
		if l.entry(i).index >= size {
			return false
		}
	}
	first := l.entry(0)
	lap := place{first.index, first.flags&flagUsed != 0}
	if !lap.available(uint16(load32(ring[int(first.index)*descLen+12:]) >> 16)) {
		return true
	}
	for i := count - 1; i >= 0; i-- {
		e := l.entry(i)
		e.write(ring)
	}
	return true
}

func (l Ledger) entry(i int) entry {
	b := l[8+i*entryLen:]
	return entry{index: binary.LittleEndian.Uint16(b), id: binary.LittleEndian.Uint16(b[2:]), flags: binary.LittleEndian.Uint16(b[4:]), len: binary.LittleEndian.Uint32(b[8:])}
}

// stands returns the ring's position after the pending descriptors are written, and their number.
func (l Ledger) stands() (at uint16, count int) {
	w := load64(l)
	if count = int(uint16(w >> 32)); count > 0 {
		return uint16(w >> 16), count
	}
	return uint16(w), 0
}

// Base returns the position of a ring that no device runs.
func (l Ledger) Base() uint32 {
	at, _ := l.stands()
	return uint32(at) * 0x10001
}

// Begin records that a ring starts at base. If Base returned the same position, the ring continues:
// the pending descriptors stay recorded, and the next device writes them.
func (l Ledger) Begin(base uint32) {
	if l.Base() != base {
		l.settle(uint16(base))
	}
}
