package conn

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// A connection identifier, 24 bits, names the place of its connection:
//
//	23    20 19        14 13            0
//	[ shard ][ generation ][ slot index ]
//
// The generation makes a CID differ from the last one of the same slot, on top of the rest that the
// connection manager gives to each CID. This file alone knows the layout.
const (
	indexBits      = 14
	generationBits = 6
	shardBits      = 4

	indexMask      = 1<<indexBits - 1
	generationMask = 1<<generationBits - 1
)

// Bounds that the layout sets.
const (
	MaxSlots  = 1 << indexBits // connections of one shard
	MaxShards = 1 << shardBits // of one NIC
)

// ErrNoCID says that a function gets no connection identifier now.
var ErrNoCID = errors.New("device: no connection identifier left")

// ShardOf is the shard that a packet with this CID is for.
func ShardOf(cid uint32) int { return int(cid >> (indexBits + generationBits) & (MaxShards - 1)) }

// indexOf is the place of a CID's slot in its shard's table.
func indexOf(cid uint32) uint32 { return cid & indexMask }

// CIDs gives out the connection identifiers of one shard. It belongs to the connection manager:
// what a CID leads to is the shard's affair (Table).
type CIDs struct {
	prefix uint32
	slots  []cidState
	free   []uint32          // ring of indices: the longest unused is given out first
	next   int               // the first of them
	left   int               // how many
	shares cm.Shares[uint32] // of functions
	quotas map[uint32]int    // of functions
}

// cidState is what is known of the CID of one slot.
type cidState struct {
	generation uint32
	used       bool
	owner      uint32 // function it is given to
}

// NewCIDs returns those of a shard whose table has n slots.
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

// SetQuota bounds how many CIDs a function may have, whatever state their connections are in. One
// whose quota was never set, or is 0, gets none.
func (c *CIDs) SetQuota(function uint32, n int) {
	if n == 0 {
		delete(c.quotas, function)
		return
	}
	c.quotas[function] = n
}

// Alloc returns a new CID for a function that has less than its quota, and not so many that others
// find none.
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

// Free takes back a CID, which then rests as long as others are free.
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

// InUse counts the CIDs that are given out.
func (c *CIDs) InUse() int { return len(c.slots) - c.left }

// Held counts those of a function, and tells what it may have.
func (c *CIDs) Held(function uint32) (n, quota int) {
	return c.shares.Held(function), c.quotas[function]
}
