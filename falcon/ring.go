package falcon

import "iter"

// ring holds pointers keyed by a 32-bit sequence number. It begins with room for one and grows by doubling up to the
// range its owner uses, so that a connection with one packet under way at a time needs no memory besides its own. Keys
// in use must lie within [base, base+capacity).
type ring[T any] struct {
	one   *T
	slots []*T // nil: capacity 1
}

const ringMin = 8

func (r *ring[T]) get(seq uint32) *T {
	if len(r.slots) == 0 {
		return r.one
	}
	return r.slots[seq&uint32(len(r.slots)-1)]
}

func (r *ring[T]) clear(seq uint32) { *r.slot(seq) = nil }

func (r *ring[T]) slot(seq uint32) **T {
	if len(r.slots) == 0 {
		return &r.one
	}
	return &r.slots[seq&uint32(len(r.slots)-1)]
}

// put stores v at seq; base is the lowest key in use.
func (r *ring[T]) put(base, seq uint32, v *T) {
	if need := seq - base; need >= r.capacity() {
		r.grow(base, need)
	}
	*r.slot(seq) = v
}

func (r *ring[T]) capacity() uint32 { return max(uint32(len(r.slots)), 1) }

func (r *ring[T]) grow(base, need uint32) {
	size := uint32(max(len(r.slots), ringMin))
	for size <= need {
		size *= 2
	}
	slots := make([]*T, size)
	for i := range r.capacity() {
		slots[(base+i)&(size-1)] = r.get(base + i)
	}
	r.one, r.slots = nil, slots
}

// at returns the value at seq if seq lies within the ring counted from base.
func (r *ring[T]) at(base, seq uint32) *T {
	if seq-base >= r.capacity() {
		return nil
	}
	return r.get(seq)
}

// all yields what the ring holds, in no order.
func (r *ring[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		if r.one != nil && !yield(r.one) {
			return
		}
		for _, v := range r.slots {
			if v != nil && !yield(v) {
				return
			}
		}
	}
}
