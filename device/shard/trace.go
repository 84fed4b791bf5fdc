package shard

import (
	"encoding/binary"
	"fmt"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Bounds of tracing.
const (
	maxTraces   = 8       // functions traced at one time
	traceEvents = 1 << 16 // of one function, between two looks
)

// noteReceived notes a request of the peer that was opened.
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

// acknowledges is what a Falcon packet of c, not sealed yet, says of those that
// came: the bases of the receiver's windows are in the same place in all types
// that have them (Falcon §7.1, §7.7).
func acknowledges(c *conn.Slot, packet []byte) trace.Event {
	t, drop := wire.Peek(packet)
	if drop != wire.DropNone || len(packet) < 16 || !t.HasBase() && t != wire.TypeBACK && t != wire.TypeEACK && t != wire.TypeNACK {
		return trace.Event{}
	}
	return trace.Event{
		Kind: trace.Answered, Conn: c.CID, Index: binary.BigEndian.Uint32(packet[12:]), Extra: binary.BigEndian.Uint32(packet[8:]), Flags: trace.Responder,
	}
}

// noteSealed notes that the packet of c that the transport took is sealed.
func noteSealed(c *conn.Slot, acks *trace.Event) {
	c.Owner.Trace.SealedPacket()
	if acks.Kind != 0 {
		c.Owner.Trace.Add(acks)
	}
}

// noteUnsealed notes that the packet of c that the transport took goes nowhere.
func noteUnsealed(c *conn.Slot) {
	if c.Owner.Trace != nil {
		c.Owner.Trace.Unfilled()
	}
}

// setTrace makes a function note what happens to its requests in r; nil: nothing
// any more.
func (fs *functionSet) setTrace(id pfvf.ID, r *trace.Ring) {
	if fs.shard.traces == nil {
		fs.shard.traces = map[pfvf.ID]*trace.Ring{}
	}
	if fs.shard.traces[id] = r; r == nil {
		delete(fs.shard.traces, id)
	}
	if f := fs.byID[id]; f != nil {
		if f.conns.Trace = r; f.Verbs() != nil {
			f.Verbs().UseTrace(r)
		}
	}
}

// startTrace begins to trace a function.
func (fs *functionSet) startTrace(id pfvf.ID, qpn uint32) (*trace.Ring, error) {
	switch f := fs.byID[id]; {
	case f == nil && !fs.possible(id):
		return nil, because(fs.shard.core.Find(id))
	case fs.shard.traces[id] != nil:
		return nil, fmt.Errorf("function %s is traced already; end that trace first", id)
	case len(fs.shard.traces) >= maxTraces:
		return nil, fmt.Errorf("%d functions are traced already; end one of the traces", maxTraces)
	case qpn != 0 && (f == nil || f.Verbs() == nil || f.Verbs().QP(qpn) == nil):
		return nil, fmt.Errorf("function %s has no queue pair %#x; `vnic show qps` lists them", id, qpn)
	}
	r := trace.NewRing(traceEvents, fs.shard.clock, qpn)
	fs.setTrace(id, r)
	return r, nil
}

// StartTrace implements controller.View.
func (v View) StartTrace(id pfvf.ID, qpn uint32) (*trace.Ring, error) {
	return v.s.funcs.startTrace(id, qpn)
}

// EndTrace implements controller.View.
func (v View) EndTrace(id pfvf.ID) { v.s.funcs.setTrace(id, nil) }
