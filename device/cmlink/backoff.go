package cmlink

import (
	"math/rand/v2"
	"time"
)

// backoff is the wait before a peer is dialed again. It doubles each time.
type backoff struct{ least, most, now time.Duration }

func newBackoff(c Config) backoff { return backoff{c.BackoffMin, c.BackoffMax, c.BackoffMin} }

// lasted reports the length of a session. A long session resets the wait. A session that ended at
// once, for example because the peer refuses us, changes nothing.
func (b *backoff) lasted(d time.Duration) {
	if d >= b.most {
		b.now = b.least
	}
}

// next returns how long to wait now, ±50 %, so that the peers of a NIC that was away do not all
// dial it at the same time.
func (b *backoff) next() time.Duration {
	d := b.now
	b.now = min(2*d, b.most)
	return d/2 + rand.N(d)
}
