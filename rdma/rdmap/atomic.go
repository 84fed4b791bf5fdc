package rdmap

// FetchAdd adds addend to original in independent fields (RFC 7306 §5.1.1). A bit set in mask is
// the most significant bit of a field: the carry out of it is discarded. Mask 0 is one field of 64
// bits.
func FetchAdd(original, addend, mask uint64) uint64 {
	// Without the top bits of the fields no carry leaves a field: it stops in the top bit, which is
	// then the sum of that carry and both operands' bits.
	return (original&^mask + addend&^mask) ^ (original^addend)&mask
}

// CmpSwap swaps in the bits of swapMask if original and compare agree in the bits of compareMask,
// and otherwise leaves original (RFC 7306 §5.1.2).
func CmpSwap(original, compare, compareMask, swap, swapMask uint64) uint64 {
	if (original^compare)&compareMask != 0 {
		return original
	}
	return Swap(original, swap, swapMask)
}

// Swap replaces the bits of mask in original: a CmpSwap that compares nothing.
func Swap(original, swap, mask uint64) uint64 {
	return original&^mask | swap&mask
}
