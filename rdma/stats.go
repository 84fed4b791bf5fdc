package rdma

import (
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Stats counts what happened since the function (or, summed, the engine) was made.
type Stats struct {
	verbs.Stats
	transport.Counters
	BadQKeys  uint64 // datagrams with the wrong Q_Key
	QPErrors  uint64 // QPs that moved to ERR by themselves
	Doorbells uint64 // doorbells taken
}

// add adds o to s.
func (s *Stats) add(o *Stats) {
	s.Stats.Add(&o.Stats)
	s.Counters.Add(&o.Counters)
	s.BadQKeys += o.BadQKeys
	s.QPErrors += o.QPErrors
	s.Doorbells += o.Doorbells
}
