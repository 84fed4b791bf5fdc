package falcon

import (
	"math/bits"

	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/ring"
)

// txWindow is the transmitter's side of one sliding window (Falcon §9.1.1). Its packets are apart
// from it (Conn.packets); a nil entry in [base, next) is acknowledged.
type txWindow struct {
	base, next    uint32 // PSN: oldest not acknowledged, next to assign
	outstanding   uint32 // RORC, DORC: requests sent and not acknowledged
	retransmitted uint32 // RORRC, DORRC: requests sent again and not acknowledged
	paused        bool   // out-of-window notification received
}

// slide moves the base over everything acknowledged.
func (w *txWindow) slide(packets *ring.Window[txn]) {
	for w.base != w.next && packets.Get(w.base) == nil {
		w.base++
	}
}

// rxWindow is the receiver's side (Falcon §9.2.1). Its bitmaps are apart from it (Conn.dataBits,
// Conn.reqBits).
type rxWindow struct {
	base     uint32 // oldest not acknowledged
	size     uint8
	distance uint8 // below the highest received at which a missing packet counts as lost
	own      bool  // packets were dropped beyond the window
	loss     bool  // packets newly count as lost, and no acknowledgement said so
}

// rxBitmaps say what the data window received; bit n stands for PSN base+n. In the request window
// both are one.
type rxBitmaps struct{ ack, rx wire.Bitmap128 }

// check applies Falcon §9.2.2.4. DropDuplicate means received, acknowledged or not.
func (w *rxWindow) check(rx *wire.Bitmap128, psn uint32) wire.Drop {
	n := psn - w.base
	switch {
	case int32(n) < 0:
		return wire.DropBehindWindow
	case n >= uint32(w.size):
		w.own = true
		return wire.DropBeyondWindow
	case bit(rx, n):
		return wire.DropDuplicate
	}
	w.loss = w.loss || w.showsLoss(rx, int(n))
	return wire.DropNone
}

// showsLoss reports whether, with packet n, another one is missing far enough below the highest
// received to count as lost. One that was missing so before does not count again.
func (w *rxWindow) showsLoss(rx *wire.Bitmap128, n int) bool {
	from, to := max(highest(rx)+1-int(w.distance), 0), n-int(w.distance)
	if to < from {
		return false
	}
	rest := *rx
	shift(&rest, uint32(from))
	return int(trailingOnes(&rest)) <= to-from
}

// acknowledge marks a PSN that passed check received and acknowledged, and slides the window; ack
// and rx may be one bitmap.
func (w *rxWindow) acknowledge(ack, rx *wire.Bitmap128, psn uint32) {
	n := psn - w.base
	setBit(ack, n)
	setBit(rx, n)
	if n != 0 {
		return
	}
	k := trailingOnes(ack)
	w.base += k
	shift(ack, k)
	if rx != ack {
		shift(rx, k)
	}
}

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

// trailingOnes counts the ones from bit 0 up.
func trailingOnes(b *wire.Bitmap128) uint32 {
	if n := bits.TrailingZeros64(^b.Lo); n < 64 {
		return uint32(n)
	}
	return 64 + uint32(bits.TrailingZeros64(^b.Hi))
}

func shift(b *wire.Bitmap128, n uint32) {
	b.Lo = b.Lo>>n | b.Hi<<(64-n) | b.Hi>>(n-64) // 0 where the difference is below zero
	b.Hi >>= n
}

// highest returns the index of the highest one, −1 if there is none.
func highest(b *wire.Bitmap128) int {
	if b.Hi != 0 {
		return 64 + bits.Len64(b.Hi) - 1
	}
	return bits.Len64(b.Lo) - 1
}

// nthHighest returns the index of the n-th one from the top, −1 if there are fewer.
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

// hasHole reports a zero below the highest one.
func hasHole(b *wire.Bitmap128) bool { return highest(b) >= int(trailingOnes(b)) }
