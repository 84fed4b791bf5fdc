package verbs

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rdmap"
)

// errContended means that a guest kept changing the word that a masked atomic works on.
var errContended = errors.New("rdma: the word of an atomic changes all the time")

// maskedAttempts limits how many races a masked atomic may lose. If other engines win, they make
// progress; a guest may do so without end. A processor that does nothing but add to the word wins
// up to 99 of 100 races, so the limit is far above that. It still ends within a few milliseconds
// what a guest does to itself.
const maskedAttempts = 1 << 14

// Atomic is an atomic operation on 8 bytes.
type Atomic struct {
	Op      abi.Opcode // abi.OpCmpSwap, OpFetchAdd or one of the masked ones
	Compare uint64
	SwapAdd uint64          // to swap in, or to add
	Masks   abi.AtomicMasks // of a masked operation
}

// Atomic carries out a at va, which must be aligned and inside the region, and returns the previous
// value. The operation is atomic to everything else that uses the word, including the guest.
func (m *MR) Atomic(va uint64, a *Atomic) (original uint64, err error) {
	if err := m.lost(); err != nil {
		return 0, err
	}
	switch at := m.offset(va); a.Op {
	case abi.OpCmpSwap:
		return m.area.CompareAndSwap64(at, a.Compare, a.SwapAdd)
	case abi.OpFetchAdd:
		return m.area.FetchAdd64(at, a.SwapAdd)
	default:
		return m.maskedAtomic(at, a)
	}
}

// maskedAtomic carries out a masked atomic at off of the area (RFC 7306 §5.1). Processors have no
// such instruction, so it computes the result and stores it by compare and swap.
func (m *MR) maskedAtomic(off uint64, a *Atomic) (original uint64, err error) {
	if original, err = m.area.Load64(off); err != nil {
		return 0, err
	}
	for range maskedAttempts {
		var result uint64
		if a.Op == abi.OpMaskedCmpSwap {
			result = rdmap.CmpSwap(original, a.Compare, a.Masks.Compare, a.SwapAdd, a.Masks.SwapAdd)
		} else {
			result = rdmap.FetchAdd(original, a.SwapAdd, a.Masks.SwapAdd)
		}
		prev, err := m.area.CompareAndSwap64(off, original, result)
		if err != nil || prev == original {
			return prev, err
		}
		original = prev
	}
	return 0, errContended
}
