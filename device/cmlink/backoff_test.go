package cmlink

import (
	"testing"
	"time"
)

// TestTheWaitDoublesUpToItsMaximum: the wait doubles up to its maximum, and starts again after a long session.
func TestTheWaitDoublesUpToItsMaximum(t *testing.T) {
	const least, most = 100 * time.Millisecond, 500 * time.Millisecond
	b := newBackoff(Config{BackoffMin: least, BackoffMax: most})
	for _, session := range []time.Duration{0, most - 1, most} {
		b.lasted(session)
		after := []time.Duration{least, 2 * least, 4 * least, most, most}
		if session < most && session > 0 {
			after = []time.Duration{most}
		}
		for i, d := range after {
			at := b
			for range 64 {
				b = at
				if w := b.next(); w < d/2 || w >= d+d/2 {
					t.Fatalf("wait %d after a session of %v: %v, want %v ± 50 %%", i, session, w, d)
				}
			}
		}
	}
}
