package rdmap

import (
	"testing"

	"pgregory.net/rapid"
)

// fetchAddBits is the pseudocode of RFC 7306 §5.1.1, bit by bit.
func fetchAddBits(original, addend, mask uint64) (result uint64) {
	carry := uint64(0)
	for bit := range 64 {
		location := uint64(1) << bit
		val1, val2 := original&location>>bit, addend&location>>bit
		sum := carry + val1 + val2
		carry = sum & 2 >> 1
		if sum&1 != 0 {
			result |= location
		}
		if mask&location != 0 {
			carry = 0
		}
	}
	return result
}

// cmpSwapBits is the prose of RFC 7306 §5.1.2, bit by bit.
func cmpSwapBits(original, compare, compareMask, swap, swapMask uint64) (result uint64) {
	equal := true
	for bit := range 64 {
		if compareMask>>bit&1 == 1 && original>>bit&1 != compare>>bit&1 {
			equal = false
		}
	}
	for bit := range 64 {
		from := original
		if equal && swapMask>>bit&1 == 1 {
			from = swap
		}
		result |= from >> bit & 1 << bit
	}
	return result
}

func TestFetchAddKeepsCarriesWithinAField(t *testing.T) {
	const all = ^uint64(0)
	for _, c := range []struct{ original, addend, mask, want uint64 }{
		{1, 2, 0, 3},
		{all, 1, 0, 0},
		{all, 1, 1 << 63, 0},
		{0x00000000ffffffff, 1, 1 << 31, 0}, // the carry out of the low field is lost
		{0x00000000ffffffff, 1, 0, 1 << 32},
		{0x00ff00ff00ff00ff, 0x0001000100010001, 0x0080008000800080, 0}, // carries out of bits 7, 23, 39 and 55 are lost
		{0b0101, 0b1111, all, 0b1010},                                   // one-bit fields: exclusive or
	} {
		if got := FetchAdd(c.original, c.addend, c.mask); got != c.want {
			t.Errorf("FetchAdd(%#x, %#x, %#x) = %#x, want %#x", c.original, c.addend, c.mask, got, c.want)
		}
	}
}

func TestCmpSwapComparesAndSwapsUnderItsMasks(t *testing.T) {
	const all = ^uint64(0)
	for _, c := range []struct{ original, compare, compareMask, swap, swapMask, want uint64 }{
		{5, 5, all, 9, all, 9},
		{5, 6, all, 9, all, 5},
		{5, 6, 0, 9, all, 9}, // compares nothing: swap
		{0xaabb, 0x00bb, 0xff, 0xccdd, 0xff00, 0xccbb},
		{0xaabb, 0x00ba, 0xff, 0xccdd, 0xff00, 0xaabb},
	} {
		if got := CmpSwap(c.original, c.compare, c.compareMask, c.swap, c.swapMask); got != c.want {
			t.Errorf("CmpSwap(%#x, %#x, %#x, %#x, %#x) = %#x, want %#x", c.original, c.compare, c.compareMask, c.swap, c.swapMask, got, c.want)
		}
	}
}

func TestAtomicsEqualTheBitModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.Uint64()
		// Masks of few bits and of many, and compare values that match, occur often.
		mask := rapid.OneOf(word, rapid.Just(uint64(0)), rapid.Just(^uint64(0)), rapid.Custom(func(t *rapid.T) uint64 {
			return 1 << rapid.IntRange(0, 63).Draw(t, "bit")
		}))
		original, data, m := word.Draw(t, "original"), word.Draw(t, "data"), mask.Draw(t, "mask")
		compareMask := mask.Draw(t, "compare mask")
		compare := rapid.OneOf(word, rapid.Just(original), rapid.Just(original^m)).Draw(t, "compare")

		if got, want := FetchAdd(original, data, m), fetchAddBits(original, data, m); got != want {
			t.Fatalf("FetchAdd(%#x, %#x, %#x) = %#x, want %#x", original, data, m, got, want)
		}
		if got, want := CmpSwap(original, compare, compareMask, data, m), cmpSwapBits(original, compare, compareMask, data, m); got != want {
			t.Fatalf("CmpSwap(%#x, %#x, %#x, %#x, %#x) = %#x, want %#x", original, compare, compareMask, data, m, got, want)
		}
		if got, want := Swap(original, data, m), cmpSwapBits(original, 0, 0, data, m); got != want {
			t.Fatalf("Swap(%#x, %#x, %#x) = %#x, want %#x", original, data, m, got, want)
		}
	})
}
