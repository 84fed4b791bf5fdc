package credit

import (
	"sync/atomic"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// Pool is a level that several trees share, each with its own owner: the shards of a NIC. Each tree
// leases a part of it for its node at that level (Pool.Node), and counts with that part alone. A
// tree leases more when it needs it, in chunks, and gives back what it does not use. Guarantees are
// leased for as long as they last, so no other tree can take them.
//
//	tree 0                 tree 1
//	functions              functions
//	    │                      │
//	  Node ── lease ─▶ Pool ◀── lease ── Node
//
// A tree that is refused records that it wants some. Until it has had its turn (Node.Offered), the
// other trees give back what they do not use at the end of their step (Node.Waiters), and lease no
// more than their equal part of what is not guaranteed.
type Pool struct {
	total  Cost
	chunk  Cost
	trees  uint32
	free   [NumCounters]atomic.Uint32
	aside  [NumCounters]atomic.Uint32 // for guarantees
	wants  [NumCounters]atomic.Uint32 // bit set of the trees that were refused some
	wanted atomic.Uint32              // the same for all counters
	called atomic.Uint32              // of wanted: the trees that should try again
}

// chunksPerTree is the number of chunks in a tree's equal part of the pool.
const chunksPerTree = 8

// NewPool returns a pool with a limit for at most 32 trees. A single tree has all of it.
func NewPool(limit Cost, trees int) *Pool {
	p := &Pool{total: limit, trees: uint32(trees)}
	if trees > 1 {
		for i, v := range limit {
			p.free[i].Store(v)
			p.chunk[i] = max(1, v/uint32(trees*chunksPerTree))
		}
	}
	return p
}

// Node makes the node of a tree at the level of the pool, below parent (nil for the root). It
// belongs to the tree's owner. A single tree needs no lease, which would take more time per packet
// than counting does.
func (p *Pool) Node(parent *Node, tree int) *Node {
	if p.trees == 1 {
		return New(parent, p.total)
	}
	return &Node{parent: parent, lease: &lease{pool: p, bit: 1 << tree}}
}

// Free returns what no tree has leased.
func (p *Pool) Free() (c Cost) {
	for i := range c {
		c[i] = p.free[i].Load()
	}
	return c
}

// lease is a tree's part of a pool. The limit of its node is what the tree has leased.
type lease struct {
	pool  *Pool
	bit   uint32 // of the tree
	aside Cost   // guaranteed part of what it leased
	gave  uint32 // bit set of the counters of which it gave something back since Waiters
	tape  *tape.Tape
}

// UseTape makes a tape record what the pools of the node and of the levels above say, or say it.
func (n *Node) UseTape(t *tape.Tape) {
	for m := n; m != nil; m = m.parent {
		if m.lease != nil {
			m.lease.tape = t
		}
	}
}

// said passes what the pool said through the tape.
func (l *lease) said(v uint32) uint32 {
	if l.tape == nil {
		return v
	}
	return uint32(l.tape.Number(tape.Pool, uint64(v)))
}

func (l *lease) is(v bool) bool { return l.tape.Bool(tape.Pool, v) }

// lend is called when a node lacks room for v of a counter, or others want something of its pool.
// It leases what the node lacks, or nothing. A v of 0 is never refused, even while a lowered limit
// is exceeded.
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
	n.want(i) // before the second attempt, so that a tree that gives something back from now on sees it
	return n.borrow(i, v)
}

// disputed reports whether another tree wants something of the node's pool.
func (n *Node) disputed() bool { return n.lease != nil && n.lease.disputed() }

func (l *lease) disputed() bool { return l.is(l.pool.wanted.Load()&^l.bit != 0) }

// owes reports whether v more would be taken from what another tree wants: that tree was refused
// some, and this one has more than its part. What is returned to such a tree must not be taken
// again before its step ends. Otherwise it would never be idle, and the other would never have its
// turn.
func (n *Node) owes(i int, v uint32) bool {
	l := n.lease
	return n.disputed() && l.is(l.pool.wants[i].Load()&^l.bit != 0) && !n.entitled(i, v)
}

