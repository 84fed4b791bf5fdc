package device

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/rdma"
)

// A connection identifier, 24 bits, names the place of its connection:
//
//	23    20 19        14 13            0
//	[ shard ][ generation ][ slot index ]
//
// The generation makes a CID differ from the last one of the same slot, on top
// of the rest that the connection manager gives to each CID.
const (
	cidIndexBits = 14
	cidGenBits   = 6
	cidShardBits = 4

	maxSlots  = 1 << cidIndexBits
	maxShards = 1 << cidShardBits
)

var errNoCID = errors.New("device: no connection identifier left")

// slot is what a CID leads to.
type slot struct {
	cid   uint32
	gen   uint32
	used  bool   // allocated; open when conn or loop is set
	owner uint32 // function it is allocated to

	conn  *falcon.Conn
	loop  *rdma.Loopback // instead, for a connection inside the NIC
	guard psp.Guard
	tx    *txSA
	peer  *peer
	fn    *function
	id    uint32 // of the connection manager

	draining bool // its driver disconnected it
	parting  bool // the connection manager knows that it has ended

	credits *credit.Node // the connection's, below its function's

	inner underlay.Inner // as we send: from our function to the peer's
	flow  uint32         // picks the first path
}

// slots is the table of a shard's connection identifiers.
type slots struct {
	shard  uint32
	table  []slot
	free   []uint32          // indices, taken from the front: the longest unused first
	shares cm.Shares[uint32] // of functions
}

func newSlots(shard, n int) *slots {
	t := &slots{shard: uint32(shard), table: make([]slot, n), shares: cm.Shares[uint32]{Size: n, Multiple: 3}}
	for i := range n {
		t.free = append(t.free, uint32(i))
	}
	return t
}

// srcPort is the outer UDP source port: it spreads connections over paths, and
// a connection that the transport repaths moves to another (docs/wire.md).
func (s *slot) srcPort() uint16 {
	return firstPort + uint16((s.flow+uint32(s.conn.Path()))%paths)
}

// class is the outer TOS or traffic class: the DSCP of the inner header (RFC 2983 §3.1, uniform),
// and ECT(0), since Falcon takes marks for itself (RFC 6040 §4.1).
func (s *slot) class() uint8 { return s.inner.Class&^3 | underlay.ECT0 }

// alloc returns a new CID for a function that may have up to quota of them, whatever state their
// connections are in, and not so many that others find none.
func (t *slots) alloc(owner uint32, quota int) (uint32, error) {
	switch n := t.shares.Held(owner); {
	case n >= quota:
		return 0, fmt.Errorf("%w: the function has %d, as many as its limits allow", errNoCID, n)
	case !t.shares.Room(owner):
		return 0, fmt.Errorf("%w: the function has %d and %d of %d are free, for others", errNoCID, n, len(t.free), len(t.table))
	}
	t.shares.Take(owner)
	i := t.free[0]
	t.free = t.free[:copy(t.free, t.free[1:])]
	s := &t.table[i]
	s.gen = (s.gen + 1) & (1<<cidGenBits - 1)
	s.cid = t.shard<<(cidIndexBits+cidGenBits) | s.gen<<cidIndexBits | i
	s.used, s.owner = true, owner
	return s.cid, nil
}

// release makes a CID free. It must not be open.
func (t *slots) release(cid uint32) {
	s := t.find(cid)
	if s == nil {
		return
	}
	t.shares.Give(s.owner)
	*s = slot{gen: s.gen}
	t.free = append(t.free, cid&(maxSlots-1))
}

// find returns the slot of an allocated CID, or nil.
func (t *slots) find(cid uint32) *slot {
	i := cid & (maxSlots - 1)
	if int(i) >= len(t.table) {
		return nil
	}
	s := &t.table[i]
	if !s.used || s.cid != cid {
		return nil
	}
	return s
}

// open returns the slot of an open connection, or nil.
func (t *slots) open(cid uint32) *slot {
	s := t.find(cid)
	if s == nil || s.conn == nil {
		return nil
	}
	return s
}

// close takes the connection out of its slot; the CID stays allocated until
// the connection manager frees it.
func (s *slot) close() {
	*s = slot{cid: s.cid, gen: s.gen, used: s.used, owner: s.owner}
}

// inUse counts allocated CIDs.
func (t *slots) inUse() int { return len(t.table) - len(t.free) }
