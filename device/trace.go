package device

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
	rdmawire "github.com/falcon-vnic/vnic/rdma/wire"
)

// Bounds of tracing.
const (
	maxTraces   = 8                     // functions traced at one time
	traceEvents = 1 << 16               // of one function, between two looks
	traceLook   = 10 * time.Millisecond // between looks
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
		return nil, fmt.Errorf("function %s: there is none; %s", id, fs.inReach(id))
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

// Trace writes a line for each request of a function, as it becomes complete,
// until ctx ends or w fails; at its end also for those that are not. It implements
// control.Provider.
func (n *NIC) Trace(ctx context.Context, what control.TraceRequest, w io.Writer) error {
	id, err := n.ID(what.Function)
	if err != nil {
		return control.BadRequest{Err: err}
	}
	if what.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, what.For)
		defer cancel()
	}
	var ring *trace.Ring
	if stopped := n.shard.do(func(falcon.Time) { ring, err = n.shard.funcs.startTrace(id, what.QPN) }); stopped != nil {
		return stopped
	}
	if err != nil {
		return control.BadRequest{Err: err}
	}
	t := &tracer{id: id, out: json.NewEncoder(w), offset: n.wallOffset()}
	t.assembler = trace.NewAssembler(t.operation)
	t.line(&control.TraceLine{Tracing: id.String()})
	tick := time.NewTicker(traceLook)
	defer tick.Stop()
	for ctx.Err() == nil && t.err == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		if n.shard.do(func(falcon.Time) { t.take(ring) }) != nil {
			break
		}
		t.digest()
	}
	_ = n.shard.do(func(falcon.Time) { // nothing to do when the shard has ended
		t.take(ring)
		n.shard.funcs.setTrace(id, nil)
	})
	t.digest()
	t.assembler.Finish()
	return nil
}

// tracer turns the events of a function into lines.
type tracer struct {
	id        pfvf.ID
	out       *json.Encoder
	offset    int64 // wall clock less the shard's
	assembler *trace.Assembler
	events    []trace.Event
	lost      uint64
	err       error // of out
}

// take is called on the shard's thread.
func (t *tracer) take(r *trace.Ring) { t.events, t.lost = r.Take(t.events[:0]) }

func (t *tracer) digest() {
	if t.lost > 0 {
		t.line(&control.TraceLine{Lost: t.lost})
	}
	for i := range t.events {
		t.assembler.Take(&t.events[i])
	}
	t.events = t.events[:0]
}

func (t *tracer) line(l *control.TraceLine) {
	if t.err == nil {
		t.err = t.out.Encode(l)
	}
}

func (t *tracer) operation(o *trace.Operation) {
	t.line(&control.TraceLine{Operation: describeOperation(t.id, o, t.offset)})
}

// describeOperation shows an operation; offset is the wall clock less the
// shard's.
func describeOperation(id pfvf.ID, o *trace.Operation, offset int64) *control.Operation {
	v := &control.Operation{
		Function: id.String(), Side: "requester", QPN: o.QPN, WQE: o.Index, WRID: o.WRID, Op: abi.Opcode(o.Op).String(), Bytes: o.Length,
		Transport: "falcon", Packets: o.Packets, Again: o.Again, Found: o.Found, Open: !o.Whole(),
	}
	if o.Responder {
		v.Side, v.WQE, v.RSN, v.CID, v.Op = "responder", 0, o.Index, o.Conn, fmt.Sprintf("opcode %#x", o.Op)
		if info := rdmawire.Opcode(o.Op).Info(); info != nil {
			v.Op = info.Name
		}
	}
	switch {
	case o.Loopback:
		v.Transport = "loopback"
	case o.Packets == 0 && o.At[trace.StepIssued] == 0:
		v.Transport = "none"
	}
	if o.At[trace.StepCompleted] != 0 {
		v.Status = abi.WCStatus(o.Status).String()
	}
	marks := o.Marks()
	for i, m := range marks {
		step := control.Step{Name: m.Step.String(), At: m.At + offset}
		if i > 0 {
			step.After = m.At - marks[i-1].At
		}
		v.Steps = append(v.Steps, step)
	}
	return v
}
