package handover

import "math/bits"

// End is one shard's end of the handover: it sends to and receives from the other shards.
type End struct {
	shard int
	in    []*ring          // rings to this shard
	out   [][classes]*ring // rings to other shards, by shard; nil for itself
	open  *ring            // ring of the last Put
	told  uint32           // shards that were given something since Given, one bit each
	to    uint32           // shard of the last Put, as a bit
	at    int              // index in in of the ring whose turn it is
	left  int              // bytes left of that turn
}

// The turn of a ring ends after turnCost bytes. A frame counts for at least leastCost.
const (
	turnCost  = 32 << 10
	leastCost = 2 << 10
)

// New returns the ends of a NIC with n shards.
func New(n int) []*End {
	ends := make([]*End, n)
	for i := range ends {
		ends[i] = &End{shard: i, out: make([][classes]*ring, n), left: turnCost}
	}
	for i, from := range ends {
		for j, to := range ends {
			if i == j {
				continue
			}
			for class := range classes {
				r := newRing(i)
				from.out[j][class] = r
				to.in = append(to.in, r)
			}
		}
	}
	return ends
}

// Shards returns the number of shards, this one included.
func (e *End) Shards() int { return len(e.out) }

// Put makes room for a frame of n bytes for another shard. It returns nil if the ring is full, the
// frame's flow has used its part of the ring, or there is no such shard. The caller fills the room
// and then calls Commit.
func (e *End) Put(to int, h *Header, n int) []byte {
	if to == e.shard || to < 0 || to >= len(e.out) || n > MaxFrame {
		return nil
	}
	r := e.out[to][h.Kind.class()]
	b := r.put(h, n)
	e.open, e.to = r, 1<<to
	return b
}

// Commit hands over the frame of the last Put.
func (e *End) Commit() {
	e.open.commit()
	e.told |= e.to
}

// Given returns the shards that were given something since the last call, one bit each: they have
// to be woken.
func (e *End) Given() uint32 {
	told := e.told
	e.told = 0
	return told
}

// Take returns the next frame that another shard handed over, and the number of that shard; false
// if there is none. Rings with frames take turns. The frames are valid until Done.
func (e *End) Take(f *Frame) (from int, ok bool) {
	for range len(e.in) + 1 {
		r := e.in[e.at]
		if e.left > 0 && r.take(f) {
			e.left -= max(len(f.Data), leastCost)
			return r.from, true
		}
		e.at, e.left = (e.at+1)%len(e.in), turnCost
	}
	return 0, false
}

// Done releases the frames that were taken.
func (e *End) Done() {
	for _, r := range e.in {
		r.done()
	}
}

// Empty reports whether no frames wait.
func (e *End) Empty() bool {
	for _, r := range e.in {
		if !r.empty() {
			return false
		}
	}
	return true
}

// Each calls f for each shard of a set that Given returned.
func Each(set uint32, f func(shard int)) {
	for ; set != 0; set &= set - 1 {
		f(bits.TrailingZeros32(set))
	}
}
