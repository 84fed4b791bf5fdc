package falcon

import (
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/wire"
)

// flags is a simple bitmap, without regard to speed.
type flags [128]bool

func (f *flags) bitmap() (b wire.Bitmap128) {
	for i, set := range f {
		if set && i < 64 {
			b.Lo |= 1 << i
		} else if set {
			b.Hi |= 1 << (i - 64)
		}
	}
	return b
}

func (f *flags) nthHighest(n int) int {
	for i := len(f) - 1; i >= 0; i-- {
		if f[i] {
			if n--; n == 0 {
				return i
			}
		}
	}
	return -1
}

// TestBitmapsEqualSimpleOnes compares the window's bitmaps with the simple ones: dense and sparse
// ones, runs that cross the border of the words, the first and the last bit.
func TestBitmapsEqualSimpleOnes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var f flags
		run, share := rnd.IntN(len(f)+1), rnd.Float64()
		for i := range f {
			f[i] = i < run || rnd.Float64() < share*share
		}
		b := f.bitmap()
		ones, zero := 0, true
		for ones < len(f) && f[ones] {
			ones++
		}
		for _, set := range f {
			zero = zero && !set
		}
		if isZero(&b) != zero || int(trailingOnes(&b)) != ones || highest(&b) != f.nthHighest(1) || hasHole(&b) != (f.nthHighest(1) >= ones) {
			t.Fatalf("%+v: zero %v, %d trailing ones, highest %d, hole %v", b, isZero(&b), trailingOnes(&b), highest(&b), hasHole(&b))
		}
		n := rnd.IntN(len(f) + 2)
		if got := nthHighest(&b, n+1); got != f.nthHighest(n+1) {
			t.Fatalf("%+v: one %d from the top is at %d, want %d", b, n+1, got, f.nthHighest(n+1))
		}
		if got, want := bit(&b, uint32(n)), n < len(f) && f[n]; got != want {
			t.Fatalf("%+v: bit %d is %v", b, n, got)
		}
		var shifted flags
		copy(shifted[:], f[min(n, len(f)):])
		moved := b
		if shift(&moved, uint32(n)); moved != shifted.bitmap() {
			t.Fatalf("%+v by %d is %+v, want %+v", b, n, moved, shifted.bitmap())
		}
		set, clear := f, f
		if n < len(f) {
			set[n], clear[n] = true, false
		}
		withOne, without := b, b
		setBit(&withOne, uint32(n))
		clearBit(&without, uint32(n))
		if withOne != set.bitmap() || without != clear.bitmap() {
			t.Fatalf("%+v: bit %d set %+v, cleared %+v", b, n, withOne, without)
		}
	}
}
