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
	limit      Cost
	inUse      Cost // what this node's own subtree uses
	charged    Cost // inUse, or what guarantees set aside where that is more: what counts against limit
	guarantee  Cost
	underflows uint64
	refusals   uint64
	starved    bool
}

// New makes a node below parent (nil for the root) that holds at most limit of each counter; a
// limit of 0 means none.
func New(parent *Node, limit Cost) *Node { return &Node{parent: parent, limit: limit} }

// Take charges c to the node and all levels above it, or to none of them. It returns false when any
// level lacks room.
func (n *Node) Take(c *Cost) bool {
	for m := n; m != nil; m = m.parent {
		if m.starved {
			n.refusals++
			return false
		}
	}
	for i := range c {
		if !n.room(i, c[i]) {
			n.refusals++
			return false
		}
	}
	for i := range c {
		if c[i] == 0 {
			continue
		}
		rise := c[i]
		for m := n; m != nil; m = m.parent {
			was := m.above(i, m.charged[i])
			m.inUse[i] += c[i]
			m.charged[i] += rise
			rise = m.above(i, m.charged[i]) - was
		}
	}
	return true
}

// room reports whether v more of counter i fits the node and all levels above it, each of which is
// charged what guarantees below do not cover. Nothing asked is never refused, also not while a
// lowered limit is exceeded.
func (n *Node) room(i int, v uint32) bool {
	for m := n; m != nil && v != 0; m = m.parent {
		if !m.fits(i, v) && !m.more(i, v) {
			return false
		}
		v = m.above(i, m.charged[i]+v) - m.above(i, m.charged[i])
	}
	return true
}

// TakeOne charges 1 of one counter to the node and all levels above it, or to none. With force it
// is charged whether or not there is room: what is set aside for heads of line must not wait
// (Falcon §8.2.1.1).
func (n *Node) TakeOne(i Counter, force bool) bool {
	if !force {
		for m := n; m != nil; m = m.parent {
			if !m.fits(int(i), 1) && !m.more(int(i), 1) {
				n.refusals++
				return false
			}
			if m.charged[i] < m.guarantee[i] {
				break // set aside above already
			}
		}
	}
	rises := true
	for m := n; m != nil; m = m.parent {
		m.inUse[i]++
		if rises {
			if force && !m.fits(int(i), 1) {
				m.borrow(int(i), 1) // if there is some
			}
			m.charged[i]++
			rises = m.charged[i] > m.guarantee[i]
		}
	}
	return true
}

// ReturnOne gives back what TakeOne took. It reports false, counts an underflow and changes nothing
// when there is nothing to give back.
func (n *Node) ReturnOne(i Counter) bool {
	for m := n; m != nil; m = m.parent {
		if m.inUse[i] == 0 {
			n.underflows++
			return false
		}
	}
	falls := true
	for m := n; m != nil; m = m.parent {
		m.inUse[i]--
		if falls {
			falls = m.charged[i] > m.guarantee[i]
			m.charged[i]--
			if m.lease != nil {
				m.tidy(int(i))
			}
		}
	}
	return true
}

// Headroom is how much more of a counter the node could take now.
func (n *Node) Headroom(i Counter) uint32 {
	most, aside := uint64(Unlimited), uint64(0) // aside: guaranteed to the levels passed, so not limited by those above
	for m := n; m != nil; m = m.parent {
		left := uint64(0)
		if m.limit[i] > m.charged[i] {
			left = uint64(m.limit[i] - m.charged[i])
		}
		if m.lease != nil {
			left += uint64(m.lease.pool.free[i].Load())
		}
		most = min(most, aside+left)
		if m.guarantee[i] > m.charged[i] {
			aside += uint64(m.guarantee[i] - m.charged[i])
		}
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
		if m.guarantee[i] > 0 {
			return m.inUse[i] <= m.guarantee[i]
		}
	}
	return false
}

// Spare is how much of a counter the node may take of what is guaranteed to it alone.
func (n *Node) Spare(i Counter) uint32 {
	if n.inUse[i] >= n.guarantee[i] {
		return 0
	}
	return n.guarantee[i] - n.inUse[i]
}

// Reserved reports whether the node sets something aside that is not in use.
func (n *Node) Reserved(i Counter) bool { return n.charged[i] > n.inUse[i] }

// Possible reports whether the limits leave room for c when nothing else is taken.
func (n *Node) Possible(c *Cost) bool {
	for m := n; m != nil; m = m.parent {
		for i, v := range c {
			if v > m.most(i) {
				return false
			}
		}
	}
	return true
}

