package falcon

import (
	"math/bits"
)

// The timing wheel: levels of 64 slots, level 0 with ticks of 1.024 µs, each level 64 times coarser. Arming, stopping
// and expiring are O(1); a timer moves to a finer level at most wheelLevels−1 times. Timers keep their exact deadline
// and never fire early.
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
	timerRUE                        // of the engine: a result of the Rate Update Engine comes into force
)

// timer is embedded in what it belongs to.
type timer struct {
	next, prev *timer
	owner      timerOwner
	at         Time
	place      uint16 // 1 + level<<slotBits + slot number; 0: not armed
	kind       timerKind
}

// timerOwner is told when its timer is due; it is not armed any more then.
type timerOwner interface {
	expired(now Time, kind timerKind)
}

func (t *timer) armed() bool { return t.place != 0 }

type timerSlot struct{ head, tail *timer }

type wheel struct {
	tick     int64 // every timer of an earlier tick has fired
	occupied [wheelLevels]uint64
	slots    [wheelLevels][1 << slotBits]timerSlot
}

// arm sets t to fire at the given time, whether it was armed or not.
func (w *wheel) arm(t *timer, at Time) {
	w.stop(t)
	t.at = at
	w.place(t)
}

// place relies on the invariant that a timer of level l shares all digits above l with w.tick.
func (w *wheel) place(t *timer) {
	tick := max(t.at>>tickShift, w.tick)
	level := 0
	if diff := uint64(tick ^ w.tick); diff != 0 {
		level = (bits.Len64(diff) - 1) / slotBits
	}
	n := int(tick>>(level*slotBits)) & slotMask
	s := &w.slots[level][n]
	t.place = uint16(level<<slotBits|n) + 1
	t.next, t.prev = nil, s.tail
	if s.tail != nil {
		s.tail.next = t
	} else {
		s.head = t
		w.occupied[level] |= 1 << n
	}
	s.tail = t
}

// stop disarms t; it may be disarmed already.
func (w *wheel) stop(t *timer) {
	if t.place == 0 {
		return
	}
	level, n := (t.place-1)>>slotBits, (t.place-1)&slotMask
	s := &w.slots[level][n]
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		s.head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		s.tail = t.prev
	}
	if s.head == nil {
		w.occupied[level] &^= 1 << n
	}
	t.next, t.prev, t.place = nil, nil, 0
}

// expire disarms and returns one timer that is due, nil when there is none.
func (w *wheel) expire(now Time) *timer {
	nowTick := now >> tickShift
	for {
		level, n, start := w.first()
		if level < 0 || start > nowTick {
			w.tick = max(w.tick, nowTick)
			return nil
		}
		w.tick = max(w.tick, start)
		s := &w.slots[level][n]
		if level > 0 {
			w.cascade(s)
			continue
		}
		for t := s.head; t != nil; t = t.next {
			if t.at <= now {
				w.stop(t)
				return t
			}
		}
		return nil // the current tick holds only later timers
	}
}

// cascade spreads the timers of a coarse slot, whose time has come, over finer levels.
func (w *wheel) cascade(s *timerSlot) {
	for t := s.head; t != nil; t = s.head {
		w.stop(t)
		w.place(t)
	}
}

// first finds the earliest occupied slot and the tick it starts at; level −1 if there is none.
func (w *wheel) first() (level, n int, start int64) {
	for level = range wheelLevels {
		if w.occupied[level] == 0 {
			continue
		}
		n = bits.TrailingZeros64(w.occupied[level])
		shift := level * slotBits
		return level, n, w.tick>>(shift+slotBits)<<(shift+slotBits) | int64(n)<<shift
	}
	return -1, 0, 0
}

// deadline is the time of the next timer, or an earlier time at which a crowded coarse slot must be spread.
func (w *wheel) deadline() Time {
	level, n, start := w.first()
	if level < 0 {
		return never
	}
	at, seen := never, 0
	for t := w.slots[level][n].head; t != nil; t = t.next {
		if seen++; level > 0 && seen > deadlineScan {
			return start << tickShift
		}
		at = min(at, t.at)
	}
	return at
}
