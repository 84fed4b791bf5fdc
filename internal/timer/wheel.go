package timer

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Levels of 64 slots. Level 0 has ticks of 1.024 µs, and each level is 64 times coarser than the
// one before. A timer moves to a finer level at most levels−1 times.
const (
	tickShift = 10
	slotBits  = 6
	slotMask  = 1<<slotBits - 1
	levels    = 9 // 9·6 bits of 1.024 µs ticks hold every int64 of nanoseconds

	deadlineScan = 32 // limit of timers of one slot that Deadline examines; beyond it returns the slot's start
)

// Kind distinguishes the timers of one owner. The owner defines its values.
type Kind uint8

// Handle identifies a timer to its owner. It is the timer's number in the wheel, 0 while it is not
// armed. It must not be copied or moved while it is armed.
type Handle uint32

// Armed reports whether the timer is armed.
func (h Handle) Armed() bool { return h != 0 }

type node[O any] struct {
	next, prev Handle // in its list; prev of the first and next of the last are 0
	at         vtime.Time
	owner      O
	handle     *Handle // the owner's handle
	place      uint16  // level<<slotBits + slot number, or inFIFO
	kind       Kind
}

// inFIFO is the place of timers that are in the FIFO, not in a slot.
const inFIFO = levels << slotBits

type slot struct{ head, tail Handle }

// Wheel holds the timers of owners of type O, usually a small interface. Its zero value is ready.
type Wheel[O any] struct {
	tick     int64  // every timer of an earlier tick has fired
	filled   uint16 // bit set of levels that have a timer
	occupied [levels]uint64
	slots    [levels][1 << slotBits]slot
	fifo     slot // timers of one delay: the first one armed is due first
	nodes    []node[O]
	free     Handle // list of nodes, by next
}

// Arm sets t to fire at the given time, whether or not it was armed.
func (w *Wheel[O]) Arm(t *Handle, owner O, kind Kind, at vtime.Time) {
	n := *t
	if n == 0 {
		n = w.alloc(t, owner, kind)
	} else {
		w.unlink(n)
	}
	w.nodes[n].at = at
	w.place(n)
}

// Queue arms t, which must not be armed, for a time not before that of any other timer armed by
// Queue.
func (w *Wheel[O]) Queue(t *Handle, owner O, kind Kind, at vtime.Time) {
	n := w.alloc(t, owner, kind)
	w.nodes[n].at, w.nodes[n].place = at, inFIFO
	w.append(&w.fifo, n)
}

// At returns when t, which must be armed, fires.
func (w *Wheel[O]) At(t Handle) vtime.Time { return w.nodes[t].at }

func (w *Wheel[O]) alloc(t *Handle, owner O, kind Kind) Handle {
	if w.free == 0 {
		if len(w.nodes) == 0 {
			w.nodes = make([]node[O], 1, 64) // 0 is not a timer
		}
		w.nodes = append(w.nodes, node[O]{})
		w.free = Handle(len(w.nodes) - 1)
	}
	*t = w.free
	n := &w.nodes[w.free]
	w.free = n.next
	n.owner, n.handle, n.kind = owner, t, kind
	return *t
}

func (w *Wheel[O]) append(l *slot, t Handle) {
	n := &w.nodes[t]
	n.next, n.prev = 0, l.tail
	if l.tail != 0 {
		w.nodes[l.tail].next = t
	} else {
		l.head = t
	}
	l.tail = t
}

// place links t into the slot for its time. It relies on the invariant that a timer of level l
// shares all digits above l with w.tick.
func (w *Wheel[O]) place(t Handle) {
	n := &w.nodes[t]
	tick := max(n.at>>tickShift, w.tick)
	level := 0
	if diff := uint64(tick ^ w.tick); diff != 0 {
		level = (bits.Len64(diff) - 1) / slotBits
	}
	slot := int(tick>>(level*slotBits)) & slotMask
	n.place = uint16(level<<slotBits | slot)
	w.filled |= 1 << level
	w.occupied[level] |= 1 << slot
	w.append(&w.slots[level][slot], t)
}

