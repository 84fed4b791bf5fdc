package rdma

import (
	"errors"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/rdma/rdmap"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// errContended says that a guest changed a word all the time while a masked atomic wanted it.
var errContended = errors.New("rdma: the word of an atomic changes all the time")

// maskedAttempts bounds the races a masked atomic may lose: other engines make progress in each, a
// guest need not. A processor that does nothing but add to the word wins up to 99 of 100 races, so
// that the bound is far above that; it still ends within a few milliseconds what a guest does to
// itself.
const maskedAttempts = 1 << 14

// atomicOpcode reports whether op is a request for an atomic, without its service.
func atomicOpcode(op wire.Opcode) bool {
	return op == wire.CmpSwap || op == wire.FetchAdd || op == wire.MaskedCmpSwap || op == wire.MaskedFetchAdd
}

// maskedAtomic carries out a masked atomic at off (RFC 7306 §5.1) and returns what was there.
// Processors have no such instruction: it computes the result and stores it by compare and swap, so
// that it is atomic to everything else that uses the word, the guest included.
func maskedAtomic(area *queues.Area, off uint64, h *wire.Headers) (original uint64, err error) {
	x, mask := &h.Atomic, &h.Mask
	if original, err = area.Load64(off); err != nil {
		return 0, err
	}
	for range maskedAttempts {
		var result uint64
		if h.RBTH.Opcode == wire.MaskedCmpSwap {
			result = rdmap.CmpSwap(original, x.Compare, mask.Compare, x.SwapAdd, mask.SwapAdd)
		} else {
			result = rdmap.FetchAdd(original, x.SwapAdd, mask.SwapAdd)
		}
		prev, err := area.CompareAndSwap64(off, original, result)
		if err != nil || prev == original {
			return prev, err
		}
		original = prev
	}
	return 0, errContended
}
