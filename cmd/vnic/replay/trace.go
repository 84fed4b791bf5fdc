package replay

import (
	"encoding/json"
	"errors"

	"github.com/falcon-vnic/vnic/cmd/vnic/show"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// tracing prints the requests of a function as vnic trace does. All that happens in a Step has the
// time of the Step. The nil tracing prints nothing.
type tracing struct {
	ring   *trace.Ring
	puts   *trace.Assembler
	events []trace.Event
	sum    show.Summary
	after  func() error // prints what comes at the end
	err    error
}

// newTracing begins to trace the function of --trace.
func (x *run) newTracing() (t *tracing, err error) {
	t = &tracing{after: func() error { return nil }}
	if t.ring, err = x.player.Shard.View().Traces.Start(x.traced, 0); err != nil {
		return nil, err
	}
	put := func(op *control.Operation) error { return show.PrintOperation(x.o.out, op) }
	if x.o.json {
		enc := json.NewEncoder(x.o.out)
		put = func(op *control.Operation) error { return enc.Encode(op) }
	} else {
		t.after = func() error { return t.sum.Print(x.o.out) }
	}
	t.puts = trace.NewAssembler(func(o *trace.Operation) {
		op := controller.DescribeOperation(x.traced, o, x.r.Offset)
		if len(op.Steps) == 0 || t.err != nil {
			return
		}
		if !op.Open {
			t.sum.Add(op)
		}
		t.err = put(op)
	})
	return t, nil
}

// take collects the events since the last call.
func (t *tracing) take() {
	if t == nil {
		return
	}
	t.events, _ = t.ring.Take(t.events[:0]) // a Step has not so many that any are lost
	for i := range t.events {
		t.puts.Take(&t.events[i])
	}
}

// end prints the requests that are not complete, and the summary.
func (t *tracing) end() error {
	if t == nil {
		return nil
	}
	t.puts.Finish()
	return errors.Join(t.err, t.after())
}