// borrow leases what the node lacks to take v of a counter, or nothing. It does not consider other
// trees.
func (n *Node) borrow(i int, v uint32) bool {
	if n.lease == nil {
		return false
	}
	lacks := uint64(n.of[i].charged) + uint64(v) - uint64(n.of[i].limit)
	got := uint32(0)
	if lacks <= uint64(Unlimited) {
		got = n.lease.said(n.lease.pool.take(i, uint32(lacks)))
	}
	n.of[i].limit += got
	return got > 0
}

// entitled reports whether v more is within the tree's equal part of what is not set aside for
// guarantees. A tree that has nothing of that may always take something.
func (n *Node) entitled(i int, v uint32) bool {
	l := n.lease
	shared := l.pool.total[i] - min(l.said(l.pool.aside[i].Load()), l.pool.total[i])
	part := (uint64(shared) + uint64(l.pool.trees) - 1) / uint64(l.pool.trees)
	has := n.of[i].charged - min(l.aside[i], n.of[i].charged)
	return has == 0 || uint64(has)+uint64(v) <= part
}

// want makes other trees give back what they do not use of a counter, here and at the levels above.
func (n *Node) want(i int) {
	for m := n; m != nil; m = m.parent {
		if l := m.lease; l != nil && l.pool.wants[i].Load()&l.bit == 0 {
			l.pool.wants[i].Or(l.bit)
			l.pool.wanted.Or(l.bit)
		}
	}
}

// take takes v of a counter, or a chunk if that is more and available, or nothing.
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

// giveBack gives back what is not in use of a counter, except for keep.
func (n *Node) giveBack(i int, keep uint32) {
	if spare := n.of[i].spare(); spare > keep {
		n.of[i].limit -= spare - keep
		n.lease.pool.free[i].Add(spare - keep)
		n.lease.gave |= 1 << i
	}
}

// tidy gives back all but one chunk when more than two are not in use.
func (n *Node) tidy(i int) {
	if chunk := n.lease.pool.chunk[i]; uint64(n.of[i].limit) > uint64(n.of[i].charged)+2*uint64(chunk) {
		n.giveBack(i, chunk)
	}
}

// Settle gives back to the pools of the node and of the levels above what is leased and not used.
// The tree's owner calls it when it becomes idle, and then Waiters.
func (n *Node) Settle() {
	for m := n; m != nil; m = m.parent {
		if m.lease == nil {
			continue
		}
		for i := range m.of {
			m.giveBack(i, 0)
		}
	}
}

// Waiters gives back what other trees want and this one does not use. It returns the bits of the
// trees that were refused something which has been given back since; their owners must call
// Offered. The owner of this tree calls Waiters after each step.
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
		if w := n.lease.said(p.wants[i].Load() &^ n.lease.bit); w != 0 {
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

// Called reports whether this tree was refused something that may be available now.
func (n *Node) Called() bool {
	for m := n; m != nil; m = m.parent {
		if m.called() {
			return true
		}
	}
	return false
}

func (n *Node) called() bool { return n.lease != nil && n.lease.pool.called.Load()&n.lease.bit != 0 }

// Offered does what Called does and, if the result is true, begins the tree's turn: whoever was
// refused must try again.
func (n *Node) Offered() (yes bool) {
	for m := n; m != nil; m = m.parent {
		if m.lease == nil || !m.lease.is(m.called()) {
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

// promise records at the levels above that the guarantee of the node changes from was to now.
func (n *Node) promise(i int, was, now uint32) {
	for m := n.parent; m != nil; m = m.parent {
		if m.lease != nil {
			m.lease.aside[i] += now - was // wraps to a subtraction when it falls
			m.lease.pool.aside[i].Add(now - was)
		}
	}
}
