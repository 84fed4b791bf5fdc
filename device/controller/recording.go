package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// anyPort selects the ports of all functions.
const anyPort = "any"

// Capture writes a capture of the traffic to w until ctx ends. It implements control.Provider.
func (a *API) Capture(ctx context.Context, mode string, ports []string, w io.Writer) error {
	switch mode {
	case config.CaptureSealed, config.CaptureClear, config.CaptureBoth:
	case "":
		if len(ports) == 0 {
			return control.BadRequest{Err: errors.New("nothing to capture: name a mode or a port")}
		}
	default:
		return control.BadRequest{Err: fmt.Errorf("mode %q: write sealed, clear or both", mode)}
	}
	wanted, err := a.portsNamed(ports)
	if err != nil {
		return err
	}
	c, described := capture.NewSink(nil, mode), make([]capture.Port, len(wanted))
	c.AnyPort, c.Ports = slices.Contains(ports, anyPort), map[capture.Port]int{}
	for i, p := range wanted {
		described[i], c.Ports[p.Port] = p.Port, capture.Clear+1+i
	}
	if c.To, err = capture.New(w, mode, described...); err != nil {
		return err
	}
	if err := a.startCapture(&c); err != nil {
		return errors.Join(err, c.To.Close())
	}
	select {
	case <-ctx.Done():
	case <-c.To.Failed(): // the reader went away
	}
	a.EndCapture(c.To)
	return c.To.Close()
}

// startCapture starts a capture on every shard. If one fails, it ends the capture on all.
func (a *API) startCapture(c *capture.Sink) (err error) {
	stopped := a.c.Shards.Each(func(v View, _ vtime.Time) {
		if err == nil {
			err = v.Captures.Start(c, a.c.WallOffset())
		}
	})
	if stopped == nil && err == nil {
		return nil
	}
	a.EndCapture(c.To)
	if err != nil {
		err = control.BadRequest{Err: err}
	}
	return errors.Join(stopped, err)
}

// EndCapture ends a capture on every shard.
func (a *API) EndCapture(c *capture.Capture) {
	_ = a.c.Shards.Each(func(v View, _ vtime.Time) { v.Captures.End(c) }) // an error means that the shards have ended: nothing to do
}

// portsNamed finds ports by the names of their devices or functions.
func (a *API) portsNamed(names []string) (found []capture.NamedPort, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	var all []capture.NamedPort
	if err := a.c.Shards.Each(func(v View, _ vtime.Time) { all = append(all, v.Captures.Ports()...) }); err != nil {
		return nil, err
	}
	if slices.Contains(names, anyPort) {
		return all, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(p capture.NamedPort) bool { return name == p.Name || slices.Contains(p.Names, name) })
		if i < 0 {
			known := []string{anyPort}
			for _, p := range all {
				known = append(known, p.Name)
			}
			if len(all) == 0 {
				return nil, control.BadRequest{Err: fmt.Errorf("port %q: no function of this NIC has a port", name)}
			}
			return nil, control.BadRequest{Err: fmt.Errorf("unknown port %q; use one of %s", name, strings.Join(known, ", "))}
		}
		if !slices.ContainsFunc(found, func(p capture.NamedPort) bool { return p.Port == all[i].Port }) {
			found = append(found, all[i])
		}
	}
	return found, nil
}

const traceLook = 10 * time.Millisecond // time between reads of the shard's trace ring

// Trace writes a line for each request of a function, as the request completes, until ctx ends or w
// fails. At the end it also writes the requests that are not complete. It implements
// control.Provider.
func (a *API) Trace(ctx context.Context, what control.TraceRequest, w io.Writer) error {
	id, err := a.ID(what.Function)
	if err != nil {
		return control.BadRequest{Err: err}
	}
	if what.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, what.For)
		defer cancel()
	}
	shard := a.c.Shards.of(id)
	var ring *trace.Ring
	if stopped := shard.Ask(func(v View, _ vtime.Time) { ring, err = v.Traces.Start(id, what.QPN) }); stopped != nil {
		return stopped
	}
	if err != nil {
		return control.BadRequest{Err: err}
	}
	t := &tracer{id: id, out: json.NewEncoder(w), offset: a.c.WallOffset()}
	t.assembler = trace.NewAssembler(t.operation)
	t.line(&control.TraceLine{Tracing: id.String()})
	tick := time.NewTicker(traceLook)
	defer tick.Stop()
	for ctx.Err() == nil && t.err == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		if shard.Ask(func(View, vtime.Time) { t.take(ring) }) != nil {
			break
		}
		t.digest()
	}
	_ = shard.Ask(func(v View, _ vtime.Time) { // error: the shard has ended, nothing to do
		t.take(ring)
		v.Traces.End(id)
	})
	t.digest()
	t.assembler.Finish()
	return nil
}

// tracer turns the trace events of a function into lines.
type tracer struct {
	id        pfvf.ID
	out       *json.Encoder
	offset    int64 // wall clock minus the shard's clock, ns
	assembler *trace.Assembler
	events    []trace.Event
	lost      uint64
	err       error // error of writing to out
}

// take moves the events out of the ring. It is called on the shard's thread.
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
	t.line(&control.TraceLine{Operation: DescribeOperation(t.id, o, t.offset)})
}

// DescribeOperation converts a traced operation to the form that operators see. offset is the wall
// clock minus the shard's clock, in ns.
func DescribeOperation(id pfvf.ID, o *trace.Operation, offset int64) *control.Operation {
	v := &control.Operation{
		Function: id.String(), Side: "requester", QPN: o.QPN, WQE: o.Index, WRID: o.WRID, Op: abi.Opcode(o.Op).String(), Bytes: o.Length,
		Transport: o.Over().Name, Packets: o.Packets, Again: o.Again, Found: o.Found, Open: !o.Whole(),
	}
	if o.Responder {
		v.Side, v.WQE, v.RSN, v.Op = "responder", 0, o.Index, o.PacketName()
		if o.Over().Conns {
			v.CID = o.Conn
		}
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
