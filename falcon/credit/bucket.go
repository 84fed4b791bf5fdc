package credit

import "math"

// Bucket is a token bucket: it lets through Rate bytes per second on average and Burst at once.
// Time is an argument, in nanoseconds. What is bigger than the bucket may pass too: it leaves a
// debt, and nothing follows until that is paid. The zero value and a rate of 0 let everything
// through.
type Bucket struct {
	rate  uint64 // bytes per second; 0: no limit
	burst int64  // bytes
	level int64  // bytes that may pass now; below 0 in debt
	last  int64  // time up to which the level was filled
}

// leastBurst is a superframe and a little: a bucket below it would cut each into waits.
const leastBurst = 64 << 10

// maxRate keeps the arithmetic within 64 bits: 8.8 Tbit/s.
const maxRate = 1 << 40

// SetRate changes the rate from now on. The burst is what the rate brings in 2 ms, at least 64 KiB.
// A debt stays.
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

// Limited reports whether there is a limit.
func (b *Bucket) Limited() bool { return b.rate != 0 }

// Charge takes n bytes that pass now.
func (b *Bucket) Charge(n int) {
	if b.rate != 0 {
		b.level -= int64(n)
	}
}

// Ready is the earliest time at which something may pass: now or before when it may at once.
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
		return // the time, if some has passed, is not lost: it counts with the next
	}
	b.last = now
	b.level = min(b.level+int64(min(add, 1<<61)), b.burst)
}
