package handover

import "math/bits"

// End is one shard's: what it hands to others, and what they hand to it.
type End struct {
	shard int
	in    []*ring // by the shard it is from; nil for itself
	out   []*ring // by the shard it is for
	open  *ring   // of the last Put
	told  uint32  // shards that got something since Given, a bit for each
	to    uint32  // the one of the last Put
	from  int     // of the next Take
}

// New makes the ends of a NIC with n shards.
func New(n int) []*End {
	ends := make([]*End, n)
	for i := range ends {
		ends[i] = &End{shard: i, in: make([]*ring, n), out: make([]*ring, n)}
	}
	for i, from := range ends {
		for j, to := range ends {
			if i != j {
				from.out[j] = newRing()
				to.in[i] = from.out[j]
			}
		}
	}
	return ends
}

// Shards is how many there are, this one included.
func (e *End) Shards() int { return len(e.in) }

// Put makes room for a frame of n bytes for another shard. It returns nil when the ring is full or
// there is no such shard. The caller fills what it gets and then calls Commit.
func (e *End) Put(to int, h *Header, n int) []byte {
	if to == e.shard || to < 0 || to >= len(e.out) || n > MaxFrame {
		return nil
	}
	b := e.out[to].put(h, n)
	e.open, e.to = e.out[to], 1<<to
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
// is none. The frames are good until Done.
func (e *End) Take(f *Frame) (from int, ok bool) {
	for range e.in {
		r := e.in[e.from]
		if r != nil && r.take(f) {
			return e.from, true
		}
		e.from = (e.from + 1) % len(e.in)
	}
	return 0, false
}

// Done gives back the frames that were taken. The next are another shard's, if it has some.
func (e *End) Done() {
	e.from = (e.from + 1) % len(e.in)
	for _, r := range e.in {
		if r != nil {
			r.done()
		}
	}
}

// Empty reports whether nothing waits to be taken.
func (e *End) Empty() bool {
	for _, r := range e.in {
		if r != nil && !r.empty() {
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
