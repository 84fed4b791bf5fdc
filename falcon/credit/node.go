package credit

import (
	"errors"
	"fmt"
)

// ErrUnderflow is returned when more is returned than was taken, because a transaction was released
// twice.
var ErrUnderflow = errors.New("credit: more returned than taken")

// ErrGuarantee is returned when a guarantee cannot be set aside in the parent.
var ErrGuarantee = errors.New("credit: guarantee does not fit in the parent's limit")

// Node is one level of the credit tree. Make it with New.
type Node struct {
	parent     *Node
	lease      *lease // nil: not of a pool
	starved    bool
	of         [NumCounters]account
	underflows uint64
	refusals   uint64
	parked     uint64 // packets that wait for peers (park.go)
}

// costs returns one field of all accounts.
func costs(n *Node, of func(*account) uint32) (c Cost) {
	for i := range n.of {
		c[i] = of(&n.of[i])
	}
	return c
}

// New makes a node below parent (nil for the root) that holds at most limit of each counter. A
// limit of 0 allows nothing.
func New(parent *Node, limit Cost) *Node {
	n := &Node{parent: parent}
	n.SetLimit(limit)
	return n
}

// Take charges c to the node and all levels above it, or to none of them. It returns false if a
// level lacks room; that level counts the refusal.
func (n *Node) Take(c *Cost) bool { return take(n, c, 1) }

// Retry does what Take does, for a cost that was refused before. Another refusal is not counted
// again.
func (n *Node) Retry(c *Cost) bool { return take(n, c, 0) }

// take checks and counts in one pass. A refusal, which is rare, undoes what was counted.
func take(n *Node, c *Cost, refusal uint64) bool {
	for m := n; m != nil; m = m.parent {
		if m.starved {
			m.refusals += refusal
			return false
		}
	}
	for i, v := range c[:] {
		if v == 0 {
			continue
		}
		rise := v
		for m := n; m != nil; m = m.parent {
			a := &m.of[i]
			if (!a.fits(rise) || m.disputed()) && !m.lend(i, rise) {
				m.refusals += refusal
				for j, v := range c[:i] {
					n.refund(j, v, nil)
				}
				n.refund(i, v, m)
				return false
			}
			rise = a.charge(v, rise)
		}
	}
	return true
}

// TakeOne charges 1 of one counter to the node and all levels above it, or to none. With force it
// is charged whether or not there is room: a head of line must not wait (Falcon §8.2.1.1).
func (n *Node) TakeOne(i Counter, force bool) bool {
	rise := uint32(1)
	for m := n; m != nil; m = m.parent {
		a := &m.of[i]
		if force {
			if !a.fits(rise) {
				m.borrow(int(i), rise) // if the pool has some
			}
		} else if (!a.fits(rise) || m.disputed()) && !m.lend(int(i), rise) {
			n.refund(int(i), 1, m)
			m.refusals++
			return false
		}
		rise = a.charge(1, rise)
	}
	return true
}

// ReturnOne returns what TakeOne took. If nothing is taken, it changes nothing, counts an underflow
// and returns false.
func (n *Node) ReturnOne(i Counter) bool {
	if n.of[i].inUse == 0 {
		n.underflows++
		return false
	}
	n.refund(int(i), 1, nil)
	return true
}

// refund returns v of a counter to the node and to the levels above it, up to but not including
// end.
func (n *Node) refund(i int, v uint32, end *Node) {
	fall := v
	for m := n; m != end; m = m.parent {
		fall = m.of[i].refund(v, fall)
		if m.lease != nil {
			m.tidy(i)
		}
	}
}

// Headroom returns how much more of a counter the node could take now.
func (n *Node) Headroom(i Counter) uint32 {
	most, aside := uint64(Unlimited), uint64(0) // aside: unused guarantees of lower levels, which the levels above do not limit
	for m := n; m != nil; m = m.parent {
		left := uint64(m.of[i].spare())
		if m.lease != nil {
			left += uint64(m.lease.said(m.lease.pool.free[i].Load()))
		}
		most = min(most, aside+left)
		aside += uint64(m.of[i].above() - m.of[i].charged)
	}
	return uint32(most)
}

// Level returns how full a counter is, as one of steps equal levels from 0 on. It is that of the
// fullest among the node and the levels above it.
func (n *Node) Level(i Counter, steps uint8) (level uint8) {
	for m := n; m != nil; m = m.parent {
		if used, limit := m.used(i); limit > 0 {
			level = max(level, uint8(min(used*uint64(steps)/limit, uint64(steps)-1)))
		}
	}
	return level
}

// Covered reports whether what is used of a counter is within a guarantee, of the node or of a
// level above.
func (n *Node) Covered(i Counter) bool {
	for m := n; m.parent != nil; m = m.parent {
		if m.of[i].guarantee > 0 {
			return m.of[i].inUse <= m.of[i].guarantee
		}
	}
	return false
}

// Spare returns how much of its own guarantee the node has left of a counter.
func (n *Node) Spare(i Counter) uint32 {
	return max(n.of[i].guarantee, n.of[i].inUse) - n.of[i].inUse
}

