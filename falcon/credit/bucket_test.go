package credit

import (
	"testing"

	"pgregory.net/rapid"
)

// Over any time a bucket lets through no more than burst + rate × time and one packet, and, asked
// for more, no less than the rate.
func TestBucketHoldsItsRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Bucket
		rate := rapid.Uint64Range(1000, 2e9).Draw(t, "rate")
		now := rapid.Int64Range(0, 1e15).Draw(t, "start")
		start := now
		b.SetRate(now, rate)
		size := rapid.IntRange(1, 9000)
		sent, burst, largest := 0.0, float64(b.burst), 9000.0
		for range 3000 {
			ready := b.Ready(now)
			if ready > now {
				if again := b.Ready(now); again != ready {
					t.Fatalf("asked twice: %d and %d", ready, again)
				}
				now = ready
				if b.Ready(now) > now {
					t.Fatalf("not ready at %d as promised", now)
				}
			}
			n := size.Draw(t, "size")
			b.Charge(n)
			sent += float64(n)
			due := float64(rate) * float64(now-start) / 1e9
			if sent > burst+due+largest {
				t.Fatalf("%v bytes after %d ns at %d bytes/s", sent, now-start, rate)
			}
		}
		if due := float64(rate) * float64(now-start) / 1e9; sent < 0.99*due-largest {
			t.Fatalf("only %v of %v bytes", sent, due)
		}
	})
}

func TestBucketWithoutRate(t *testing.T) {
	var b Bucket
	b.Charge(1 << 40)
	if b.Ready(5) != 5 {
		t.Error("the zero bucket limits")
	}
	b.SetRate(10, 1000)
	b.Charge(leastBurst + 1000)
	if at := b.Ready(10); at < 10+1e9 || at > 10+1.01e9 {
		t.Errorf("a debt of one second is paid at %d", at)
	}
	b.SetRate(20, 0)
	if b.Ready(20) != 20 {
		t.Error("limited without a rate")
	}
}

// A long sleep fills the bucket once, without overflow.
func TestBucketAfterALongTime(t *testing.T) {
	var b Bucket
	b.SetRate(0, 1<<60)
	b.Charge(1 << 50)
	if b.Ready(1<<62) != 1<<62 {
		t.Error("still in debt after a century")
	}
	if b.level > b.burst {
		t.Errorf("level %d above the burst %d", b.level, b.burst)
	}
}

// TestABucketWaitsForOneByteAfterItsBurst: a bucket lets its burst through at once, and then waits
// for one byte. A change of its rate fills it only if it had none.
func TestABucketWaitsForOneByteAfterItsBurst(t *testing.T) {
	var b Bucket
	const now = 1000
	ready := func(at, want int64) {
		t.Helper()
		if got := b.Ready(at); got != want {
			t.Errorf("asked at %d: ready at %d, want %d", at, got, want)
		}
	}
	b.SetRate(now, 1e9) // a byte each nanosecond, and 2 ms at once
	if b.Rate() != 1e9 {
		t.Errorf("rate %d", b.Rate())
	}
	b.Charge(2e6 - 1)
	ready(now, now)
	b.Charge(1)
	ready(now, now+1)
	ready(now+1, now+1)
	b.Charge(1)
	ready(now+1, now+2)
	b.SetRate(now+1, 2e9)
	ready(now+1, now+2) // half of it would do
	b.SetRate(now+1, 1e6)
	ready(now+1, now+1+1000)
	ready(now+1+999, now+1+1000)
	ready(now+1+1000, now+1+1000)
	b.SetRate(now+1001, 0)
	b.SetRate(now+1001, 1e6) // from no limit: full
	b.Charge(leastBurst - 1)
	ready(now+1001, now+1001)
	b.Charge(1)
	ready(now+1001, now+2001)
}

// TestABucketOfASmallRateLetsASuperframeThrough: a bucket of a small rate lets a superframe through
// at once.
func TestABucketOfASmallRateLetsASuperframeThrough(t *testing.T) {
	for rate, burst := range map[uint64]int64{1: leastBurst, 500 * leastBurst: leastBurst, 500 * (leastBurst + 1): leastBurst + 1} {
		var b Bucket
		b.SetRate(5, rate)
		b.Charge(int(burst) - 1)
		if b.Ready(5) != 5 {
			t.Errorf("rate %d: less than %d bytes at once", rate, burst)
		}
		b.Charge(1)
		if b.Ready(5) == 5 {
			t.Errorf("rate %d: more than %d bytes at once", rate, burst)
		}
	}
}
