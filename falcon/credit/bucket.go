package credit

import "math"

// Bucket is a token bucket: it lets through Rate bytes per second on average, and a burst at once.
// Time is an argument, in nanoseconds. A packet bigger than the bucket may pass too; it leaves a
// debt, and nothing passes until the debt is paid. The zero value and a rate of 0 let everything
// through.
type Bucket struct {
	rate  uint64 // bytes per second; 0: no limit
	burst int64  // bytes
	level int64  // bytes that may pass now; below 0 is a debt
	last  int64  // time up to which the level was filled
}

// leastBurst is a superframe and a little more. With a smaller bucket a superframe would have to
// wait several times.
const leastBurst = 64 << 10

// maxRate is 8.8 Tbit/s. It keeps the arithmetic within 64 bits.
const maxRate = 1 << 40

// SetRate changes the rate from now on. The burst is what the rate allows in 2 ms, at least 64 KiB.
// A debt remains.
func (b *Bucket) SetRate(now int64, bytesPerSecond uint64) {
	b.fill(now)
	was := b.rate
	b.rate = min(bytesPerSecond, maxRate)
	b.burst = max(leastBurst, int64(b.rate/500))
	b.level = min(b.level, b.burst)
	if was == 0 {
		b.level, b.last = b.burst, now
	}
}

// Rate returns the rate in bytes per second, 0 for no limit.
func (b *Bucket) Rate() uint64 { return b.rate }

// Charge takes n bytes, which pass now.
func (b *Bucket) Charge(n int) {
	if b.rate != 0 {
		b.level -= int64(n)
	}
}

// Ready returns the earliest time at which something may pass. A time up to now means at once.
func (b *Bucket) Ready(now int64) int64 {
	if b.rate == 0 {
		return now
	}
	b.fill(now)
	if b.level > 0 {
		return now
	}
	wait := float64(1-b.level) * 1e9 / float64(b.rate)
	return b.last + int64(math.Ceil(min(wait, 1<<61)))
}

func (b *Bucket) fill(now int64) {
	add := float64(now-b.last) * float64(b.rate) / 1e9
	if add < 1 {
		return // the elapsed time is not lost: it counts with the next call
	}
	b.last = now
	b.level = min(b.level+int64(min(add, 1<<61)), b.burst)
}
