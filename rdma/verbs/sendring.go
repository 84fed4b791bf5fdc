package verbs

import (
	"slices"

	"github.com/falcon-vnic/vnic/internal/pool"
)

// maxWorks limits the send work requests of a QP that were read and are not complete.
const maxWorks = 128

// sendRing holds the send work requests of a QP that were read and are not complete.
//
//	     head            next          tail      producer
//	──────┬───────────────┬─────────────┬───────────┬──
//	      │  with the     │ read, not   │ in guest  │
//	      │  connection   │ issued      │ memory    │
//
// Works complete in order at head. They come from the shard's pool.
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

// forget drops all works.
func (r *sendRing) forget() {
	r.reads = 0
	for ; r.head != r.tail; r.head++ {
		r.release(r.take(r.head))
	}
	r.head, r.next, r.tail = 0, 0, 0
}

// add puts a new work at tail, with room for as many SGEs and inline bytes as the QP's requests may
// have.
func (r *sendRing) add() *SendWR {
	w := r.pool.Get()
	w.SGEs, w.Inline = slices.Grow(w.SGEs, r.maxSGE), slices.Grow(w.Inline, r.maxInline) // both are empty
	w.Slot = r.tail
	*r.place(r.tail) = w
	r.tail++
	return w
}

// take removes the work at index from the ring. The caller must release it.
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

// retireDone removes works at head that were reported.
func (r *sendRing) retireDone() {
	for r.head != r.tail && r.work(r.head).done {
		r.release(r.retire())
	}
}

// retire removes the work at head from the ring.
func (r *sendRing) retire() *SendWR {
	w := r.take(r.head)
	if r.next == r.head {
		r.next++ // it failed before it was issued
	}
	r.head++
	return w
}

// begun reports whether works that were started are still outstanding.
func (r *sendRing) begun() bool {
	return r.head != r.next || r.next != r.tail && r.work(r.next).started
}
