package verbs

import "github.com/falcon-vnic/vnic/internal/vtime"

// Kind is a kind of objects. Their order is that of abi.ObjectCounts.
type Kind int

// Kinds of objects.
const (
	KindQP Kind = iota
	KindCQ
	KindMR
	KindPD
	KindAH
	KindSRQ
	KindMW
	KindXRCD

	Kinds // how many there are
)

// Counts are numbers of objects of each kind.
type Counts [Kinds]int

// kinds is the one table of the kinds of objects. A new kind is a line here, one in
// Objects.collection, and a file of its own.
var kinds = [Kinds]struct {
	name    string
	initial int  // that a function may have which nobody configured
	most    int  // that a table holds
	bits    uint // of a number that name the slot; a generation of 8 bits follows
	low     uint32
}{
	KindQP:   {"QP", 256, 1<<16 - 2, 16, 2}, // 0 and 1 are InfiniBand's special ones
	KindCQ:   {"CQ", 512, 1 << 20, 24, 1},
	KindMR:   {"MR", 4096, 1 << 20, 24, 1},
	KindPD:   {"PD", 256, 1 << 20, 24, 1},
	KindAH:   {"AH", 4096, 1 << 20, 24, 1},
	KindSRQ:  {"SRQ", 256, 1<<16 - 1, 16, 1},
	KindMW:   {"MW", 4096, 1 << 20, 24, 1}, // in the table of regions, whose keys they share
	KindXRCD: {"XRCD", 64, 1<<16 - 1, 16, 1},
}

// String is the kind's name in verbs.
func (k Kind) String() string { return kinds[k].name }

// collection is what the objects of all kinds have in common.
type collection interface {
	count() int
	setLimit(most int)
	closeAll(now vtime.Time) // for a function that ends
}

// newTable makes the table of a kind.
func newTable[T any](k Kind, limits *Limits) Table[T] {
	return NewTable[T](limits.Objects[k], kinds[k].bits, kinds[k].low)
}
