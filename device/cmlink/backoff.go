package cmlink

import (
	"math/rand/v2"
	"time"
)

// backoff is how long a peer is left alone before it is dialed again: twice as long each time.
type backoff struct{ least, most, now time.Duration }

func newBackoff(c Config) backoff { return backoff{c.BackoffMin, c.BackoffMax, c.BackoffMin} }

// lasted notes how long a session was: after a long one all begins anew. One that ends at once, as
// of a peer that refuses us, changes nothing.
func (b *backoff) lasted(d time.Duration) {
	if d >= b.most {
		b.now = b.least
	}
}

// next returns how long to wait now, ±50 %: peers of a NIC that was away must not dial it in step.
func (b *backoff) next() time.Duration {
	d := b.now
	b.now = min(2*d, b.most)
	return d/2 + rand.N(d)
}
