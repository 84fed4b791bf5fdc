package falcon

// ring holds pointers keyed by a 32-bit sequence number. It grows by doubling up to the range its owner uses, so that
// an idle connection holds none. Keys in use must lie within [base, base+capacity).
type ring[T any] struct{ slots []*T }

const ringMin = 8

func (r *ring[T]) get(seq uint32) *T {
	if len(r.slots) == 0 {
		return nil
	}
	return r.slots[seq&uint32(len(r.slots)-1)]
}

func (r *ring[T]) clear(seq uint32) {
	if len(r.slots) != 0 {
		r.slots[seq&uint32(len(r.slots)-1)] = nil
	}
}

// put stores v at seq; base is the lowest key in use.
func (r *ring[T]) put(base, seq uint32, v *T) {
	if need := seq - base; need >= uint32(len(r.slots)) {
		r.grow(base, need)
	}
	r.slots[seq&uint32(len(r.slots)-1)] = v
}

func (r *ring[T]) grow(base, need uint32) {
	size := uint32(max(len(r.slots), ringMin))
	for size <= need {
		size *= 2
	}
	slots := make([]*T, size)
	for i := range uint32(len(r.slots)) {
		slots[(base+i)&(size-1)] = r.get(base + i)
	}
	r.slots = slots
}

// at returns the value at seq if seq lies within the ring counted from base.
func (r *ring[T]) at(base, seq uint32) *T {
	if seq-base >= uint32(len(r.slots)) {
		return nil
	}
	return r.get(seq)
}
