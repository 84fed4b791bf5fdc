package verbs

import (
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

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
