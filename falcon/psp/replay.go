package psp

// Geometry of the window. It has one block more than it covers, so that moving it clears whole
// blocks and shifts nothing.
const (
	replayBlocks = 32 // a power of two
	replayBits   = 64

	// ReplaySpan is how far a counter may be behind the newest one and still be distinguished from
	// a replay.
	ReplaySpan = (replayBlocks - 1) * replayBits
)

// ReplayWindow is the anti-replay window of RFC 6479 over the counters of one SA. The zero value is
// an empty window that accepts any counter.
type ReplayWindow struct {
	newest uint64
	seen   [replayBlocks]uint64 // bit c%64 of block c/64%replayBlocks: c was accepted
}

// Accept reports whether counter is new, and records it. Counters more than ReplaySpan behind the
// newest are refused. Call it only for packets that authenticated.
func (w *ReplayWindow) Accept(counter uint64) bool {
	block := counter / replayBits
	if counter > w.newest {
		last := w.newest / replayBits
		for i := range min(block-last, replayBlocks) {
			w.seen[(last+1+i)%replayBlocks] = 0
		}
		w.newest = counter
	} else if w.newest-counter > ReplaySpan {
		return false
	}
	bit := uint64(1) << (counter % replayBits)
	b := &w.seen[block%replayBlocks]
	if *b&bit != 0 {
		return false
	}
	*b |= bit
	return true
}
