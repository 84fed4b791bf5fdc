package conn

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// A connection identifier (CID) has 24 bits and names the shard and slot of its connection:
//
//	23    20 19        14 13            0
//	[ shard ][ generation ][ slot index ]
//
// The generation makes a CID differ from the previous one of the same slot. In addition, the
// connection manager does not reuse a CID until it has rested. Only this file knows the layout.
const (
	indexBits      = 14
	generationBits = 6
	shardBits      = 4

	indexMask      = 1<<indexBits - 1
	generationMask = 1<<generationBits - 1
)

// Bounds that follow from the layout.
const (
	MaxSlots  = 1 << indexBits // connections of one shard
	MaxShards = 1 << shardBits // of one NIC
)

// ErrNoCID means that a function cannot get a CID now.
var ErrNoCID = errors.New("no connection identifier left")

// ShardOf returns the shard that a packet with this CID is for.
func ShardOf(cid uint32) int { return int(cid >> (indexBits + generationBits) & (MaxShards - 1)) }

// indexOf returns the index of a CID's slot in its shard's table.
func indexOf(cid uint32) uint32 { return cid & indexMask }

// CIDs allocates the CIDs of one shard. It belongs to the connection manager. The shard's Table
// maps CIDs to connections.
type CIDs struct {
	prefix uint32
	slots  []cidState
	free   []uint32          // ring of free indices; the one free for longest is allocated first
	next   int               // position of the first free index
	left   int               // number of free indices
	shares cm.Shares[uint32] // CIDs held, by function
	quotas map[uint32]int    // by function
}

// cidState is the state of one slot's CID.
type cidState struct {
	generation uint32
	used       bool
	owner      uint32 // function that holds it
}

// NewCIDs returns the CIDs of a shard whose table has n slots.
func NewCIDs(shard, n int) *CIDs {
	c := &CIDs{
		prefix: uint32(shard) << (indexBits + generationBits), slots: make([]cidState, n), free: make([]uint32, n), left: n,
		shares: cm.Shares[uint32]{Size: n, Multiple: 3}, quotas: map[uint32]int{},
	}
	for i := range c.free {
		c.free[i] = uint32(i)
	}
	return c
}

// SetQuota bounds how many CIDs a function may hold, whatever the state of their connections.
// Without a quota, or with 0, it gets none.
func (c *CIDs) SetQuota(function uint32, n int) {
	if n == 0 {
		delete(c.quotas, function)
		return
	}
	c.quotas[function] = n
}

// Alloc returns a new CID for a function. It fails if the function holds its quota, or so many that
// too few would be left for others.
func (c *CIDs) Alloc(function uint32) (uint32, error) {
	switch n := c.shares.Held(function); {
	case n >= c.quotas[function]:
		return 0, fmt.Errorf("%w: the function has %d, as many as its limits allow", ErrNoCID, n)
	case !c.shares.Room(function):
		return 0, fmt.Errorf("%w: the function has %d and %d of %d are free, for others", ErrNoCID, n, c.left, len(c.slots))
	}
	c.shares.Take(function)
	i := c.free[c.next]
	c.next = (c.next + 1) % len(c.free)
	c.left--
	s := &c.slots[i]
	s.generation = (s.generation + 1) & generationMask
	s.used, s.owner = true, function
	return c.cid(i), nil
}

func (c *CIDs) cid(i uint32) uint32 { return c.prefix | c.slots[i].generation<<indexBits | i }

// Free releases a CID. It is reused only after all that were free before it.
func (c *CIDs) Free(cid uint32) {
	i := indexOf(cid)
	if int(i) >= len(c.slots) || !c.slots[i].used || c.cid(i) != cid {
		return
	}
	c.shares.Give(c.slots[i].owner)
	c.slots[i].used = false
	c.free[(c.next+c.left)%len(c.free)] = i
	c.left++
}

// InUse returns the number of allocated CIDs.
func (c *CIDs) InUse() int { return len(c.slots) - c.left }

// Held returns the number of CIDs that a function holds, and its quota.
func (c *CIDs) Held(function uint32) (n, quota int) {
	return c.shares.Held(function), c.quotas[function]
}
