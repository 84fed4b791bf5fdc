package verbs

// Table numbers objects of one kind. A number is generation<<slotBits
// slot. When an object is removed, the generation of its slot is incremented, so its old number is
// refused and does not name the next object in the slot. Free slots are reused oldest first, which
// keeps an old number invalid for as long as possible.
type Table[T any] struct {
	slots    []slot[T]
	free     []uint32 // queue of free slots, oldest at freeHead
	freeHead int
	inUse    int
	limit    int
	slotBits uint
	low      uint32 // first slot used; slots below are reserved numbers
}

type slot[T any] struct {
	object     *T
	generation uint8
}

// NewTable makes a table of at most limit objects, whose numbers have slotBits+8 bits.
func NewTable[T any](limit int, slotBits uint, low uint32) Table[T] {
	t := Table[T]{slotBits: slotBits, low: low}
	t.SetLimit(limit)
	return t
}

// SetLimit changes the limit. Objects above it stay.
func (t *Table[T]) SetLimit(limit int) { t.limit = min(limit, 1<<t.slotBits-int(t.low)) }

// Add stores object and returns its number, or false if the table is full.
func (t *Table[T]) Add(object *T) (number uint32, ok bool) {
	if t.inUse >= t.limit {
		return 0, false
	}
	var i uint32
	if len(t.slots) < t.limit {
		i = uint32(len(t.slots))
		t.slots = append(t.slots, slot[T]{})
	} else {
		i = t.free[t.freeHead]
		t.freeHead++
		if t.freeHead*2 > len(t.free) {
			t.free = append(t.free[:0], t.free[t.freeHead:]...)
			t.freeHead = 0
		}
	}
	t.slots[i].object = object
	t.inUse++
	return uint32(t.slots[i].generation)<<t.slotBits | (i + t.low), true
}

// Get returns the object with that number, nil if there is none or the number belonged to an
// earlier object.
func (t *Table[T]) Get(number uint32) *T {
	i := number&(1<<t.slotBits-1) - t.low
	if i >= uint32(len(t.slots)) || uint32(t.slots[i].generation) != number>>t.slotBits {
		return nil
	}
	return t.slots[i].object
}

// At returns the object in the slot of number, regardless of the generation.
func (t *Table[T]) At(number uint32) *T {
	i := number&(1<<t.slotBits-1) - t.low
	if i >= uint32(len(t.slots)) {
		return nil
	}
	return t.slots[i].object
}

// Replace puts object into the slot of number, which is in use, with the given generation, and
// returns its new number.
func (t *Table[T]) Replace(number uint32, object *T, generation uint8) uint32 {
	i := number&(1<<t.slotBits-1) - t.low
	t.slots[i] = slot[T]{object: object, generation: generation}
	return uint32(generation)<<t.slotBits | (i + t.low)
}

// Remove deletes the object with that number, which must exist.
func (t *Table[T]) Remove(number uint32) {
	i := number&(1<<t.slotBits-1) - t.low
	t.slots[i].object = nil
	t.slots[i].generation++
	t.free = append(t.free, i)
	t.inUse--
}

// Each calls f for every object. f may remove objects.
func (t *Table[T]) Each(f func(*T)) {
	for i := range t.slots {
		if o := t.slots[i].object; o != nil {
			f(o)
		}
	}
}

// InUse returns the number of objects.
func (t *Table[T]) InUse() int { return t.inUse }

// Full reports whether there is no room for another.
func (t *Table[T]) Full() bool { return t.inUse >= t.limit }
