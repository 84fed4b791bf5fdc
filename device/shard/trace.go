package shard

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Limits of tracing.
const (
	maxTraces   = 8       // functions traced at one time
	traceEvents = 1 << 16 // events of one function between two reads
)

// tracer records what happens to requests. Its clock tells the time within a Step.
type tracer struct {
	traces  map[pfvf.ID]*trace.Ring // by traced function
	clock   func() int64
	arrived int64 // arrival time of the current frame, by clock
}

// frame records the arrival of a frame.
func (t *tracer) frame() {
	if len(t.traces) > 0 {
		t.arrived = t.clock()
	}
}

// noteReceived records a request of the peer, after it was opened.
func noteReceived(at int64, c *conn.Slot, packet []byte) {
	var h wire.Header
	if h.Parse(packet) != wire.DropNone || h.Type != wire.TypePushData && h.Type != wire.TypePullRequest {
		return
	}
	e := trace.Event{Conn: c.CID, Index: h.RSN, Extra: h.PSN}
	if h.Type == wire.TypePushData {
		e.Flags = trace.Data
	}
	c.Owner.Trace.Arrived(at, &e)
}

// acknowledges returns the acknowledgement that a Falcon packet of c carries, before it is sealed:
// the bases of the receiver's windows are in the same place in all types (Falcon §7.1, §7.7).
func acknowledges(c *conn.Slot, packet []byte) trace.Event {
	return trace.Event{
		Kind: trace.Answered, Conn: c.CID, Index: binary.BigEndian.Uint32(packet[12:]), Extra: binary.BigEndian.Uint32(packet[8:]), Flags: trace.Responder,
	}
}

// noteSealed records that the packet of c that the transport made was sealed.
func noteSealed(c *conn.Slot, acks *trace.Event) {
	c.Owner.Trace.SealedPacket()
	c.Owner.Trace.Add(acks)
}

// noteUnsealed records that the packet of c that the transport made was not sent.
func noteUnsealed(c *conn.Slot) {
	if c.Owner.Trace != nil {
		c.Owner.Trace.Unfilled()
	}
}

// setTrace makes a function record its requests in r; nil: it stops.
func (fs *functionSet) setTrace(id pfvf.ID, r *trace.Ring) {
	if fs.trace.traces[id] = r; r == nil {
		delete(fs.trace.traces, id)
	}
	if f := fs.members.get(id); f != nil {
		if f.conns.Trace = r; f.Verbs() != nil {
			f.Verbs().UseTrace(r)
		}
	}
}

// TraceView starts and ends the tracing of functions. It implements controller.TraceView.
type TraceView struct{ fs *functionSet }

// Start implements controller.TraceView.
func (v TraceView) Start(id pfvf.ID, qpn uint32) (*trace.Ring, error) {
	fs := v.fs
	switch f := fs.members.get(id); {
	case f == nil && !fs.possible(id):
		return nil, reasonOf(fs.core.Find(id))
	case fs.trace.traces[id] != nil:
		return nil, fmt.Errorf("function %s is traced already; end that trace first", id)
	case len(fs.trace.traces) >= maxTraces:
		return nil, fmt.Errorf("%d functions are traced already; end one of the traces", maxTraces)
	case qpn != 0 && (f == nil || f.Verbs() == nil || f.Verbs().QP(qpn) == nil):
		return nil, fmt.Errorf("function %s has no queue pair %#x; `vnic show qps` lists them", id, qpn)
	}
	r := trace.NewRing(traceEvents, fs.trace.clock, qpn)
	fs.setTrace(id, r)
	return r, nil
}

// End implements controller.TraceView.
func (v TraceView) End(id pfvf.ID) { v.fs.setTrace(id, nil) }
