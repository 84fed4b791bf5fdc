package handover

import "math/bits"

// End is one shard's: what it hands to others, and what they hand to it.
type End struct {
	shard int
	in    []*ring          // those that are for it
	out   [][classes]*ring // by the shard it is for; nil for itself
	open  *ring            // of the last Put
	told  uint32           // shards that got something since Given, a bit for each
	to    uint32           // the one of the last Put
	at    int              // of in: whose turn it is
	left  int              // bytes of that turn
}

// A turn of a ring ends after so many bytes. A frame takes leastCost of it at least.
const (
	turnCost  = 32 << 10
	leastCost = 2 << 10
)

// New makes the ends of a NIC with n shards.
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

// Shards is how many there are, this one included.
func (e *End) Shards() int { return len(e.out) }

// Put makes room for a frame of n bytes for another shard. It returns nil when the ring is full, or
// the frame's flow has what it may have in it, or there is no such shard. The caller fills what it
// gets and then calls Commit.
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

// Given returns the shards that got something since the last call, a bit for each: they are to be
// woken.
func (e *End) Given() uint32 {
	told := e.told
	e.told = 0
	return told
}

// Take returns the next frame that another shard handed over, and which that is; false when there
// is none. Rings that have some take turns. The frames are good until Done.
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

// Done gives back the frames that were taken.
func (e *End) Done() {
	for _, r := range e.in {
		r.done()
	}
}

// Empty reports whether nothing waits to be taken.
func (e *End) Empty() bool {
	for _, r := range e.in {
		if !r.empty() {
			return false
		}
	}
	return true
}

// Each calls f for each shard of a set as Given returns it.
func Each(set uint32, f func(shard int)) {
	for ; set != 0; set &= set - 1 {
		f(bits.TrailingZeros32(set))
	}
}
