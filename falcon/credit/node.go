package credit

import (
	"errors"
	"fmt"
)

// ErrUnderflow is returned when more is given back than was taken: a transaction was released
// twice.
var ErrUnderflow = errors.New("credit: more returned than taken")

// ErrGuarantee is returned when a guarantee cannot be set aside in the parent.
var ErrGuarantee = errors.New("credit: guarantee does not fit in the parent's limit")

// Node is one level of the credit tree. Make it with New.
type Node struct {
	parent     *Node
	lease      *lease // of a pool; nil: none
	starved    bool
	of         [NumCounters]account
	underflows uint64
	refusals   uint64
	parked     uint64 // packets that wait for peers (park.go)
}

// costs gathers one field of all accounts.
func costs(n *Node, of func(*account) uint32) (c Cost) {
	for i := range n.of {
		c[i] = of(&n.of[i])
	}
	return c
}

// New makes a node below parent (nil for the root) that holds at most limit of each counter; a
// limit of 0 means none.
func New(parent *Node, limit Cost) *Node {
	n := &Node{parent: parent}
	n.SetLimit(limit)
	return n
}

// Take charges c to the node and all levels above it, or to none of them. It returns false when any
// level lacks room, and that level counts the refusal.
func (n *Node) Take(c *Cost) bool { return take(n, c, 1) }

// Retry is Take for one that was refused before, which is not counted again.
func (n *Node) Retry(c *Cost) bool { return take(n, c, 0) }

// take checks and counts in one pass: a refusal, which is rare, takes back what was counted.
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
// is charged whether or not there is room: what is set aside for heads of line must not wait
// (Falcon §8.2.1.1).
func (n *Node) TakeOne(i Counter, force bool) bool {
	rise := uint32(1)
	for m := n; m != nil; m = m.parent {
		a := &m.of[i]
		if force {
			if !a.fits(rise) {
				m.borrow(int(i), rise) // if there is some
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

// ReturnOne gives back what TakeOne took. It reports false, counts an underflow and changes nothing
// when there is nothing to give back.
func (n *Node) ReturnOne(i Counter) bool {
	if n.of[i].inUse == 0 {
		n.underflows++
		return false
	}
	n.refund(int(i), 1, nil)
	return true
}

// refund gives back v of a counter, to the node and the levels above it that are below end.
func (n *Node) refund(i int, v uint32, end *Node) {
	fall := v
	for m := n; m != end; m = m.parent {
		fall = m.of[i].refund(v, fall)
		if m.lease != nil {
			m.tidy(i)
		}
	}
}

// Headroom is how much more of a counter the node could take now.
func (n *Node) Headroom(i Counter) uint32 {
	most, aside := uint64(Unlimited), uint64(0) // aside: guaranteed to the levels passed, so not limited by those above
	for m := n; m != nil; m = m.parent {
		left := uint64(m.of[i].spare())
		if m.lease != nil {
			left += uint64(m.lease.pool.free[i].Load())
		}
		most = min(most, aside+left)
		aside += uint64(m.of[i].above() - m.of[i].charged)
	}
	return uint32(most)
}

// Level is how full the fullest of the node and the levels above it is of a counter, in equal steps
// from 0 to one less than there are steps.
func (n *Node) Level(i Counter, steps uint8) (level uint8) {
	for m := n; m != nil; m = m.parent {
		if used, limit := m.used(i); limit > 0 {
			level = max(level, uint8(min(used*uint64(steps)/limit, uint64(steps)-1)))
		}
	}
	return level
}

// Covered reports whether what is held of a counter is within a guarantee, of the node or of a
// level above.
func (n *Node) Covered(i Counter) bool {
	for m := n; m.parent != nil; m = m.parent {
		if m.of[i].guarantee > 0 {
			return m.of[i].inUse <= m.of[i].guarantee
		}
	}
	return false
}

// Spare is how much of a counter the node may take of what is guaranteed to it alone.
func (n *Node) Spare(i Counter) uint32 {
	return max(n.of[i].guarantee, n.of[i].inUse) - n.of[i].inUse
}

// Reserved reports whether the node sets something aside that is not in use.
func (n *Node) Reserved(i Counter) bool { return n.of[i].charged > n.of[i].inUse }

// Possible reports whether the limits leave room for c when nothing else is taken.
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

// Return gives c back to the node and all levels above it. If the node holds less than c, nothing
// changes, it counts an underflow and ErrUnderflow is returned: losing credits is safer than
// inventing them. The levels above hold at least what the node does.
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

// Guarantee sets g aside for the node in its parent, replacing the guarantee it had. It fails with
// ErrGuarantee, and changes nothing, when the node's own limit is lower or a level above has no
// room for it.
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

// Drop gives back everything the node still holds, its guarantee included: what a dying connection
// or function does. Nodes below it must have been dropped before.
func (n *Node) Drop() {
	held := n.InUse()
	_ = n.Return(&held) // cannot underflow: every level above holds at least this
	n.forget(n.parked)
	_ = n.Guarantee(Cost{}) // lowering never fails
}

// InUse returns what the node and everything below it hold.
func (n *Node) InUse() Cost { return costs(n, func(a *account) uint32 { return a.inUse }) }

// Charged returns what counts against the limit: in use plus the unused part of guarantees given to
// children.
func (n *Node) Charged() Cost { return costs(n, func(a *account) uint32 { return a.charged }) }

// Guaranteed returns what is set aside for the node.
func (n *Node) Guaranteed() Cost { return costs(n, func(a *account) uint32 { return a.guarantee }) }

// Limit returns the node's limit; of a node that leases from a pool, the pool's.
func (n *Node) Limit() Cost {
	if n.lease != nil {
		return n.lease.pool.total
	}
	return costs(n, func(a *account) uint32 { return a.limit })
}

// most is the node's limit of one counter.
func (n *Node) most(i int) uint32 {
	if n.lease != nil {
		return n.lease.pool.total[i]
	}
	return n.of[i].limit
}

// used is how much of its limit the node uses, with what other trees have leased.
func (n *Node) used(i Counter) (used, limit uint64) {
	if n.lease == nil {
		return uint64(n.of[i].inUse), uint64(n.of[i].limit)
	}
	p := n.lease.pool
	leased := uint64(p.total[i] - p.free[i].Load())
	return leased - min(uint64(n.of[i].limit), leased) + uint64(n.of[i].inUse), uint64(p.total[i])
}

// SetLimit resizes the node, which leases from no pool. A limit below what is in use takes nothing
// away: new takes are refused until enough came back.
func (n *Node) SetLimit(limit Cost) {
	for i, v := range limit {
		n.of[i].limit = v
	}
}

// Starve has the node, and all below it, refuse whatever is asked, or ends that. It is for tests of
// those who ask.
func (n *Node) Starve(on bool) { n.starved = on }

// Parent returns the level above, nil at the root.
func (n *Node) Parent() *Node { return n.parent }

// Underflows counts refused Returns (double releases) at this node.
func (n *Node) Underflows() uint64 { return n.underflows }

// Refusals counts what was refused since this node lacked room.
func (n *Node) Refusals() uint64 { return n.refusals }
