package credit

import "sync/atomic"

// Pool is what several trees share, each of which has an owner of its own: the shards of a NIC.
// Each tree leases a part of it for its node at that level (Pool.Node), and counts on with that
// alone. A tree leases more when it needs it, in chunks, and gives back what it does not use.
// Guarantees are leased for as long as they last, so no other tree can take them.
//
//	tree 0                 tree 1
//	functions              functions
//	    │                      │
//	  Node ── lease ─▶ Pool ◀── lease ── Node
//
// A tree that is refused says that it wants some. The others then give back what they do not use at
// the end of their step (Node.Waiters), and lease no more than their equal part of what nobody has
// a guarantee of, until it has had its turn (Node.Offered).
type Pool struct {
	total  Cost
	chunk  Cost
	trees  uint32
	free   [NumCounters]atomic.Uint32
	aside  [NumCounters]atomic.Uint32 // for guarantees
	wants  [NumCounters]atomic.Uint32 // trees that were refused some, by their bits
	wanted atomic.Uint32              // the same, of all counters
	called atomic.Uint32              // of those, the ones that are to look again
}

// chunksPerTree is in how many parts a tree leases what would be its equal part.
const chunksPerTree = 8

// NewPool returns a pool of a limit for at most 32 trees. A single tree leases all at once.
func NewPool(limit Cost, trees int) *Pool {
	p := &Pool{total: limit, chunk: limit, trees: uint32(trees)}
	for i, v := range limit {
		p.free[i].Store(v)
		if trees > 1 {
			p.chunk[i] = max(1, v/uint32(trees*chunksPerTree))
		}
	}
	return p
}

// Node makes the node of a tree at the level of the pool, below parent (nil for the root). It
// belongs to the tree's owner.
func (p *Pool) Node(parent *Node, tree int) *Node {
	return &Node{parent: parent, lease: &lease{pool: p, bit: 1 << tree}}
}

// Free is what no tree has leased.
func (p *Pool) Free() (c Cost) {
	for i := range c {
		c[i] = p.free[i].Load()
	}
	return c
}

// lease is a tree's part of a pool. The limit of its node is what it has leased.
type lease struct {
	pool  *Pool
	bit   uint32 // of the tree
	aside Cost   // of what it leased, what is guaranteed
	gave  uint32 // counters that it gave something back of, since Waiters
}

// lend decides where a node lacks room for v of a counter, or others want something of its pool: it
// leases what the node lacks, or nothing. Nothing asked is never refused, also not while a lowered
// limit is exceeded.
func (n *Node) lend(i int, v uint32) bool {
	if v == 0 {
		return true
	}
	if n.lease == nil {
		return false
	}
	if n.owes(i, v) {
		n.want(i)
		return false
	}
	if n.of[i].fits(v) || n.borrow(i, v) {
		return true
	}
	n.want(i) // first, so that who gives something back from now on sees it
	return n.borrow(i, v)
}

// disputed tells whether another tree wants something of the pool.
func (n *Node) disputed() bool {
	l := n.lease
	return l != nil && l.pool.wanted.Load()&^l.bit != 0
}

// owes tells whether v more would be of what another tree wants: it was refused some, and this one
// has more than its part. What comes back to such a tree is not to be taken again before its step
// ends, or it would never be idle, and the other never had its turn.
func (n *Node) owes(i int, v uint32) bool {
	l := n.lease
	return n.disputed() && l.pool.wants[i].Load()&^l.bit != 0 && !n.entitled(i, v)
}

// borrow leases for the node what it lacks to take v of a counter, or nothing, whoever else wants
// it.
func (n *Node) borrow(i int, v uint32) bool {
	if n.lease == nil {
		return false
	}
	lacks := uint64(n.of[i].charged) + uint64(v) - uint64(n.of[i].limit)
	got := uint32(0)
	if lacks <= uint64(Unlimited) {
		got = n.lease.pool.take(i, uint32(lacks))
	}
	n.of[i].limit += got
	return got > 0
}