// unlink removes t from its list.
func (w *Wheel[O]) unlink(t Handle) {
	n := &w.nodes[t]
	level, slot := n.place>>slotBits, n.place&slotMask
	l := &w.fifo
	if n.place != inFIFO {
		l = &w.slots[level][slot]
	}
	if n.prev != 0 {
		w.nodes[n.prev].next = n.next
	} else {
		l.head = n.next
	}
	if n.next != 0 {
		w.nodes[n.next].prev = n.prev
	} else {
		l.tail = n.prev
	}
	if l.head == 0 && n.place != inFIFO {
		if w.occupied[level] &^= 1 << slot; w.occupied[level] == 0 {
			w.filled &^= 1 << level
		}
	}
}

// Stop disarms t, if it is armed.
func (w *Wheel[O]) Stop(t *Handle) {
	if *t != 0 { // usually it is 0, so only this check is inlined
		w.disarm(*t)
	}
}

func (w *Wheel[O]) disarm(t Handle) {
	w.unlink(t)
	w.release(t)
}

func (w *Wheel[O]) release(t Handle) {
	n := &w.nodes[t]
	*n.handle = 0
	var none O
	n.owner, n.handle = none, nil
	n.next, w.free = w.free, t
}

// Idle reports whether no timer is armed.
func (w *Wheel[O]) Idle() bool { return w.filled == 0 && w.fifo.head == 0 }

// Expire disarms one timer that is due and returns its owner and kind, or false if there is none.
func (w *Wheel[O]) Expire(now vtime.Time) (owner O, kind Kind, ok bool) {
	t := w.due(now)
	if t == 0 {
		return owner, 0, false
	}
	owner, kind = w.nodes[t].owner, w.nodes[t].kind
	w.disarm(t)
	return owner, kind, true
}

// due returns a timer that is due, 0 if there is none.
func (w *Wheel[O]) due(now vtime.Time) Handle {
	if t := w.fifo.head; t != 0 && w.nodes[t].at <= now {
		return t
	}
	nowTick := now >> tickShift
	for {
		level, slot, start := w.first()
		if level < 0 || start > nowTick {
			w.tick = max(w.tick, nowTick)
			return 0
		}
		w.tick = max(w.tick, start)
		l := &w.slots[level][slot]
		if level > 0 {
			w.cascade(l)
			continue
		}
		for t := l.head; t != 0; t = w.nodes[t].next {
			if w.nodes[t].at <= now {
				return t
			}
		}
		return 0 // the current tick holds only later timers
	}
}

// Flush disarms the first timer armed by Queue, due or not, and returns its owner, or false if
// there is none.
func (w *Wheel[O]) Flush() (owner O, ok bool) {
	t := w.fifo.head
	if t == 0 {
		return owner, false
	}
	owner = w.nodes[t].owner
	w.disarm(t)
	return owner, true
}

// cascade distributes the timers of a coarse slot, whose time has come, over finer levels.
func (w *Wheel[O]) cascade(l *slot) {
	for t := l.head; t != 0; t = l.head {
		w.unlink(t)
		w.place(t)
	}
}

// first returns the earliest occupied slot and the tick at which it starts; level is −1 if there is
// none.
func (w *Wheel[O]) first() (level, slot int, start int64) {
	if w.filled == 0 {
		return -1, 0, 0
	}
	level = bits.TrailingZeros16(w.filled)
	slot = bits.TrailingZeros64(w.occupied[level])
	shift := level * slotBits
	return level, slot, w.tick>>(shift+slotBits)<<(shift+slotBits) | int64(slot)<<shift
}

// Deadline returns the time of the next timer, or an earlier time at which a crowded coarse slot
// must be distributed.
func (w *Wheel[O]) Deadline() vtime.Time {
	at, seen := vtime.Never, 0
	if t := w.fifo.head; t != 0 {
		at = w.nodes[t].at
	}
	level, slot, start := w.first()
	if level < 0 {
		return at
	}
	for t := w.slots[level][slot].head; t != 0; t = w.nodes[t].next {
		if seen++; level > 0 && seen > deadlineScan {
			return min(at, start<<tickShift)
		}
		at = min(at, w.nodes[t].at)
	}
	return at
}
