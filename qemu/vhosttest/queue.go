package vhosttest

import "encoding/binary"

// Buffer is a part of a chain. Its address is guest-physical.
type Buffer struct {
	Addr  uint64
	Len   uint32
	Write bool // for the device to write
}

// QueueConfig is the place of a Queue and the features negotiated for it.
type QueueConfig struct {
	At       uint64 // guest-physical address of QueueBytes
	Size     uint16
	Packed   bool
	Indirect bool // each chain of several buffers has an indirect table
	EventIdx bool
}

// QueueBytes returns the number of bytes of a queue with so many entries. Each part has its own
// pages.
func QueueBytes(size uint16) uint64 { return 3*page(16*uint64(size)+8) + uint64(size)*tableBytes }

const (
	tableEntries = 16 // largest number of buffers of an indirect chain
	tableBytes   = 16 * tableEntries
)

func page(n uint64) uint64 { return (n + 4095) &^ 4095 }

// Queue is the driver's side of a virtqueue, split or packed. It has one owner.
type Queue struct {
	QueueConfig
	Kicked int // number of kicks that the device asked for

	mem            []byte
	desc, drv, dev []byte
	tables         uint64
	free           []uint16 // ids
	chain          [][]uint16
	next, usedAt   uint16
	wrap, usedWrap bool
	room           int // descriptors of a packed ring
	shown          uint16
	added          bool     // chains were added since Show
	count          []uint16 // of a packed ring: descriptors of each chain, by its id
}

// NewQueue clears a queue's place in the guest's memory and returns the queue.
func NewQueue(mem []byte, c QueueConfig) *Queue {
	q := &Queue{QueueConfig: c, mem: mem, wrap: true, usedWrap: true, room: int(c.Size), chain: make([][]uint16, c.Size), count: make([]uint16, c.Size)}
	clear(mem[c.At : c.At+QueueBytes(c.Size)])
	part := page(16*uint64(c.Size) + 8)
	q.desc, q.drv, q.dev = mem[c.At:], mem[c.At+part:], mem[c.At+2*part:]
	q.tables = c.At + 3*part
	for i := range c.Size {
		q.free = append(q.free, c.Size-1-i)
	}
	return q
}

// Parts returns the guest-physical addresses of the descriptors, the driver's and the device's
// part.
func (q *Queue) Parts() (desc, driver, device uint64) {
	part := page(16*uint64(q.Size) + 8)
	return q.At, q.At + part, q.At + 2*part
}

// Base returns the position at which a device starts.
func (q *Queue) Base() uint32 {
	if q.Packed {
		return 0x80008000
	}
	return 0
}

func putDesc(b []byte, buf Buffer, x, y uint16) {
	binary.LittleEndian.PutUint64(b, buf.Addr)
	binary.LittleEndian.PutUint32(b[8:], buf.Len)
	binary.LittleEndian.PutUint16(b[12:], x)
	binary.LittleEndian.PutUint16(b[14:], y)
}

// Add adds a chain and returns its id, or false if there is no room. The device sees it after Show.
func (q *Queue) Add(bufs ...Buffer) (id uint16, ok bool) {
	need := len(bufs)
	indirect := q.Indirect && len(bufs) > 1
	if indirect {
		need = 1
	}
	if q.Packed {
		return q.addPacked(bufs, need, indirect)
	}
	return q.addSplit(bufs, need, indirect)
}

func (q *Queue) addSplit(bufs []Buffer, need int, indirect bool) (id uint16, ok bool) {
	if len(q.free) < need {
		return 0, false
	}
	ids := q.free[len(q.free)-need:]
	q.free = q.free[:len(q.free)-need]
	id = ids[0]
	q.chain[id] = append(q.chain[id][:0], ids...)
	if indirect {
		t := q.tables + uint64(id)*tableBytes
		for i, b := range bufs {
			flags, next := uint16(0), uint16(0)
			if i < len(bufs)-1 {
				flags, next = DescNext, uint16(i+1)
			}
			putDesc(q.mem[t+16*uint64(i):], b, flags|writeFlag(b), next)
		}
		putDesc(q.desc[16*int(id):], Buffer{Addr: t, Len: uint32(16 * len(bufs))}, DescIndirect, 0)
	} else {
		for i, b := range bufs {
			flags, next := writeFlag(b), uint16(0)
			if i < len(bufs)-1 {
				flags, next = flags|DescNext, ids[i+1]
			}
			putDesc(q.desc[16*int(ids[i]):], b, flags, next)
		}
	}
	binary.LittleEndian.PutUint16(q.drv[4+2*int(q.next%q.Size):], id)
	q.next++
	q.added = true
	return id, true
}

func writeFlag(b Buffer) uint16 {
	if b.Write {
		return DescWrite
	}
	return 0
}

const (
	flagAvail = 1 << 7
	flagUsed  = 1 << 15
)

