package verbs

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/pool"
)

// maxWorks bounds the send work requests of a QP that were read and are not complete.
const maxWorks = 128

// sendRing is the send work requests of a QP that were read and are not complete.
//
//	     head            next          tail      producer
//	──────┬───────────────┬─────────────┬───────────┬──
//	      │  with the     │ read, not   │ in guest  │
//	      │  connection   │ issued      │ memory    │
//
// Works complete in order at head. They are of the shard's pool.
type sendRing struct {
	pool             *pool.Pool[SendWR]
	works            []*SendWR // ring
	head, next, tail uint32
	maxSGE           int
	maxInline        int
	reads            int // READ and atomic works started and not completed
}

func (r *sendRing) init(p *pool.Pool[SendWR], works uint32, maxSGE, maxInline int) {
	r.pool, r.maxSGE, r.maxInline = p, maxSGE, maxInline
	r.works = make([]*SendWR, works)
}

// forget drops the works.
func (r *sendRing) forget() {
	r.reads = 0
	for ; r.head != r.tail; r.head++ {
		r.release(r.take(r.head))
	}
	r.head, r.next, r.tail = 0, 0, 0
}

// add gives the work at tail its place in the ring, with room for what the QP's requests may have.
func (r *sendRing) add() *SendWR {
	w := r.pool.Get()
	w.SGEs, w.Inline = slices.Grow(w.SGEs, r.maxSGE), slices.Grow(w.Inline, r.maxInline) // both are empty
	w.Slot = r.tail
	*r.place(r.tail) = w
	r.tail++
	return w
}

// take empties a place of the ring. The work that had it must be released.
func (r *sendRing) take(index uint32) *SendWR {
	at := r.place(index)
	w := *at
	*at = nil
	return w
}

func (r *sendRing) release(w *SendWR) {
	clear(w.SGEs) // the pool must not keep regions alive
	*w = SendWR{SGEs: w.SGEs[:0], Inline: w.Inline[:0]}
	r.pool.Put(w)
}

func (r *sendRing) place(index uint32) **SendWR { return &r.works[index&uint32(len(r.works)-1)] }

func (r *sendRing) work(index uint32) *SendWR { return *r.place(index) }

// retireDone takes the works at head that were reported out of the ring.
func (r *sendRing) retireDone() {
	for r.head != r.tail && r.work(r.head).done {
		r.release(r.retire())
	}
}

// retire takes the work at head out of the ring.
func (r *sendRing) retire() *SendWR {
	w := r.take(r.head)
	if r.next == r.head {
		r.next++ // it failed before it was issued
	}
	r.head++
	return w
}

// begun reports whether works that were begun are still outstanding.
func (r *sendRing) begun() bool {
	return r.head != r.next || r.next != r.tail && r.work(r.next).started
}
