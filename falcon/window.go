package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// txWindow is the transmitter's side of one sliding window (Falcon §9.1.1).
type txWindow struct {
	base, next  uint32           // PSN: oldest not acknowledged, next to assign
	outstanding uint16           // RORC, DORC: requests sent and not acknowledged
	resent      uint16           // RORRC, DORRC: requests sent again and not acknowledged
	paused      bool             // out-of-window notification received
	packets     ring.Window[txn] // by PSN; nil in [base, next): acknowledged
}

// at returns the transaction of an unacknowledged packet, nil if no such packet has that PSN.
func (w *txWindow) at(psn uint32) *txn { return w.packets.At(w.base, psn) }

// add gives t the next PSN.
func (w *txWindow) add(t *txn) {
	t.psn = w.next
	w.packets.Put(w.base, t.psn, t)
	w.next++
}

// remove takes out an acknowledged packet and advances the base over all that are.
func (w *txWindow) remove(psn uint32) {
	w.packets.Clear(psn)
	for w.base != w.next && w.packets.Get(w.base) == nil {
		w.base++
	}
}

// inFlight returns how many PSNs are between base and next.
func (w *txWindow) inFlight() uint32 { return w.next - w.base }

// rxWindow is the receiver's side of a sliding window (Falcon §9.2.1). Bit n of its bitmaps is PSN
// base+n. A pull request is acknowledged when it is received, so the two bitmaps of the request
// window are equal.
type rxWindow struct {
	base     uint32 // oldest not acknowledged
	size     uint8
	distance uint8 // how far below the highest received a missing packet counts as lost
	own      bool  // packets beyond the window were dropped
	loss     bool  // packets newly count as lost, and no acknowledgement has reported it

	acked, received wire.Bitmap128
}

// classify applies Falcon §9.2.2.4. DropDuplicate means that the PSN was received, acknowledged or
// not.
func (w *rxWindow) classify(psn uint32) wire.Drop {
	n := psn - w.base
	switch {
	case int32(n) < 0:
		return wire.DropBehindWindow
	case n >= uint32(w.size):
		w.own = true
		return wire.DropBeyondWindow
	case bit(&w.received, n):
		return wire.DropDuplicate
	}
	w.loss = w.loss || w.showsLoss(int(n))
	return wire.DropNone
}

// showsLoss reports whether the arrival of packet n makes another packet count as lost, because it
// is missing far enough below the highest received. A packet that was already lost does not count
// again.
func (w *rxWindow) showsLoss(n int) bool {
	from, to := max(highest(&w.received)+1-int(w.distance), 0), n-int(w.distance)
	if to < from {
		return false
	}
	rest := w.received
	shift(&rest, uint32(from))
	return int(trailingOnes(&rest)) <= to-from
}

// receive marks a PSN that passed check as received.
func (w *rxWindow) receive(psn uint32) { setBit(&w.received, psn-w.base) }

// forget marks a received PSN that is not acknowledged as missing.
func (w *rxWindow) forget(psn uint32) { clearBit(&w.received, psn-w.base) }

// acknowledge marks a PSN that passed check as received and acknowledged, and slides the window.
func (w *rxWindow) acknowledge(psn uint32) {
	n := psn - w.base
	setBit(&w.acked, n)
	setBit(&w.received, n)
	if n != 0 {
		return
	}
	k := trailingOnes(&w.acked)
	w.base += k
	shift(&w.acked, k)
	shift(&w.received, k)
}

// isAcked reports whether a PSN in the window is acknowledged.
func (w *rxWindow) isAcked(psn uint32) bool { return bit(&w.acked, psn-w.base) }

// baseSaysAll reports whether the base alone says everything that arrived.
func (w *rxWindow) baseSaysAll() bool { return isZero(&w.received) && isZero(&w.acked) && !w.own }

func isZero(b *wire.Bitmap128) bool { return b.Lo|b.Hi == 0 }

func bit(b *wire.Bitmap128, n uint32) bool {
	if n < 64 {
		return b.Lo>>n&1 != 0
	}
	return n < 128 && b.Hi>>(n-64)&1 != 0
}

func setBit(b *wire.Bitmap128, n uint32) {
	switch {
	case n < 64:
		b.Lo |= 1 << n
	case n < 128:
		b.Hi |= 1 << (n - 64)
	}
}

func clearBit(b *wire.Bitmap128, n uint32) {
	switch {
	case n < 64:
		b.Lo &^= 1 << n
	case n < 128:
		b.Hi &^= 1 << (n - 64)
	}
}

// trailingOnes counts the consecutive ones from bit 0 up.
func trailingOnes(b *wire.Bitmap128) uint32 {
	if n := bits.TrailingZeros64(^b.Lo); n < 64 {
		return uint32(n)
	}
	return 64 + uint32(bits.TrailingZeros64(^b.Hi))
}

func shift(b *wire.Bitmap128, n uint32) {
	b.Lo = b.Lo>>n | b.Hi<<(64-n) | b.Hi>>(n-64) // a shift by 64 or more, also by a negative difference, which wraps, gives 0
	b.Hi >>= n
}

// highest returns the index of the highest set bit, −1 if there is none.
func highest(b *wire.Bitmap128) int {
	if b.Hi != 0 {
		return 64 + bits.Len64(b.Hi) - 1
	}
	return bits.Len64(b.Lo) - 1
}

// nthHighest returns the index of the n-th set bit from the top, −1 if there are fewer.
func nthHighest(b *wire.Bitmap128, n int) int {
	rest := *b
	for ; n > 1; n-- {
		if i := highest(&rest); i >= 64 {
			rest.Hi &^= 1 << (i - 64)
		} else if i >= 0 {
			rest.Lo &^= 1 << i
		}
	}
	return highest(&rest)
}

// hasHole reports whether a zero is below the highest set bit.
func hasHole(b *wire.Bitmap128) bool { return highest(b) >= int(trailingOnes(b)) }
