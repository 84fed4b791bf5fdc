package verbs

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Objects holds the objects of one function. Numbers and keys of one function are not valid in
// another. Each collection is embedded, because together they carry out the driver's commands
// (abi.VerbsHandler).
type Objects struct {
	Owner
	PDs
	XRCDs
	Regions
	CQs
	SRQs
	AHs
	QPs
	Groups
}

// Init prepares the objects of a function with the guest memory mem. sched gives its queue pairs
// their turns, destinations carries their datagrams.
func (o *Objects) Init(shared *Shared, mem *queues.Memory, limits Limits, out Notifier, sched Scheduler, destinations Destinations) {
	owner := &o.Owner
	owner.mem, owner.limits, owner.notifier = mem, limits.WithDefaults(), out
	owner.gids.used = 1 // the function's own address, until the driver changes the table
	l := &owner.limits
	o.PDs = PDs{domains{owner: owner, table: newTable[Domain](abi.ObjectPD, l)}}
	o.XRCDs = XRCDs{domains{owner: owner, table: newTable[Domain](abi.ObjectXRCD, l)}}
	o.Regions = Regions{owner: owner, pds: &o.PDs, table: newTable[MR](abi.ObjectMR, l)}
	o.Regions.setLimit(l.Objects[abi.ObjectMR])
	o.Regions.direct = &MR{owner: owner, key: abi.ReservedLKey, area: queues.Direct(mem), valid: true}
	o.Regions.direct.area.Head = queues.Data
	o.CQs = CQs{owner: owner, shared: shared, table: newTable[CQ](abi.ObjectCQ, l)}
	o.SRQs = SRQs{
		owner: owner, shared: shared, pds: &o.PDs, xrcds: &o.XRCDs, regions: &o.Regions, cqs: &o.CQs,
		table: newTable[SRQ](abi.ObjectSRQ, l),
	}
	o.AHs = AHs{owner: owner, pds: &o.PDs, destinations: destinations, table: newTable[AH](abi.ObjectAH, l)}
	o.QPs = QPs{
		owner: owner, shared: shared, sched: sched, pds: &o.PDs, xrcds: &o.XRCDs, regions: &o.Regions, cqs: &o.CQs, srqs: &o.SRQs, ahs: &o.AHs,
		groups: &o.Groups, table: newTable[QP](abi.ObjectQP, l),
	}
	o.Groups = Groups{owner: owner, qps: &o.QPs, destinations: destinations, most: l.Objects[abi.ObjectMCG]}
}

// collection returns the objects of one kind.
func (o *Objects) collection(k abi.Object) collection {
	switch k {
	case abi.ObjectQP:
		return &o.QPs
	case abi.ObjectCQ:
		return &o.CQs
	case abi.ObjectMR:
		return &o.Regions
	case abi.ObjectPD:
		return &o.PDs
	case abi.ObjectAH:
		return &o.AHs
	case abi.ObjectSRQ:
		return &o.SRQs
	case abi.ObjectMW:
		return windows{&o.Regions}
	case abi.ObjectMCG:
		return &o.Groups
	default:
		return &o.XRCDs
	}
}

// each calls f for the objects of each kind.
func (o *Objects) each(f func(k abi.Object, c collection)) {
	for k := range abi.NumObjects {
		f(k, o.collection(k))
	}
}

// SetLimits changes the limits. Objects above a lowered limit stay; new ones are refused until
// enough are gone.
func (o *Objects) SetLimits(limits Limits) {
	o.limits = limits.WithDefaults()
	o.each(func(k abi.Object, c collection) { c.setLimit(o.limits.Objects[k]) })
}

// Counts returns the number of objects in use.
func (o *Objects) Counts() (n Counts) {
	o.each(func(k abi.Object, c collection) { n[k] = c.count() })
	return n
}

// Close destroys every object, queue pairs first, and ends the function.
func (o *Objects) Close(now vtime.Time) {
	o.each(func(_ abi.Object, c collection) { c.closeAll(now) })
	o.closed, o.dirty = true, false
}

// Release writes all completions that Faults.Hold held back. It reports whether there were any.
func (o *Objects) Release(now vtime.Time) (any bool) {
	any = o.releaseAll(now)
	o.Settle(now)
	return any
}

// Counts holds a number of objects for each kind.
type Counts [abi.NumObjects]int

// tables says how the objects of each kind are numbered. A new kind needs a line in the schema of
// the ABI, one here, one in Objects.collection, and a file of its own.
var tables = [abi.NumObjects]struct {
	most int  // maximum of objects in a table
	bits uint // bits of a number that are the slot; a generation of 8 bits follows
	low  uint32
}{
	abi.ObjectQP:   {1<<16 - 2, 16, 2}, // 0 and 1 are special in InfiniBand
	abi.ObjectCQ:   {1 << 20, 24, 1},
	abi.ObjectMR:   {1 << 20, 24, 1},
	abi.ObjectPD:   {1 << 20, 24, 1},
	abi.ObjectAH:   {1 << 20, 24, 1},
	abi.ObjectSRQ:  {1<<16 - 1, 16, 1},
	abi.ObjectMW:   {1 << 20, 24, 1}, // in the table of regions, whose keys they share
	abi.ObjectXRCD: {1<<16 - 1, 16, 1},
	abi.ObjectMCG:  {1 << 16, 0, 0}, // has no numbers
}

// collection is the interface that the objects of every kind have in common.
type collection interface {
	count() int
	setLimit(most int)
	closeAll(now vtime.Time) // for a function that is closed
}

// newTable makes the table for a kind of objects.
func newTable[T any](k abi.Object, limits *Limits) Table[T] {
	return NewTable[T](limits.Objects[k], tables[k].bits, tables[k].low)
}