func (q *Queue) addPacked(bufs []Buffer, need int, indirect bool) (id uint16, ok bool) {
	if len(q.free) == 0 || q.room < need {
		return 0, false
	}
	id = q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	q.room -= need
	q.added = true
	q.count[id] = uint16(need)
	if indirect {
		t := q.tables + uint64(id)*tableBytes
		for i, b := range bufs {
			putDesc(q.mem[t+16*uint64(i):], b, 0, writeFlag(b))
		}
		bufs = []Buffer{{Addr: t, Len: uint32(16 * len(bufs))}}
	}
	head, headFlags := q.next, uint16(0)
	for i, b := range bufs {
		flags := writeFlag(b)
		if indirect {
			flags = DescIndirect
		}
		if i < len(bufs)-1 {
			flags |= DescNext
		}
		if q.wrap {
			flags |= flagAvail
		} else {
			flags |= flagUsed
		}
		d := q.desc[16*int(q.next):]
		if i == 0 {
			headFlags = flags
			binary.LittleEndian.PutUint64(d, b.Addr)
			binary.LittleEndian.PutUint32(d[8:], b.Len)
		} else {
			putDesc(d, b, id, flags)
		}
		if q.next++; q.next == q.Size {
			q.next, q.wrap = 0, !q.wrap
		}
	}
	store32(q.desc[16*int(head)+12:], uint32(headFlags)<<16|uint32(id))
	return id, true
}

// Show makes added chains visible to the device. It reports whether the device wants a kick.
func (q *Queue) Show() (kick bool) {
	if !q.added {
		return false
	}
	q.added = false
	if q.Packed {
		old := q.shown
		q.shown = q.next
		w := load32(q.dev)
		switch flags := w >> 16 & 3; {
		case flags == 0:
			kick = true
		case flags == 2 && q.EventIdx:
			event := uint16(w) &^ (1 << 15)
			if q.next <= old {
				old -= q.Size
			}
			if (uint16(w)>>15 != 0) != q.wrap {
				event -= q.Size
			}
			kick = q.next-event-1 < q.next-old
		}
	} else {
		old := q.shown
		q.shown = q.next
		flags := load32(q.drv) & 0xffff
		store32(q.drv, uint32(q.next)<<16|flags)
		if q.EventIdx {
			event := uint16(load32(q.dev[4+8*int(q.Size):]))
			kick = q.next-event-1 < q.next-old
		} else {
			kick = load32(q.dev)&1 == 0
		}
	}
	if kick {
		q.Kicked++
	}
	return kick
}

// Used takes the next used chain and returns its id and the number of bytes written.
func (q *Queue) Used() (id uint16, n uint32, ok bool) {
	if q.Packed {
		d := q.desc[16*int(q.usedAt):]
		w := load32(d[12:])
		flags := uint16(w >> 16)
		if flags&flagAvail != 0 != q.usedWrap || flags&flagUsed != 0 != q.usedWrap {
			return 0, 0, false
		}
		id, n = uint16(w), binary.LittleEndian.Uint32(d[8:])
		c := q.count[id]
		q.room += int(c)
		q.free = append(q.free, id)
		if q.usedAt += c; q.usedAt >= q.Size {
			q.usedAt -= q.Size
			q.usedWrap = !q.usedWrap
		}
		return id, n, true
	}
	if uint16(load32(q.dev)>>16) == q.usedAt {
		return 0, 0, false
	}
	e := q.dev[4+8*int(q.usedAt%q.Size):]
	id, n = uint16(binary.LittleEndian.Uint32(e)), binary.LittleEndian.Uint32(e[4:])
	q.usedAt++
	q.free = append(q.free, q.chain[id]...)
	return id, n, true
}

// Interrupts asks the device to interrupt for used chains, or not to. With event indices it asks
// for an interrupt by the next used chain. It returns true if used chains are waiting already.
func (q *Queue) Interrupts(on bool) (waiting bool) {
	switch {
	case q.Packed && !on:
		store32(q.drv, 1<<16)
	case q.Packed && q.EventIdx:
		w := uint32(q.usedAt)
		if q.usedWrap {
			w |= 1 << 15
		}
		store32(q.drv, 2<<16|w)
	case q.Packed:
		store32(q.drv, 0)
	case q.EventIdx:
		if on {
			store32(q.drv[4+2*int(q.Size):], uint32(q.usedAt))
		}
	default:
		v := load32(q.drv) &^ 0xffff
		if !on {
			v |= 1
		}
		store32(q.drv, v)
	}
	if q.Packed {
		flags := uint16(load32(q.desc[16*int(q.usedAt)+12:]) >> 16)
		return flags&flagAvail != 0 == q.usedWrap && flags&flagUsed != 0 == q.usedWrap
	}
	return uint16(load32(q.dev)>>16) != q.usedAt
}
