package virtqueue

import (
	"encoding/binary"
	"fmt"
)

// packed is a packed ring, Virtio §2.8. Driver and device write the same descriptors. Two bits of a
// descriptor, compared to a wrap counter that flips with each lap, say who owns it.
type packed struct {
	cfg    Config
	mem    *RAM
	desc   []byte
	driver []byte // event suppression: offset and wrap, then flags
	device []byte
	size   uint16
	chain  Chain

	at    place   // next available descriptor
	taken []taken // ring buffer of taken chains that are not done
	first int     // index of the oldest
	count int
	open  int // descriptors of taken and of staged chains: the driver does not have them back yet
	ahead int // number of descriptors from at on that were prefetched

	used   place   // next used descriptor to write
	told   place   // Publish has decided on the notification of all descriptors before this one
	staged []entry // done chains that the driver does not see yet
	n      int
	hidden int // descriptors of the staged chains
}

type taken struct{ id, descs uint16 }

// Flags of an event suppression structure.
const (
	eventEnable  = 0
	eventDisable = 1
	eventDesc    = 2
)

func newPacked(mem *RAM, cfg Config) (*packed, error) {
	// A ring that starts where the last device stopped has that device's pending descriptors, too: that
	// one may have been killed before the driver stopped the ring.
	if cfg.Resume || cfg.Ledger != nil && cfg.Ledger.Base() == cfg.Base {
		var ok bool
		if cfg.Base, ok = cfg.Ledger.Resume(mem, cfg.Desc, cfg.Size); !ok {
			return nil, fmt.Errorf("%w: its position is unknown", ErrRing)
		}
	}
	at := placeOf(uint16(cfg.Base))
	if at.index >= cfg.Size {
		return nil, fmt.Errorf("%w: base %d is outside a ring of %d", ErrRing, at.index, cfg.Size)
	}
	q := &packed{size: cfg.Size, at: at, used: at, told: at, taken: make([]taken, cfg.Size), staged: make([]entry, cfg.Size)}
	if err := q.Rebind(mem, cfg); err != nil {
		return nil, err
	}
	cfg.Ledger.settle(at.word())
	return q, nil
}

func (q *packed) Rebind(mem *RAM, cfg Config) error {
	if cfg.Size != q.size {
		return fmt.Errorf("%w: the ring had %d entries", ErrRing, q.size)
	}
	desc, err := mem.slice(cfg.Desc, descLen*uint64(cfg.Size))
	if err != nil {
		return err
	}
	driver, err := mem.slice(cfg.Driver, 4)
	if err != nil {
		return err
	}
	device, err := mem.slice(cfg.Device, 4)
	if err != nil {
		return err
	}
	if !aligned(desc, 16) || !aligned(driver, 4) || !aligned(device, 4) {
		return fmt.Errorf("%w: misaligned parts: descriptors %#x, driver's %#x, device's %#x (Virtio §2.8.10.1 wants 16, 4, 4)", ErrRing, cfg.Desc, cfg.Driver, cfg.Device)
	}
	q.cfg, q.mem, q.desc, q.driver, q.device = cfg, mem, desc, driver, device
	return nil
}

// flagsAt loads a descriptor's flags. The load also orders later reads of the descriptor after it.
func (q *packed) flagsAt(index uint16) uint16 {
	return uint16(load32(q.desc[int(index)*descLen+12:]) >> 16)
}

func (q *packed) Take(w *Work) (*Chain, error) {
	if !q.at.available(q.flagsAt(q.at.index)) {
		return nil, nil
	}
	if q.ahead <= 0 {
		q.fetch()
	}
	q.chain.reset()
	p, t := q.at, taken{}
	for {
		if q.open+int(t.descs) >= int(q.size) {
			return nil, fmt.Errorf("%w: more descriptors are available than the ring has", ErrRing)
		}
		if err := q.chain.next(w); err != nil {
			return nil, orSpent(err)
		}
		d := readDesc(q.desc[int(p.index)*descLen:])
		flags := d.b
		t.id = d.a
		t.descs++
		p = p.forward(1, q.size)
		if flags&flagIndirect != 0 {
			if !q.cfg.Indirect || flags&flagNext != 0 || t.descs > 1 {
				return nil, fmt.Errorf("%w: a descriptor is indirect where none may be (Virtio §2.8.7)", ErrRing)
			}
			if err := q.indirect(d, w); err != nil {
				return nil, orSpent(err)
			}
			break
		}
		if err := q.chain.add(q.mem, d.addr, d.size, flags&flagWrite != 0, w); err != nil {
			return nil, orSpent(err)
		}
		if flags&flagNext == 0 {
			break
		}
	}
	q.at = p
	q.ahead -= int(t.descs)
	q.taken[(q.first+q.count)%len(q.taken)] = t
	q.count++
	q.open += int(t.descs)
	return &q.chain, nil
}

