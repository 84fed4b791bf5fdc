package virtqueue

import "encoding/binary"

// Ledger is where a packed ring notes, in memory that outlives its process, where it stands. What
// it is about to write is noted before, so that Resume can write it again.
//
//	0      2     4       6     8
//	┌──────┬─────┬───────┬─────┬───────────────────────────────┐
//	│ from │ to  │ count │  0  │ count × {index, id, flags, 0, │
//	└──────┴─────┴───────┴─────┴──────────── length: 12 bytes} ┘
//
// With count 0 the ring stands at from. It has room for all that the largest ring can complete at
// once. A nil Ledger notes nothing.
type Ledger []byte

const (
	// LedgerSize is that of a Ledger, bytes, rounded up to whole pages: those that a smaller ring
	// does not need are never touched.
	LedgerSize = (8 + MaxSize*entryLen + 4095) / 4096 * 4096
	entryLen   = 12
)

// settle says that the ring stands at a place, and that nothing is about to be written.
func (l Ledger) settle(at uint16) {
	if l != nil {
		store64(l, uint64(at))
	}
}

// begin notes what is about to be written, after which the ring stands at to.
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

// Resume returns where the next device of a packed ring goes on (Config.Base), and writes what the
// one before was about to. It is for a ring that nobody runs. False: the ring is not in the guest's
// memory, or the ledger is not one.
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

// redo writes what was begun, unless the first, which is written last, is there: then the driver
// may have taken all and used the places anew.
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

// stands returns where the ring stands when what is about to be written is, and how many entries
// those are.
func (l Ledger) stands() (at uint16, count int) {
	w := load64(l)
	if count = int(uint16(w >> 32)); count > 0 {
		return uint16(w >> 16), count
	}
	return uint16(w), 0
}

// Base is where a ring stands that nobody runs.
func (l Ledger) Base() uint32 {
	at, _ := l.stands()
	return uint32(at) * 0x10001
}

// Begin says that a ring begins at a base. Where that is what Base said, the ring goes on, and what
// is about to be written is written by the next device.
func (l Ledger) Begin(base uint32) {
	if l.Base() != base {
		l.settle(uint16(base))
	}
}
