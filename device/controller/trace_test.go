package controller

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// traced is a fake shard whose functions can be traced.
type traced struct {
	fake
	ring   *trace.Ring
	refuse error
	ended  int
}

func (f *traced) Ask(ask func(View, vtime.Time)) error {
	if f.stopped {
		return errStopped
	}
	ask(f, 7)
	return nil
}

func (f *traced) StartTrace(pfvf.ID, uint32) (*trace.Ring, error) { return f.ring, f.refuse }
func (f *traced) EndTrace(pfvf.ID)                                { f.ended++ }

// lines calls itself with each line that is written.
type lines func(line []byte)

func (f lines) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// TestTraceEnds checks that a trace writes what is recorded while it runs, until its context ends,
// and that the shard stops recording then. A missing function or a shard that has ended gives an
// error.
func TestTraceEnds(t *testing.T) {
	at := int64(0)
	s := &traced{ring: trace.NewRing(64, func() int64 { at++; return at }, 0)}
	api := &API{c: Config{Host: 1, Shards: Shards{All: []Shard{s}}, WallOffset: func() int64 { return 0 }}}
	request := func(n uint32) {
		s.ring.Add(&trace.Event{Kind: trace.Read, Work: 1, Index: n, Arg: uint64(n)})
		s.ring.Add(&trace.Event{Kind: trace.Completed, Work: 1, Index: n, Flags: trace.Silent})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := 0
	err := api.Trace(ctx, control.TraceRequest{Function: "pf0.vf1"}, lines(func(line []byte) {
		switch {
		case bytes.Contains(line, []byte(`"tracing"`)):
			request(0)
		case seen == 3:
			cancel()
		default:
			seen++
			request(uint32(seen))
		}
	}))
	if err != nil || seen != 3 || ctx.Err() == nil || s.ended != 1 {
		t.Errorf("%v, %d requests seen, ended %d times", err, seen, s.ended)
	}
	none := lines(func(line []byte) { t.Errorf("written: %s", line) })
	s.refuse = errors.New("there is no such function")
	if err := api.Trace(t.Context(), control.TraceRequest{Function: "pf0.vf1"}, none); !errors.As(err, new(control.BadRequest)) {
		t.Errorf("of a function that is not there: %v", err)
	}
	if err := api.Trace(t.Context(), control.TraceRequest{Function: "nonsense"}, none); !errors.As(err, new(control.BadRequest)) {
		t.Errorf("of nonsense: %v", err)
	}
	s.stopped = true
	if err := api.Trace(t.Context(), control.TraceRequest{Function: "pf0.vf1"}, none); !errors.Is(err, errStopped) {
		t.Errorf("of a shard that has ended: %v", err)
	}
}