// fetch prefetches the beginnings of the next buffers; see split.fetch.
func (q *packed) fetch() {
	p := q.at
	for q.ahead = 0; q.ahead < fetched && p.available(q.flagsAt(p.index)); q.ahead++ {
		q.mem.touch(binary.LittleEndian.Uint64(q.desc[int(p.index)*descLen:]))
		p = p.forward(1, q.size)
	}
}

// indirect adds the buffers of an indirect table, in the order of its descriptors.
func (q *packed) indirect(d descriptor, w *Work) error {
	t, err := table(q.mem, d.addr, d.size)
	if err != nil {
		return err
	}
	q.chain.enter()
	for ; len(t) > 0; t = t[descLen:] {
		if err := q.chain.next(w); err != nil {
			return err
		}
		e := readDesc(t)
		if err := q.chain.add(q.mem, e.addr, e.size, e.b&flagWrite != 0, w); err != nil {
			return err
		}
	}
	return nil
}

func (q *packed) Mark() Mark { return Mark{index: q.at.index, wrap: q.at.wrap, chains: q.count} }

func (q *packed) Back(m Mark) {
	for ; q.count > m.chains; q.count-- {
		q.open -= int(q.taken[(q.first+q.count-1)%len(q.taken)].descs)
	}
	q.at, q.ahead = place{m.index, m.wrap}, 0
}

// Done only stages the chain. The driver sees nothing before Publish, however many chains are done,
// so that it sees either all chains of a frame or none.
func (q *packed) Done(written int) {
	t := q.taken[q.first]
	q.first = (q.first + 1) % len(q.taken)
	q.count--
	q.hidden += int(t.descs)
	e := entry{index: q.used.index, id: t.id, len: uint32(written)}
	if q.used.wrap {
		e.flags = flagAvail | flagUsed
	}
	if written > 0 {
		e.flags |= flagWrite
	}
	q.staged[q.n] = e
	q.n++
	q.used = q.used.forward(t.descs, q.size)
}

// publish writes the used descriptors, and the flags of the first one last: before that the driver
// looks at none of those behind it.
func (q *packed) publish() {
	q.cfg.Ledger.begin(q.staged[:q.n], q.used.word())
	for i := q.n - 1; i >= 0; i-- {
		q.staged[i].write(q.desc)
	}
	q.cfg.Ledger.settle(q.used.word())
	q.open -= q.hidden
	q.n, q.hidden = 0, 0
}

func (q *packed) Publish() (notify bool) {
	if q.n != 0 {
		q.publish()
	}
	if q.used == q.told {
		return false
	}
	old := q.told.index
	q.told = q.used
	w := load32(q.driver)
	switch at, flags := placeOf(uint16(w)), w>>16&3; {
	case flags == eventEnable:
		return true
	case flags != eventDesc || !q.cfg.EventIdx:
		return false
	default:
		new, event := q.used.index, at.index
		if new <= old {
			old -= q.size
		}
		if at.wrap != q.used.wrap {
			event -= q.size
		}
		return needEvent(event, new, old)
	}
}

func (q *packed) Quiet() { store32(q.device, eventDisable<<16) }

func (q *packed) Arm() (waiting bool) {
	if q.cfg.EventIdx {
		store32(q.device, eventDesc<<16|uint32(q.at.word()))
	} else {
		store32(q.device, eventEnable<<16)
	}
	return q.at.available(q.flagsAt(q.at.index))
}

// Base returns the position of the oldest chain that is not done. It is in both halves of the word,
// because the available and the used position are the same.
func (q *packed) Base() uint32 { return uint32(q.used.word()) * 0x10001 }

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
