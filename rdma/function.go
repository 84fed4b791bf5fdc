package rdma

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Function is the verbs side of one PF or VF: its objects, its share of the engine, and the links that
// carry its datagrams.
type Function struct {
	verbs.Objects
	e  *Engine
	id uint32

	sched schedule

	Links *rof.Links // that carry its datagrams
}

// NewFunction makes the verbs side of function id over the guest memory mem.
func (e *Engine) NewFunction(id uint32, mem *queues.Memory, limits verbs.Limits, out verbs.Notifier) *Function {
	f := &Function{e: e, id: id}
	f.Links = Wire[*rof.Engine](e).NewLinks(id, &f.Objects, &e.shared.Timers)
	f.sched = schedule{f: f, rate: new(credit.Bucket)}
	f.Init(&e.shared, mem, limits, out, &f.sched, f.Links)
	e.fns = append(e.fns, f)
	return f
}

// ID is the function's number.
func (f *Function) ID() uint32 { return f.id }

// Stats returns the function's counters.
func (f *Function) Stats() Stats { return Stats{Stats: f.Owner.Stats, Counters: f.Account.Counters} }

// Close destroys every object, closes the connections and ends the function. It writes no
// completions.
func (f *Function) Close(now vtime.Time) {
	if f.Closed() {
		return
	}
	f.Objects.Close(now)
	f.Links.Close(now)
	f.e.forget(f)
}
