package shard

import (
	"encoding/binary"

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
