package gateway

// bucket limits a rate: it gains a token every errorEvery, up to errorBurst.
type bucket struct {
	tokens int64
	last   int64
}

const (
	errorBurst = 50
	errorEvery = 10_000_000 // ns for another token
)

func (b *bucket) take(now int64) bool {
	if b.last == 0 {
		b.tokens, b.last = errorBurst, now
	}
	n := (now - b.last) / errorEvery
	b.tokens, b.last = min(errorBurst, b.tokens+n), b.last+n*errorEvery
	if b.tokens <= 0 {
		return false
	}
	b.tokens--
	return true
}
