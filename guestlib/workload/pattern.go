package workload

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/guestlib"
)

// canary is the fill byte of memory that must not change.
const canary = 0xa5

// mix is the output function of SplitMix64: neighbouring inputs give unrelated outputs.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const golden = 0x9e3779b97f4a7c15

// key returns the seed of one iteration's data.
func key(seed uint64, op guestlib.Opcode, size, iteration int) uint64 {
	return mix(seed ^ mix(uint64(op)<<56|uint64(size)<<24|uint64(iteration)))
}

// fill writes the pattern of k to b.
func fill(b []byte, k uint64) {
	for len(b) >= 8 {
		k += golden
		binary.LittleEndian.PutUint64(b, mix(k))
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], mix(k+golden))
		copy(b, last[:])
	}
}

// compare returns the offset of the first byte of b that is not the pattern of k, or -1.
func compare(b []byte, k uint64) int {
	for i := 0; i < len(b); i += 8 {
		k += golden
		want := mix(k)
		if len(b)-i >= 8 && binary.LittleEndian.Uint64(b[i:]) == want {
			continue
		}
		for j := i; j < min(i+8, len(b)); j++ {
			if b[j] != byte(want>>(8*(j-i))) {
				return j
			}
		}
	}
	return -1
}

// fillCanary fills b with canaries.
func fillCanary(b []byte) {
	for i := range b {
		b[i] = canary
	}
}

// touched returns the offset of the first byte of b that is not a canary, or -1.
func touched(b []byte) int {
	const word = 0x0101010101010101 * canary
	i := 0
	for ; len(b)-i >= 8 && binary.LittleEndian.Uint64(b[i:]) == word; i += 8 {
	}
	for ; i < len(b); i++ {
		if b[i] != canary {
			return i
		}
	}
	return -1
}

// Each iteration of a round has its own slot of memory, with room for its offset before the data
// and for canaries on both sides.
const (
	slotAlign = 64
	slotSlack = 2 * slotAlign
)

func slotSize(size int) int { return (size+slotAlign-1)/slotAlign*slotAlign + slotSlack }

// remoteOffset and localOffset return the offset of an iteration's data in its slot: 0 at first,
// then all kinds of misalignment.
func remoteOffset(iteration int) int { return iteration * 7 % slotAlign }

func localOffset(iteration int) int { return iteration * 13 % slotAlign }

// checkSlot checks a slot: size bytes of data at off, and canaries around them.
func checkSlot(slot []byte, off, size int, k uint64) error {
	if i := compare(slot[off:off+size], k); i >= 0 {
		return fmt.Errorf("byte %d of %d is wrong", i, size)
	}
	if i := touched(slot[:off]); i >= 0 {
		return fmt.Errorf("a byte %d before the data was overwritten", off-i)
	}
	if i := touched(slot[off+size:]); i >= 0 {
		return fmt.Errorf("a byte %d after the data was overwritten", i)
	}
	return nil
}

// atomicStep computes iteration i of the model of atomics. Given the cell's value it sets the
// operands in wr, and returns the value afterwards. Every other CmpSwap compares with a wrong value
// and must change nothing.
func atomicStep(wr *guestlib.SendWR, k uint64, i int, cell uint64) (after uint64) {
	r := mix(k + uint64(i)*golden)
	wr.CompareAdd, wr.Swap = cell, r
	wr.CompareMask, wr.Mask = mix(r), mix(r+1)
	if i%2 != 0 {
		wr.CompareAdd = ^cell
	}
	switch wr.Opcode {
	case guestlib.FetchAdd:
		wr.CompareAdd = r
		return cell + r
	case guestlib.MaskedFetchAdd:
		wr.CompareAdd = r
		return addFields(cell, r, wr.Mask)
	case guestlib.MaskedCmpSwap:
		if i%2 == 0 {
			wr.CompareAdd ^= r &^ wr.CompareMask // bits that are not compared may differ
			return cell&^wr.Mask | r&wr.Mask
		}
	case guestlib.CmpSwap:
		if i%2 == 0 {
			return r
		}
	}
	return cell
}

// addFields adds a and b bit by bit, in fields whose most significant bits are set in mask.
func addFields(a, b, mask uint64) (sum uint64) {
	var carry uint64
	for bit := range 64 {
		n := a>>bit&1 + b>>bit&1 + carry
		sum |= n & 1 << bit
		carry = n >> 1 &^ (mask >> bit & 1)
	}
	return sum
}

// atomicStart returns the cell's value before the first iteration.
func atomicStart(k uint64) uint64 { return mix(k ^ golden) }
