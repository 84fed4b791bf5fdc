package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// TestAStepIsShownInWallClockTime checks that a step is shown in wall-clock time with the time
// since the step before, and that a request is described by its side and its wire.
func TestAStepIsShownInWallClockTime(t *testing.T) {
	o := &trace.Operation{QPN: 5, Index: 6, Conn: 7, WRID: 8, Op: uint8(abi.OpSend), Length: 9, Packets: 2, Again: 1}
	o.At[trace.StepIssued], o.At[trace.StepCompleted] = 100, 130
	datagrams := trace.AddWire(&trace.Wire{Name: "datagrams"})
	o.Wire = trace.AddWire(&trace.Wire{Name: "connections", Conns: true})
	v := DescribeOperation(vf(1), o, 1000)
	if len(v.Steps) != 2 || v.Steps[0].At != 1100 || v.Steps[0].After != 0 || v.Steps[1].At != 1130 ||
		v.Steps[1].After != 30 {
		t.Errorf("%+v", v.Steps)
	}
	if v.Side != "requester" || v.WQE != 6 || v.CID != 0 || v.RSN != 0 || v.Transport != "connections" ||
		v.Status != abi.WCSuccess.String() || !v.Open || v.Op != abi.OpSend.String() {
		t.Errorf("%+v", v)
	}
	for _, c := range []struct {
		change func(o *trace.Operation)
		want   string
	}{
		{func(o *trace.Operation) { o.Wire = datagrams }, "datagrams"},
		{func(o *trace.Operation) { o.Wire = 0 }, "none"},
	} {
		changed := *o
		if c.change(&changed); DescribeOperation(vf(1), &changed, 0).Transport != c.want {
			t.Errorf("%+v is not by %s", changed, c.want)
		}
	}
	o.Responder, o.At[trace.StepCompleted] = true, 0
	if v := DescribeOperation(vf(1), o, 0); v.Side != "responder" || v.WQE != 0 || v.RSN != 6 || v.CID != 7 ||
		v.Status != "" {
		t.Errorf("%+v", v)
	}
	if o.Wire = datagrams; DescribeOperation(vf(1), o, 0).CID != 0 {
		t.Error("a packet of a wire without connections has the identifier of one")
	}
	o.Op = 0xff
	if v := DescribeOperation(vf(1), o, 0); v.Op != "opcode 0xff" {
		t.Errorf("%+v", v)
	}
}

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
	ask(View{Functions: f, Traces: f}, 7)
	return nil
}

func (f *traced) Start(pfvf.ID, uint32) (*trace.Ring, error) { return f.ring, f.refuse }
func (f *traced) End(pfvf.ID)                                { f.ended++ }

// lines calls itself with each line that is written.
type lines func(line []byte)

