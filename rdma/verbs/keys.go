package verbs

import "math/bits"

// A key is a number of the table with the generation rotated into the low byte, which is the part
// of a window's key that programs expect to choose. The other 24 bits, the slot, are permuted by a
// secret of the function: whoever has some keys cannot tell from them which others there are (RFC
// 5042, for all wires). No key is 0 or abi.ReservedLKey.

// keys turns numbers of the table into keys and back. Without a secret the slots stay as they are.
type keys struct {
	secret bool
	rounds [4]uint64
}

// UseSecret makes keys that cannot be guessed, from random numbers that nobody else knows. There must
// be no regions yet.
func (r *Regions) UseSecret(random func() uint64) {
	r.keys.secret = true
	for i := range r.keys.rounds {
		r.keys.rounds[i] = random()
	}
}

const (
	slotMask = 1<<24 - 1
	halfMask = 1<<12 - 1
)

// usable reports whether a slot may be in a key.
func usable(slot uint32) bool { return slot != 0 && slot != slotMask }

// of returns the key of a number. A slot that may not be in a key is permuted again, so that each
// usable one leads to another usable one.
func (k *keys) of(number uint32) uint32 {
	if k.secret {
		slot := k.permute(number & slotMask)
		for !usable(slot) {
			slot = k.permute(slot)
		}
		number = number&^slotMask | slot
	}
	return bits.RotateLeft32(number, 8)
}

// number returns the number of a key; 0, which no region has, if it cannot be one.
func (k *keys) number(key uint32) uint32 {
	number := bits.RotateLeft32(key, -8)
	if !k.secret {
		return number
	}
	slot := number & slotMask
	if !usable(slot) {
		return 0
	}
	slot = k.restore(slot)
	for !usable(slot) {
		slot = k.restore(slot)
	}
	return number&^slotMask | slot
}

// permute is a Feistel network on the two halves of a slot, restore its inverse.
func (k *keys) permute(slot uint32) uint32 {
	left, right := slot>>12, slot&halfMask
	for _, r := range k.rounds {
		left, right = right, left^scatter(right, r)
	}
	return left<<12 | right
}

func (k *keys) restore(slot uint32) uint32 {
	left, right := slot>>12, slot&halfMask
	for i := len(k.rounds) - 1; i >= 0; i-- {
		left, right = right^scatter(left, k.rounds[i]), left
	}
	return left<<12 | right
}

// scatter mixes half a slot with the secret of a round.
func scatter(half uint32, round uint64) uint32 {
	h := (uint64(half) ^ round) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return uint32(h >> 52)
}
