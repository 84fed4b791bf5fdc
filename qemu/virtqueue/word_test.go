package virtqueue

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestHalves: half a word is read and written as it is, the other half stays.
func TestHalves(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		b := binary.LittleEndian.AppendUint64(nil, rng.Uint64())
		want := append([]byte(nil), b...)
		at, v := 2*rng.IntN(4), uint16(rng.Uint32())
		binary.LittleEndian.PutUint16(want[at:], v)
		if got, is := load16(b[at:at+2]), binary.LittleEndian.Uint16(b[at:]); got != is {
			t.Fatalf("%#x at %d of % x", got, at, b)
		}
		if store16(b[at:at+2], v); string(b) != string(want) {
			t.Fatalf("%#x at %d: % x, want % x", v, at, b, want)
		}
	}
}
