package sim

import (
	"math"
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon"
)

// completions counts operations by the time from their arrival to the acknowledgement of their last
// packet. Operations that arrive before the end of the warm-up do not count.
type completions struct {
	since  falcon.Time // the end of the warm-up, never until it is known
	counts [buckets]uint64
	n      uint64
}

// Times are counted in buckets whose width is at most 1/256 of the times in them. Each time below
// 256 ns has its own bucket, and each doubling from there on has 256 buckets.
const (
	bucketBits = 8
	buckets    = (64 - bucketBits) << bucketBits
)

func bucket(t uint64) int {
	if t < 1<<bucketBits {
		return int(t)
	}
	shift := bits.Len64(t) - bucketBits - 1
	return shift<<bucketBits + int(t>>shift)
}

// upTo returns the longest time that a bucket counts.
func upTo(bucket int) falcon.Time {
	shift := max(bucket>>bucketBits-1, 0)
	return falcon.Time(bucket-shift<<bucketBits+1)<<shift - 1
}

func (c *completions) add(arrived, now falcon.Time) {
	if arrived >= c.since {
		c.counts[bucket(uint64(now-arrived))]++
		c.n++
	}
}

// quantile returns a time that the given share of the operations did not exceed, 0 if there were
// none.
func (c *completions) quantile(share float64) falcon.Time {
	rest := uint64(math.Ceil(share * float64(c.n)))
	for i, n := range c.counts {
		if n >= rest && n > 0 {
			return upTo(i)
		}
		rest -= min(rest, n)
	}
	return 0
}
