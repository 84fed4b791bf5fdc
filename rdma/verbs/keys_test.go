package verbs

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestEachKeyNamesOneNumber: a key leads back to the number that it was made of and has its generation
// in the low byte; none is 0 or reserved, and what no number has made leads to none.
func TestEachKeyNamesOneNumber(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Regions
		if seed := rapid.Uint64().Draw(t, "seed"); seed > 0 {
			r.UseSecret(rand.New(rand.NewPCG(seed, 1)).Uint64)
		}
		slot := rapid.OneOf(rapid.Uint32Range(1, 100), rapid.Uint32Range(1, slotMask-1))
		number := slot.Draw(t, "slot") | rapid.Uint32Range(0, 255).Draw(t, "generation")<<24
		key := r.keys.of(number)
		if r.keys.number(key) != number || key&0xff != number>>24 || key&^0xff == 0 || key == abi.ReservedLKey {
			t.Fatalf("number %#x has key %#x, which leads to %#x", number, key, r.keys.number(key))
		}
		other := rapid.Uint32().Draw(t, "other key")
		if n := r.keys.number(other); other != key && n == number {
			t.Fatalf("key %#x leads to %#x too", other, n)
		}
		for _, none := range []uint32{5, 0xffffff05, abi.ReservedLKey} {
			if n := r.keys.number(none) & slotMask; r.keys.secret && n != 0 {
				t.Fatalf("key %#x leads to slot %#x", none, n)
			}
		}
	})
}

// TestKeysTellNothingOfOthers: with a secret, the keys of regions made one after the other have nothing
// in common, and those of another function are others.
func TestKeysTellNothingOfOthers(t *testing.T) {
	var a, b Regions
	a.UseSecret(rand.New(rand.NewPCG(1, 1)).Uint64)
	b.UseSecret(rand.New(rand.NewPCG(2, 1)).Uint64)
	const n = 4096
	same, near, ones := 0, 0, 0
	for i := uint32(1); i <= n; i++ {
		key, next := a.keys.of(i)>>8, a.keys.of(i+1)>>8
		if key == b.keys.of(i)>>8 {
			same++
		}
		if key^next < 1<<12 || next-key < 1<<12 || key-next < 1<<12 {
			near++
		}
		for bits := key ^ next; bits != 0; bits &= bits - 1 {
			ones++
		}
	}
	if same > 2 || near > 20 || ones < n*12*95/100 || ones > n*12*105/100 {
		t.Errorf("of %d keys %d are those of another function, %d are near the one before, which they differ from in %d bits", n, same, near, ones)
	}
}