// Upper bounds of limits.
const (
	MaxReadAtomic = 64   // READ and atomic packets in flight per QP
	MaxDatagram   = 4096 // bytes, the largest path MTU
)

// Limits bounds what one function may hold.
type Limits struct {
	Objects       Counts
	Links         int // for datagrams, that other functions may open
	MTU           int // bytes of a datagram, at most
	PageListBytes int // host memory for the page lists of all MRs
	QPEntries     int // entries of a send or receive queue
	CQEntries     int // entries of a completion queue
	SGEs          int // SGEs of one work request, at most 64
	Inline        int // inline bytes of one work request, at most 1024
	ReadAtomic    int // READ and atomic packets in flight per QP, 1 to 64

	RCOnly bool // queue pairs are RC: the wire has no others
}

// WithDefaults returns l with zero limits replaced by the defaults, powers of two rounded down, and
// every limit cut to what the ABI and this engine support.
func (l Limits) WithDefaults() Limits {
	fill := func(v *int, initial, most int) {
		if *v <= 0 {
			*v = initial
		}
		*v = min(*v, most)
	}
	for k := range abi.NumObjects {
		fill(&l.Objects[k], int(k.Info().Initial), tables[k].most)
	}
	fill(&l.PageListBytes, 64<<20, 1<<30) // registers 64 GiB of scattered pages
	fill(&l.Links, 256, 1<<16)
	fill(&l.MTU, MaxDatagram, MaxDatagram)
	fill(&l.QPEntries, 4096, 1<<abi.MaxQueueLog2)
	fill(&l.CQEntries, 1<<18, 1<<abi.MaxQueueLog2)
	fill(&l.SGEs, 16, 64)
	fill(&l.Inline, 224, 1024)
	fill(&l.ReadAtomic, MaxReadAtomic, MaxReadAtomic)
	l.QPEntries = powerOfTwo(l.QPEntries)
	l.CQEntries = powerOfTwo(l.CQEntries)
	return l
}

// powerOfTwo returns the largest power of two not above n ≥ 1.
func powerOfTwo(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

// Table numbers objects of one kind. A number is the generation above the slotBits bits of the
// slot. When an object is removed, the generation of its slot is incremented, so its old number
// is refused and does not name the next object in the slot. Free slots are reused oldest first,
// which keeps an old number invalid for as long as possible.
type Table[T any] struct {
	slots    []slot[T] // the slot of the first, the next one, and so on
	first    uint32
	free     []uint32 // queue of free slots' places in slots, oldest at freeHead
	freeHead int
	inUse    int
	limit    int
	skipped  int // of slots: reserved numbers
	slotBits uint
	low      uint32 // slots below are reserved numbers
	fresh    uint8  // generation of a slot that was not used yet
}

type slot[T any] struct {
	object     *T
	generation uint8
}

// NewTable makes a table of at most limit objects, whose numbers have slotBits+8 bits.
func NewTable[T any](limit int, slotBits uint, low uint32) Table[T] {
	t := Table[T]{slotBits: slotBits, low: low, first: low}
	t.SetLimit(limit)
	return t
}

// StartAt makes the numbers of an empty table begin at random rather than at the lowest.
func (t *Table[T]) StartAt(random uint64) {
	t.first, t.fresh = uint32(random)&t.mask(), uint8(random>>32)
}

func (t *Table[T]) mask() uint32 { return 1<<t.slotBits - 1 }

// place returns where a number's slot is in slots, or would be.
func (t *Table[T]) place(number uint32) uint32 { return (number - t.first) & t.mask() }

// number returns the number of what is in a slot.
func (t *Table[T]) number(place uint32) uint32 {
	return uint32(t.slots[place].generation)<<t.slotBits | (place+t.first)&t.mask()
}

// SetLimit changes the limit. Objects above it stay.
func (t *Table[T]) SetLimit(limit int) { t.limit = min(limit, 1<<t.slotBits-int(t.low)) }

// Add stores object and returns its number, or false if the table is full.
func (t *Table[T]) Add(object *T) (number uint32, ok bool) {
	if t.inUse >= t.limit {
		return 0, false
	}
	var i uint32
	if len(t.slots) < t.limit+t.skipped {
		i = t.grow()
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
	return t.number(i), true
}

// grow adds a slot and returns its place.
func (t *Table[T]) grow() uint32 {
	for {
		i := uint32(len(t.slots))
		t.slots = append(t.slots, slot[T]{generation: t.fresh})
		if (i+t.first)&t.mask() >= t.low {
			return i
		}
		t.skipped++
	}
}

// Get returns the object with that number, nil if there is none or the number belonged to an
// earlier object.
func (t *Table[T]) Get(number uint32) *T {
	i := t.place(number)
	if i >= uint32(len(t.slots)) || uint32(t.slots[i].generation) != number>>t.slotBits {
		return nil
	}
	return t.slots[i].object
}

// At returns the object in the slot of number, regardless of the generation.
func (t *Table[T]) At(number uint32) *T {
	i := t.place(number)
	if i >= uint32(len(t.slots)) {
		return nil
	}
	return t.slots[i].object
}

// Replace puts object into the slot of number, which is in use, with the given generation, and
// returns its new number.
func (t *Table[T]) Replace(number uint32, object *T, generation uint8) uint32 {
	i := t.place(number)
	t.slots[i] = slot[T]{object: object, generation: generation}
	return t.number(i)
}

// Remove deletes the object with that number, which must exist.
func (t *Table[T]) Remove(number uint32) {
	i := t.place(number)
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