// Reserved reports whether the node sets aside something that is not in use.
func (n *Node) Reserved(i Counter) bool { return n.of[i].charged > n.of[i].inUse }

// Possible reports whether the limits have room for c if nothing else is taken.
func (n *Node) Possible(c *Cost) bool {
	for i, v := range c[:] {
		if v == 0 {
			continue
		}
		for m := n; m != nil; m = m.parent {
			if v > m.most(i) {
				return false
			}
		}
	}
	return true
}

// Return returns c to the node and all levels above it. If the node holds less than c, it changes
// nothing, counts an underflow and returns ErrUnderflow: losing credits is safer than inventing
// them. The levels above hold at least what the node holds.
func (n *Node) Return(c *Cost) error {
	of := n.of[:]
	for i, v := range c[:] {
		if v > of[i].inUse {
			n.underflows++
			return ErrUnderflow
		}
	}
	for i, v := range c[:] {
		if v == 0 {
			continue
		}
		fall := v
		for m := n; m != nil; m = m.parent {
			fall = m.of[i].refund(v, fall)
			if m.lease != nil {
				m.tidy(i)
			}
		}
	}
	return nil
}

// Guarantee sets g aside for the node in its parent, in place of its previous guarantee. It fails
// with ErrGuarantee, and changes nothing, if the node's own limit is lower than g or a level above
// has no room for it.
func (n *Node) Guarantee(g Cost) error {
	for i, v := range g {
		if v > n.of[i].limit {
			return fmt.Errorf("%w: %s %d is above the node's own limit %d", ErrGuarantee, Counter(i), v, n.of[i].limit)
		}
		was := n.of[i].above()
		now := max(v, n.of[i].charged)
		for m := n.parent; m != nil && now > was; m = m.parent {
			rise := now - was
			if !m.of[i].fits(rise) && !m.borrow(i, rise) {
				return fmt.Errorf("%w: %s %d, %d of %d already promised", ErrGuarantee, Counter(i), v, m.of[i].charged, m.most(i))
			}
			was, now = m.of[i].above(), max(m.of[i].guarantee, m.of[i].charged+rise)
		}
	}
	for i, v := range g {
		was := n.of[i].above()
		n.promise(i, n.of[i].guarantee, v)
		n.of[i].guarantee = v
		now := n.of[i].above()
		for m := n.parent; m != nil && now != was; m = m.parent {
			lower, upper := was, now
			was = m.of[i].above()
			m.of[i].charged += upper - lower // wraps to a subtraction when the charge falls
			if m.lease != nil {
				m.tidy(i)
			}
			now = m.of[i].above()
		}
	}
	return nil
}

// Drop returns everything the node still holds, and its guarantee. It is for a connection or
// function that ends. Nodes below it must have been dropped before.
func (n *Node) Drop() {
	held := n.InUse()
	_ = n.Return(&held) // cannot underflow: every level above holds at least this
	n.forget(n.parked)
	_ = n.Guarantee(Cost{}) // lowering never fails
}

// InUse returns what the node and everything below it hold.
func (n *Node) InUse() Cost { return costs(n, func(a *account) uint32 { return a.inUse }) }

// Charged returns what counts against the limit: what is in use, and the unused part of the
// children's guarantees.
func (n *Node) Charged() Cost { return costs(n, func(a *account) uint32 { return a.charged }) }

// Guaranteed returns the node's guarantee.
func (n *Node) Guaranteed() Cost { return costs(n, func(a *account) uint32 { return a.guarantee }) }

// Limit returns the node's limit. For a node that leases from a pool it is the pool's.
func (n *Node) Limit() Cost {
	if n.lease != nil {
		return n.lease.pool.total
	}
	return costs(n, func(a *account) uint32 { return a.limit })
}

// most returns the node's limit of one counter.
func (n *Node) most(i int) uint32 {
	if n.lease != nil {
		return n.lease.pool.total[i]
	}
	return n.of[i].limit
}

// used returns how much of a counter is used and its limit. For a node of a pool it includes what
// other trees have leased.
func (n *Node) used(i Counter) (used, limit uint64) {
	if n.lease == nil {
		return uint64(n.of[i].inUse), uint64(n.of[i].limit)
	}
	p := n.lease.pool
	leased := uint64(p.total[i] - n.lease.said(p.free[i].Load()))
	return leased - min(uint64(n.of[i].limit), leased) + uint64(n.of[i].inUse), uint64(p.total[i])
}

// SetLimit changes the limit of the node, which must not lease from a pool. If the limit is below
// what is in use, nothing is taken away, but new takes are refused until enough was returned.
func (n *Node) SetLimit(limit Cost) {
	for i, v := range limit {
		n.of[i].limit = v
	}
}

// Starve makes the node, and all below it, refuse everything, or ends that. It is for tests.
func (n *Node) Starve(on bool) { n.starved = on }

// Parent returns the level above, nil at the root.
func (n *Node) Parent() *Node { return n.parent }

// Underflows returns the number of refused Returns (double releases) at this node.
func (n *Node) Underflows() uint64 { return n.underflows }

// Refusals returns the number of takes that were refused because this node lacked room.
func (n *Node) Refusals() uint64 { return n.refusals }
