package rdma

import (
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

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