func (f lines) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// TestATraceRunsUntilItsContextEnds checks that a trace writes what is recorded while it runs,
// until its context ends, and that the shard stops recording then. A missing function or a shard
// that has ended gives an error.
func TestATraceRunsUntilItsContextEnds(t *testing.T) {
	at := int64(0)
	s := &traced{ring: trace.NewRing(64, func() int64 { at++; return at }, 0)}
	api := &API{c: Config{Host: 1, Shards: Shards{All: []Viewer{s}}, WallOffset: func() int64 { return 0 }}}
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

// TestACaptureRunsOnAllShards checks that a capture starts and ends on all shards, with an
// interface for each requested port.
func TestACaptureRunsOnAllShards(t *testing.T) {
	for _, c := range []struct {
		mode          string
		ports         []string
		sealed, clear bool
		any           bool
		of            map[string]int
	}{
		{config.CaptureSealed, nil, true, false, false, map[string]int{}},
		{config.CaptureClear, nil, false, true, false, map[string]int{}},
		{config.CaptureBoth, []string{"vp2"}, true, true, false, map[string]int{"vp2": capture.Clear + 1}},
		{"", []string{"vp2", "vp1"}, false, false, false, map[string]int{"vp2": capture.Clear + 1, "vp1": capture.Clear + 2}},
		{"", []string{"any"}, false, false, true, map[string]int{"vp1": capture.Clear + 3, "vp2": capture.Clear + 4}},
	} {
		a, b := &told{}, &told{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var file bytes.Buffer
		if err := asked(nil, a, b).Capture(ctx, c.mode, c.ports, &file); err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if len(a.begun) != 1 || len(b.begun) != 1 || len(a.ended) != 1 || len(b.ended) != 1 ||
			a.ended[0] != a.begun[0].To || file.Len() == 0 {
			t.Errorf("%+v: begun %v and %v, ended %v and %v", c, a.begun, b.begun, a.ended, b.ended)
			continue
		}
		sink := a.begun[0]
		of := map[string]int{}
		for p, n := range sink.Ports {
			of[p.Name] = n
		}
		if sink.Sealed != c.sealed || sink.Clear != c.clear || sink.AnyPort != c.any ||
			fmt.Sprint(of) != fmt.Sprint(c.of) {
			t.Errorf("%+v: %+v", c, sink)
		}
	}
}

// TestACaptureThatCannotStartIsEndedOnAllShards checks that a capture that cannot start returns an
// error and is ended on all shards.
func TestACaptureThatCannotStartIsEndedOnAllShards(t *testing.T) {
	for _, c := range []struct {
		mode  string
		ports []string
		want  string
	}{{"", nil, "name a mode or a port"}, {"all", []string{"vp1"}, `mode "all"`}, {"", []string{"vp9"}, "vp9"}} {
		a, b := &told{}, &told{}
		err := asked(nil, a, b).Capture(t.Context(), c.mode, c.ports, &bytes.Buffer{})
		if !errors.As(err, new(control.BadRequest)) || !strings.Contains(err.Error(), c.want) || a.begun != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, second := range []*told{{refuse: errors.New("one too many")}, {stopped: true}} {
		a, b := &told{}, second
		err := asked(nil, a, b).Capture(t.Context(), config.CaptureClear, nil, &bytes.Buffer{})
		if bad := errors.As(err, new(control.BadRequest)); bad != (second.refuse != nil) ||
			second.stopped != errors.Is(err, errStopped) || len(a.ended) != 1 {
			t.Errorf("%v, ended %d times", err, len(a.ended))
		}
	}
	a, b := &told{refuse: errors.New("one too many")}, &told{}
	if err := asked(nil, a, b).Capture(t.Context(), config.CaptureClear, nil, &bytes.Buffer{}); err == nil ||
		b.begun != nil {
		t.Errorf("%v, begun on the shard behind the one that refused", err)
	}
}

// TestAPortIsFoundByEitherName checks that ports are found on every shard by either name, each
// once, and that the error for an unknown name lists the known ones.
func TestAPortIsFoundByEitherName(t *testing.T) {
	named := func(name string, also ...string) capture.NamedPort {
		return capture.NamedPort{Port: capture.Port{Name: name}, Names: also}
	}
	a, b := &part{ports: []capture.NamedPort{named("vp0", "h1.pf0", "pf0"), named("vp1", "h1.pf0.vf1")}}, &part{ports: []capture.NamedPort{named("vp2", "h1.pf0.vf2")}}
	api := &API{c: Config{Shards: Shards{All: []Viewer{a, b}}}}
	for _, c := range []struct{ names, want string }{
		{"", "[]"},
		{"vp0", "[vp0]"},
		{"pf0", "[vp0]"},
		{"vp2", "[vp2]"},
		{"vp1 vp0", "[vp1 vp0]"},
		{"vp0 pf0 h1.pf0 vp0", "[vp0]"},
		{"any", "[vp0 vp1 vp2]"},
		{"vp1 any", "[vp0 vp1 vp2]"},
		{"vp3", `unknown port "vp3"; use one of any, vp0, vp1, vp2`},
		{"vp0 pf1", `unknown port "pf1"; use one of any, vp0, vp1, vp2`},
	} {
		found, err := api.portsNamed(strings.Fields(c.names))
		var names []string
		for _, p := range found {
			names = append(names, p.Name)
		}
		got := fmt.Sprint(names)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.names, got, c.want)
		}
	}
}
