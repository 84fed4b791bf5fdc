package shard

import (
	"fmt"

	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// setTrace makes a function record its requests in r; nil: it stops.
func (fs *functionSet) setTrace(id pfvf.ID, r *trace.Ring) {
	if fs.traces[id] = r; r == nil {
		delete(fs.traces, id)
	}
	if f := fs.byID[id]; f != nil {
		if f.conns.Trace = r; f.Verbs() != nil {
			f.Verbs().UseTrace(r)
		}
	}
}

// startTrace starts tracing a function.
func (fs *functionSet) startTrace(id pfvf.ID, qpn uint32) (*trace.Ring, error) {
	switch f := fs.byID[id]; {
	case f == nil && !fs.possible(id):
		return nil, because(fs.core.Find(id))
	case fs.traces[id] != nil:
		return nil, fmt.Errorf("function %s is traced already; end that trace first", id)
	case len(fs.traces) >= maxTraces:
		return nil, fmt.Errorf("%d functions are traced already; end one of the traces", maxTraces)
	case qpn != 0 && (f == nil || f.Verbs() == nil || f.Verbs().QP(qpn) == nil):
		return nil, fmt.Errorf("function %s has no queue pair %#x; `vnic show qps` lists them", id, qpn)
	}
	r := trace.NewRing(traceEvents, fs.clock, qpn)
	fs.setTrace(id, r)
	return r, nil
}