// entitled tells whether v more is within the tree's part of what is not set aside for guarantees.
// One that has nothing of that may always take something.
func (n *Node) entitled(i int, v uint32) bool {
	l := n.lease
	shared := l.pool.total[i] - min(l.pool.aside[i].Load(), l.pool.total[i])
	part := (uint64(shared) + uint64(l.pool.trees) - 1) / uint64(l.pool.trees)
	has := n.of[i].charged - min(l.aside[i], n.of[i].charged)
	return has == 0 || uint64(has)+uint64(v) <= part
}

// want has others give back what they do not use of a counter, here and at the levels above.
func (n *Node) want(i int) {
	for m := n; m != nil; m = m.parent {
		if l := m.lease; l != nil && l.pool.wants[i].Load()&l.bit == 0 {
			l.pool.wants[i].Or(l.bit)
			l.pool.wanted.Or(l.bit)
		}
	}
}

// take takes v of a counter, or a chunk if that is more and there, or nothing.
func (p *Pool) take(i int, v uint32) uint32 {
	for {
		free := p.free[i].Load()
		if free < v {
			return 0
		}
		n := min(max(v, p.chunk[i]), free)
		if p.free[i].CompareAndSwap(free, free-n) {
			return n
		}
	}
}

// giveBack leaves the node at most keep of a counter that is not in use.
func (n *Node) giveBack(i int, keep uint32) {
	if spare := n.of[i].spare(); spare > keep {
		n.of[i].limit -= spare - keep
		n.lease.pool.free[i].Add(spare - keep)
		n.lease.gave |= 1 << i
	}
}

// tidy gives back what is more than two chunks.
func (n *Node) tidy(i int) {
	if chunk := n.lease.pool.chunk[i]; uint64(n.of[i].limit) > uint64(n.of[i].charged)+2*uint64(chunk) {
		n.giveBack(i, chunk)
	}
}

// Settle gives back to the pools of the node and of the levels above what they have leased and do
// not use. The tree's owner calls it when it comes to rest, and Waiters then.
func (n *Node) Settle() {
	for m := n; m != nil; m = m.parent {
		if m.lease == nil || m.lease.pool.trees == 1 {
			continue
		}
		for i := range m.of {
			m.giveBack(i, 0)
		}
	}
}

// Waiters gives back what other trees want and this one does not use, and returns the bits of those
// that were refused something which was given back since: their owners are to call Offered. The
// owner of this tree calls it after each step.
func (n *Node) Waiters() (trees uint32) {
	for m := n; m != nil; m = m.parent {
		if m.disputed() {
			trees |= m.waiters()
		}
	}
	return trees
}

func (n *Node) waiters() (trees uint32) {
	p := n.lease.pool
	for i := range n.of {
		if w := p.wants[i].Load() &^ n.lease.bit; w != 0 {
			n.giveBack(i, 0)
			if n.lease.gave&(1<<i) != 0 {
				trees |= w
			}
		}
	}
	n.lease.gave = 0
	if trees == 0 {
		return 0
	}
	return trees &^ p.called.Or(trees)
}

// Called reports whether this tree was refused something that may be had now.
func (n *Node) Called() bool {
	for m := n; m != nil; m = m.parent {
		if m.called() {
			return true
		}
	}
	return false
}

func (n *Node) called() bool { return n.lease != nil && n.lease.pool.called.Load()&n.lease.bit != 0 }

// Offered is Called, and gives the tree its turn if so: what asked before is to ask again.
func (n *Node) Offered() (yes bool) {
	for m := n; m != nil; m = m.parent {
		if !m.called() {
			continue
		}
		p, others := m.lease.pool, ^m.lease.bit
		for i := range p.wants {
			p.wants[i].And(others)
		}
		p.wanted.And(others)
		p.called.And(others)
		yes = true
	}
	return yes
}

// promise notes at the levels above that another amount of a counter is guaranteed to the node.
func (n *Node) promise(i int, was, now uint32) {
	for m := n.parent; m != nil; m = m.parent {
		if m.lease != nil {
			m.lease.aside[i] += now - was // wraps to a subtraction when it falls
			m.lease.pool.aside[i].Add(now - was)
		}
	}
}
