package ring

import (
	"iter"
	"unsafe"
)

// Window holds pointers keyed by a 32-bit sequence number. It begins with room for one and grows by
// doubling to the range that its owner uses, so a connection with one packet in flight at a time
// needs no additional memory. Keys in use must lie within [base, base+Capacity).
//
// A connection has four windows in its hot cache lines. Using one word for the first value or for
// the pointer to all values saves half of their size.
type Window[T any] struct {
	p    unsafe.Pointer // the only value, a *T; or a pointer to the first of size *T
	size uint32         // a power of two; 0: one value
}

func (r *Window[T]) slot(seq uint32) **T {
	if r.size == 0 {
		return (**T)(unsafe.Pointer(&r.p))
	}
	return (**T)(unsafe.Add(r.p, uintptr(seq&(r.size-1))*unsafe.Sizeof(r.p)))
}

// Get returns the value at seq, which must lie within the window, nil if there is none.
func (r *Window[T]) Get(seq uint32) *T { return *r.slot(seq) }

// Clear removes the value at seq, which must lie within the window.
func (r *Window[T]) Clear(seq uint32) { *r.slot(seq) = nil }

// Put stores v at seq; base is the lowest key in use.
func (r *Window[T]) Put(base, seq uint32, v *T) {
	if need := seq - base; need >= r.Capacity() {
		r.grow(base, need)
	}
	*r.slot(seq) = v
}

// Capacity returns how many keys from the base on have a slot now.
func (r *Window[T]) Capacity() uint32 { return max(r.size, 1) }

func (r *Window[T]) grow(base, need uint32) {
	size := max(r.size, least)
	for size <= need {
		size *= 2
	}
	slots := make([]*T, size)
	for i := range r.Capacity() {
		slots[(base+i)&(size-1)] = r.Get(base + i)
	}
	r.p, r.size = unsafe.Pointer(&slots[0]), size
}

// At returns the value at seq if seq lies within the window counted from base.
func (r *Window[T]) At(base, seq uint32) *T {
	if seq-base >= r.Capacity() {
		return nil
	}
	return r.Get(seq)
}

// All iterates over the values in the window, in no order.
func (r *Window[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.Capacity() {
			if v := r.Get(i); v != nil && !yield(v) {
				return
			}
		}
	}
}
