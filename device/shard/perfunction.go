package shard

import (
	"iter"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// perFunction holds one value per function of one host, in the order of their IDs, so a PF's before
// its VFs'. Adding and removing cost the same however many there are.
type perFunction[T any] struct {
	host uint8
	pfs  [pfvf.MaxPF + 1][]*T // by the number of the VF; nil: none
	n    int
}

// get returns the function's value; nil: it has none, or is of another host.
func (r *perFunction[T]) get(id pfvf.ID) *T {
	if id>>16 != pfvf.ID(r.host) || int(id.VF()) >= len(r.pfs[id.PF()]) {
		return nil
	}
	return r.pfs[id.PF()][id.VF()]
}

// put sets the value of a function that has none yet.
func (r *perFunction[T]) put(id pfvf.ID, v *T) {
	pf, vf := id.PF(), int(id.VF())
	if more := vf + 1 - len(r.pfs[pf]); more > 0 {
		r.pfs[pf] = append(r.pfs[pf], make([]*T, more)...)
	}
	r.pfs[pf][vf] = v
	r.n++
}

// remove deletes the function's value. It must have one.
func (r *perFunction[T]) remove(id pfvf.ID) {
	r.pfs[id.PF()][id.VF()] = nil
	r.n--
}

// len returns the number of values.
func (r *perFunction[T]) len() int { return r.n }

// all yields all values. The loop may remove each value as it comes.
func (r *perFunction[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for pf := range r.pfs {
			for _, v := range r.pfs[pf] {
				if v != nil && !yield(v) {
					return
				}
			}
		}
	}
}

// of yields the values of a PF and its VFs.
func (r *perFunction[T]) of(pf pfvf.ID) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, v := range r.pfs[pf.PF()] {
			if v != nil && !yield(v) {
				return
			}
		}
	}
}
