package falcon

import (
	"math/bits"
)

// The timing wheel: levels of 64 slots, level 0 with ticks of 1.024 µs, each level 64 times
// coarser. Arming, stopping and expiring are O(1); a timer moves to a finer level at most
// wheelLevels−1 times. Timers keep their exact deadline and never fire early.
const (
	tickShift   = 10
	slotBits    = 6
	slotMask    = 1<<slotBits - 1
	wheelLevels = 9 // 9·6 bits of 1.024 µs ticks hold every int64 of nanoseconds

	deadlineScan = 32 // timers of one slot that deadline looks at before it settles for the slot's start
)

type timerKind uint8

const (
	timerFlight    timerKind = iota // of a conn: the packet sent longest ago is not acknowledged
	timerRNR                        // of a txn: the delay of an RNR NACK
	timerRedeliver                  // of an rxTxn: pull under RNR
	timerPace                       // of a conn: next packet allowed
	timerTxn                        // of a conn: oldest transaction times out
	timerAck                        // of a conn: its coalesced acknowledgement goes
	timerRUE                        // of the engine: a result of the Rate Update Engine comes into force
	timerReclaim                    // of a conn: something held for the peer may be too old
)

// timer is how its owner knows a timer: its number in the wheel, 0 while it is not armed.
//
// The links of a timer are in the wheel and not in its owner: what is armed and stopped for every
// packet uses the same few cache lines again and again then, while the owners, thousands of
// connections, are in no cache.
type timer uint32

func (t timer) armed() bool { return t != 0 }

// timerOwner is told when its timer is due; it is not armed any more then.
type timerOwner interface {
	expired(now Time, kind timerKind)
}

type timerNode struct {
	next, prev timer // in its list; prev of the first and next of the last are 0
	at         Time
	owner      timerOwner
	handle     *timer // the owner's
	place      uint16 // level<<slotBits + slot number, or inFIFO
	kind       timerKind
}

// inFIFO is the place of timers that are in no slot.
const inFIFO = wheelLevels << slotBits

type timerList struct{ head, tail timer }

type wheel struct {
	tick     int64 // every timer of an earlier tick has fired
	occupied [wheelLevels]uint64
	slots    [wheelLevels][1 << slotBits]timerList
	fifo     timerList // timers of one delay: the first to come is the first due
	nodes    []timerNode
	free     timer // list of nodes, by next
}

// arm sets t to fire at the given time, whether it was armed or not.
func (w *wheel) arm(t *timer, owner timerOwner, kind timerKind, at Time) {
	n := *t
	if n == 0 {
		n = w.alloc(t, owner, kind)
	} else {
		w.unlink(n)
	}
	w.nodes[n].at = at
	w.place(n)
}

// queue arms t, which is not armed, for a time that is not before that of any other timer armed so.
func (w *wheel) queue(t *timer, owner timerOwner, kind timerKind, at Time) {
	n := w.alloc(t, owner, kind)
	w.nodes[n].at, w.nodes[n].place = at, inFIFO
	w.append(&w.fifo, n)
}

// at is when t, which is armed, fires.
func (w *wheel) at(t timer) Time { return w.nodes[t].at }

func (w *wheel) alloc(t *timer, owner timerOwner, kind timerKind) timer {
	if w.free == 0 {
		if len(w.nodes) == 0 {
			w.nodes = make([]timerNode, 1, 64) // 0 is no timer
		}
		w.nodes = append(w.nodes, timerNode{})
		w.free = timer(len(w.nodes) - 1)
	}
	*t = w.free
	n := &w.nodes[w.free]
	w.free = n.next
	n.owner, n.handle, n.kind = owner, t, kind
	return *t
}

func (w *wheel) append(l *timerList, t timer) {
	n := &w.nodes[t]
	n.next, n.prev = 0, l.tail
	if l.tail != 0 {
		w.nodes[l.tail].next = t
	} else {
		l.head = t
	}
	l.tail = t
}

// place relies on the invariant that a timer of level l shares all digits above l with w.tick.
func (w *wheel) place(t timer) {
	n := &w.nodes[t]
	tick := max(n.at>>tickShift, w.tick)
	level := 0
	if diff := uint64(tick ^ w.tick); diff != 0 {
		level = (bits.Len64(diff) - 1) / slotBits
	}
	slot := int(tick>>(level*slotBits)) & slotMask
	n.place = uint16(level<<slotBits | slot)
	w.occupied[level] |= 1 << slot
	w.append(&w.slots[level][slot], t)
}

// unlink takes t out of its list.
func (w *wheel) unlink(t timer) {
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
		w.occupied[level] &^= 1 << slot
	}
}

// stop disarms t; it may be disarmed already.
func (w *wheel) stop(t *timer) {
	if *t != 0 {
		w.unlink(*t)
		w.release(*t)
	}
}

func (w *wheel) release(t timer) {
	n := &w.nodes[t]
	*n.handle = 0
	n.owner, n.handle = nil, nil
	n.next, w.free = w.free, t
}

// expire disarms one timer that is due and returns its owner, nil when there is none.
func (w *wheel) expire(now Time) (timerOwner, timerKind) {
	t := w.due(now)
	if t == 0 {
		return nil, 0
	}
	owner, kind := w.nodes[t].owner, w.nodes[t].kind
	w.unlink(t)
	w.release(t)
	return owner, kind
}

// due finds a timer that is due, 0 when there is none.
func (w *wheel) due(now Time) timer {
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

// flush disarms the first timer of those armed by queue, due or not, and returns its owner, nil
// when there is none.
func (w *wheel) flush() timerOwner {
	t := w.fifo.head
	if t == 0 {
		return nil
	}
	owner := w.nodes[t].owner
	w.unlink(t)
	w.release(t)
	return owner
}

// cascade spreads the timers of a coarse slot, whose time has come, over finer levels.
func (w *wheel) cascade(l *timerList) {
	for t := l.head; t != 0; t = l.head {
		w.unlink(t)
		w.place(t)
	}
}

// first finds the earliest occupied slot and the tick it starts at; level −1 if there is none.
func (w *wheel) first() (level, slot int, start int64) {
	for level = range wheelLevels {
		if w.occupied[level] == 0 {
			continue
		}
		slot = bits.TrailingZeros64(w.occupied[level])
		shift := level * slotBits
		return level, slot, w.tick>>(shift+slotBits)<<(shift+slotBits) | int64(slot)<<shift
	}
	return -1, 0, 0
}

// deadline is the time of the next timer, or an earlier time at which a crowded coarse slot must be
// spread.
func (w *wheel) deadline() Time {
	at, seen := never, 0
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
