package virtqueue

import (
	"encoding/binary"
	"fmt"
)

// split is a split ring, Virtio §2.7.
type split struct {
	cfg   Config
	mem   *RAM
	desc  []byte
	avail []byte
	used  []byte
	mask  uint16
	chain Chain

	take  uint16   // next available entry
	seen  uint16   // the driver's index when it was last read
	ahead uint16   // entries before this one were prefetched
	done  uint16   // entry of the oldest chain that is not done
	heads []uint16 // head descriptors of the entries from done to take, by entry

	next      uint16 // used entry to write
	published uint16 // used index that the driver sees
	quiet     bool
}

const (
	noInterrupt = 1 // of the driver's flags
	noNotify    = 1 // of the device's flags
)

func newSplit(mem *RAM, cfg Config) (*split, error) {
	q := &split{mask: cfg.Size - 1, heads: make([]uint16, cfg.Size)}
	if err := q.Rebind(mem, cfg); err != nil {
		return nil, err
	}
	q.next = load16(q.used[2:])
	q.published = q.next
	base := uint16(cfg.Base)
	if cfg.Resume { // chains are completed in order
		base = q.next
	}
	q.take, q.seen, q.ahead, q.done = base, base, base, base
	return q, nil
}

func (q *split) Rebind(mem *RAM, cfg Config) error {
	if cfg.Size != q.mask+1 {
		return fmt.Errorf("%w: the ring had %d entries", ErrRing, int(q.mask)+1)
	}
	n := uint64(cfg.Size)
	desc, err := mem.slice(cfg.Desc, descLen*n)
	if err != nil {
		return err
	}
	avail, err := mem.slice(cfg.Driver, 6+2*n)
	if err != nil {
		return err
	}
	used, err := mem.slice(cfg.Device, 6+8*n)
	if err != nil {
		return err
	}
	if !aligned(desc, 16) || !aligned(avail, 2) || !aligned(used, 4) {
		return fmt.Errorf("%w: misaligned parts: descriptors %#x, available %#x, used %#x (Virtio §2.7 wants 16, 2, 4)", ErrRing, cfg.Desc, cfg.Driver, cfg.Device)
	}
	q.cfg, q.mem, q.desc, q.avail, q.used = cfg, mem, desc, avail, used
	return nil
}

func (q *split) Take(w *Work) (*Chain, error) {
	if q.take == q.seen {
		idx := load16(q.avail[2:])
		if idx == q.take {
			return nil, nil
		}
		if ahead := idx - q.done; ahead > q.mask+1 {
			return nil, fmt.Errorf("%w: available index %d is %d ahead of the device, the ring has %d entries", ErrRing, idx, ahead, int(q.mask)+1)
		}
		q.seen = idx
	}
	if q.take == q.ahead {
		q.fetch()
	}
	head := binary.LittleEndian.Uint16(q.avail[4+2*int(q.take&q.mask):])
	q.chain.reset()
	if err := q.walk(q.desc, head, q.cfg.Indirect, w); err != nil {
		return nil, orSpent(err)
	}
	q.heads[q.take&q.mask] = head
	q.take++
	return &q.chain, nil
}

// fetch loads the beginnings of the next chains' buffers into the processor's cache. A miss on a
// line that another processor wrote last takes as long as all other work on a frame. Here the
// processor waits for many misses at a time; during that work it would wait for them one after
// another.
func (q *split) fetch() {
	n := min(q.seen-q.take, fetched)
	for i := range n {
		head := int(binary.LittleEndian.Uint16(q.avail[4+2*int((q.take+i)&q.mask):])&q.mask) * descLen
		q.mem.touch(binary.LittleEndian.Uint64(q.desc[head:]))
	}
	q.ahead = q.take + n
}

// walk adds the buffers of a chain, which may end in an indirect table.
func (q *split) walk(descs []byte, idx uint16, indirect bool, w *Work) error {
	for range len(descs) / descLen {
		at := int(idx) * descLen
		if at >= len(descs) {
			return fmt.Errorf("%w: a chain names descriptor %d of %d", ErrRing, idx, len(descs)/descLen)
		}
		if err := q.chain.next(w); err != nil {
			return err
		}
		d := readDesc(descs[at:])
		flags, next := d.a, d.b
		if flags&flagIndirect != 0 {
			if !indirect || flags&flagNext != 0 {
				return fmt.Errorf("%w: descriptor %d is indirect where none may be (Virtio §2.7.5.3)", ErrRing, idx)
			}
			t, err := table(q.mem, d.addr, d.size)
			if err != nil {
				return err
			}
			q.chain.enter()
			return q.walk(t, 0, false, w)
		}
		if err := q.chain.add(q.mem, d.addr, d.size, flags&flagWrite != 0, w); err != nil {
			return err
		}
		if flags&flagNext == 0 {
			return nil
		}
		idx = next
	}
	return fmt.Errorf("%w: a chain loops", ErrRing)
}

func (q *split) Mark() Mark { return Mark{index: q.take} }

func (q *split) Back(m Mark) { q.take, q.ahead = m.index, m.index }

func (q *split) Done(written int) {
	e := q.used[4+8*int(q.next&q.mask):]
	binary.LittleEndian.PutUint32(e, uint32(q.heads[q.done&q.mask]))
	binary.LittleEndian.PutUint32(e[4:], uint32(written))
	q.next++
	q.done++
}

// show stores the used index together with the device's flags, after all earlier writes.
func (q *split) show() {
	flags := uint32(0)
	if q.quiet {
		flags = noNotify
	}
	q.published = q.next
	store32(q.used, uint32(q.next)<<16|flags)
}

func (q *split) Publish() (notify bool) {
	old := q.published
	if q.next == old {
		return false
	}
	q.show()
	if q.cfg.EventIdx {
		return needEvent(load16(q.avail[4+2*(int(q.mask)+1):]), q.next, old)
	}
	return load16(q.avail)&noInterrupt == 0
}

// Quiet does nothing if event indices are in use: the driver passes an event index that does not
// move only once in 65536 chains.
func (q *split) Quiet() {
	if !q.cfg.EventIdx && !q.quiet {
		q.quiet = true
		q.flags()
	}
}

// flags stores the device's flags and leaves the used index that the driver sees unchanged.
func (q *split) flags() {
	next := q.next
	q.next = q.published
	q.show()
	q.next = next
}

func (q *split) Arm() (waiting bool) {
	if q.cfg.EventIdx {
		store16(q.used[4+8*(int(q.mask)+1):], q.take)
	} else {
		q.quiet = false
		q.flags()
	}
	return load16(q.avail[2:]) != q.take
}

func (q *split) Base() uint32 { return uint32(q.done) }