// Return gives c back to the node and all levels above it. If any level holds less than c, nothing
// changes, the node counts an underflow and ErrUnderflow is returned: losing credits is safer than
// inventing them.
func (n *Node) Return(c *Cost) error {
	for i := range c {
		for m := n; m != nil && c[i] != 0; m = m.parent {
			if c[i] > m.inUse[i] {
				n.underflows++
				return ErrUnderflow
			}
		}
	}
	for i := range c {
		if c[i] == 0 {
			continue
		}
		fall := c[i]
		for m := n; m != nil; m = m.parent {
			was := m.above(i, m.charged[i])
			m.inUse[i] -= c[i]
			m.charged[i] -= fall
			if m.lease != nil {
				m.tidy(i)
			}
			fall = was - m.above(i, m.charged[i])
		}
	}
	return nil
}

// above is what the parent is charged when the node itself is charged v of counter i.
func (n *Node) above(i int, v uint32) uint32 { return max(n.guarantee[i], v) }

// Guarantee sets g aside for the node in its parent, replacing the guarantee it had. It fails with
// ErrGuarantee, and changes nothing, when the node's own limit is lower or a level above has no
// room for it.
func (n *Node) Guarantee(g Cost) error {
	for i, v := range g {
		if v > n.limit[i] {
			return fmt.Errorf("%w: %s %d is above the node's own limit %d", ErrGuarantee, Counter(i), v, n.limit[i])
		}
		was := n.above(i, n.charged[i])
		now := max(v, n.charged[i])
		for m := n.parent; m != nil && now > was; m = m.parent {
			rise := now - was
			if !m.fits(i, rise) && !m.borrow(i, rise) {
				return fmt.Errorf("%w: %s %d, %d of %d already promised", ErrGuarantee, Counter(i), v, m.charged[i], m.most(i))
			}
			was, now = m.above(i, m.charged[i]), m.above(i, m.charged[i]+rise)
		}
	}
	for i, v := range g {
		was := n.above(i, n.charged[i])
		n.promise(i, n.guarantee[i], v)
		n.guarantee[i] = v
		now := n.above(i, n.charged[i])
		for m := n.parent; m != nil && now != was; m = m.parent {
			lower, upper := was, now
			was = m.above(i, m.charged[i])
			m.charged[i] += upper - lower // wraps to a subtraction when the charge falls
			if m.lease != nil {
				m.tidy(i)
			}
			now = m.above(i, m.charged[i])
		}
	}
	return nil
}

// Drop gives back everything the node still holds, its guarantee included: what a dying connection
// or function does. Nodes below it must have been dropped before.
func (n *Node) Drop() {
	held := n.inUse
	_ = n.Return(&held)     // cannot underflow: every level above holds at least this
	_ = n.Guarantee(Cost{}) // lowering never fails
}

// InUse returns what the node and everything below it hold.
func (n *Node) InUse() Cost { return n.inUse }

// Charged returns what counts against the limit: in use plus the unused part of guarantees given to
// children.
func (n *Node) Charged() Cost { return n.charged }

// Guaranteed returns what is set aside for the node.
func (n *Node) Guaranteed() Cost { return n.guarantee }

// Limit returns the node's limit; of a node that leases from a pool, the pool's.
func (n *Node) Limit() Cost {
	if n.lease != nil {
		return n.lease.pool.total
	}
	return n.limit
}

// most is the node's limit of one counter.
func (n *Node) most(i int) uint32 {
	if n.lease != nil {
		return n.lease.pool.total[i]
	}
	return n.limit[i]
}

// used is how much of its limit the node uses, with what other trees have leased.
func (n *Node) used(i Counter) (used, limit uint64) {
	if n.lease == nil {
		return uint64(n.inUse[i]), uint64(n.limit[i])
	}
	p := n.lease.pool
	leased := uint64(p.total[i] - p.free[i].Load())
	return leased - min(uint64(n.limit[i]), leased) + uint64(n.inUse[i]), uint64(p.total[i])
}

// SetLimit resizes the node, which leases from no pool. A limit below what is in use takes nothing away: new takes are refused
// until enough came back.
func (n *Node) SetLimit(limit Cost) { n.limit = limit }

// Starve has the node, and all below it, refuse whatever is asked, or ends that. It is for tests of
// those who ask.
func (n *Node) Starve(on bool) { n.starved = on }

// Parent returns the level above, nil at the root.
func (n *Node) Parent() *Node { return n.parent }

// Underflows counts refused Returns (double releases) at this node.
func (n *Node) Underflows() uint64 { return n.underflows }

// Refusals counts refused Takes at this node.
func (n *Node) Refusals() uint64 { return n.refusals }
