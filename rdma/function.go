package rdma

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Function is the RDMA side of one PF or VF: its objects, its share of the engine, and the links
// that carry its datagrams.
type Function struct {
	verbs.Objects
	id           uint32
	e            *Engine
	sched        schedule
	destinations destinations
	port         transport.Port // in one of the engine's Networks; nil: none

	Links *rof.Links // carry its datagrams over Falcon
}

// ID returns the function's number.
func (f *Function) ID() uint32 { return f.id }

// Stats returns the function's counters.
func (f *Function) Stats() Stats { return Stats{Stats: f.Owner.Stats, Counters: f.Account.Counters} }

// PortStats returns the counters of the function's port; zeros if it has none.
func (f *Function) PortStats() (s transport.PortStats) {
	if f.port != nil {
		s = f.port.Stats()
	}
	return s
}

// Close destroys every object, closes the connections and ends the function. It writes no
// completions.
func (f *Function) Close(now vtime.Time) {
	if !f.Working() {
		return
	}
	f.Objects.Close(now)
	f.Links.Close(now)
	if f.port != nil {
		f.port.Close()
	}
	f.sched.leave()
	f.e.forget(f)
}

// SetWeight lets the function issue weight times as much as one of weight 1; 0 means 1.
func (f *Function) SetWeight(weight int) {
	f.sched.flow.Weight = weight
	if f.port != nil {
		f.port.SetWeight(weight)
	}
}

// UseRate limits what the function sends by a token bucket, which others may charge too.
func (f *Function) UseRate(b *credit.Bucket) { f.sched.rate = b }

// UseCredits sets the function's node of the credit tree, which holds its guarantees.
func (f *Function) UseCredits(n *credit.Node) { f.sched.credits = n }

// EachQP calls f for every queue pair, in the order of table slots.
func (f *Function) EachQP(call func(*verbs.QPInfo)) {
	f.Objects.EachQP(func(q *verbs.QP, info *verbs.QPInfo) {
		info.Rate = f.sched.throttle.Armed() && q.Queued.On() != nil
		call(info)
	})
}

// Stats counts what happened since the function (or, summed, the engine) was made.
type Stats struct {
	verbs.Stats
	transport.Counters
}

// add adds o to s.
func (s *Stats) add(o *Stats) {
	s.Stats.Add(&o.Stats)
	s.Counters.Add(&o.Counters)
}
