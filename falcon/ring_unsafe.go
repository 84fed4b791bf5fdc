package falcon

import (
	"iter"
	"unsafe"
)

// ring holds pointers keyed by a 32-bit sequence number. It begins with room for one and grows by
// doubling up to the range its owner uses, so that a connection with one packet under way at a time
// needs no memory besides its own. Keys in use must lie within [base, base+capacity).
//
// A connection has four of them in its hot cache lines: that the place of the first value becomes a
// pointer to the others saves half of their size.
type ring[T any] struct {
	p    unsafe.Pointer // the one value, a *T; or the first of size *T
	size uint32         // a power of two; 0: one value
}

const ringMin = 8

func (r *ring[T]) slot(seq uint32) **T {
	if r.size == 0 {
		return (**T)(unsafe.Pointer(&r.p))
	}
	return (**T)(unsafe.Add(r.p, uintptr(seq&(r.size-1))*unsafe.Sizeof(r.p)))
}

func (r *ring[T]) get(seq uint32) *T { return *r.slot(seq) }

func (r *ring[T]) clear(seq uint32) { *r.slot(seq) = nil }

// put stores v at seq; base is the lowest key in use.
func (r *ring[T]) put(base, seq uint32, v *T) {
	if need := seq - base; need >= r.capacity() {
		r.grow(base, need)
	}
	*r.slot(seq) = v
}

func (r *ring[T]) capacity() uint32 { return max(r.size, 1) }

func (r *ring[T]) grow(base, need uint32) {
	size := max(r.size, ringMin)
	for size <= need {
		size *= 2
	}
	slots := make([]*T, size)
	for i := range r.capacity() {
		slots[(base+i)&(size-1)] = r.get(base + i)
	}
	r.p, r.size = unsafe.Pointer(&slots[0]), size
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
		for i := range r.capacity() {
			if v := r.get(i); v != nil && !yield(v) {
				return
			}
		}
	}
}
