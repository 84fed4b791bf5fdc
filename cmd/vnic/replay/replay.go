package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/show"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// options are the flags of `vnic replay`.
type options struct {
	until   string
	breakAt string
	capture string
	log     string
	steps   uint64     // of --until; 0: none
	after   int64      // of --until, ns; 0: none
	level   slog.Level // of --log
}

// Values of --break.
const (
	breakViolation = "violation"
	breakFault     = "fault"
	breakQPError   = "qp-error"
)

var breaks = []string{breakViolation, breakFault, breakQPError}

// Command returns the command.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "replay FILE",
		Short: "run a recorded NIC again",
		Long: `Runs the shards of a NIC that vnic run --record recorded, from the recording
alone: without guests, uplink, peers and keys. After each Step it compares what
goes out (frames, writes to guest memory, messages to drivers, frames for ports,
requests to the core) with what went out then. The first difference ends it,
with exit status 1. --until and --break stop earlier and show the state there,
as vnic show does.`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			r, err := record.Read(f)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return o.replay(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), r)
		},
	}
	f := c.Flags()
	f.StringVar(&o.until, "until", "", "stop at this Step (12000), or so long after the beginning (1.5s), and show the state")
	f.StringVar(&o.breakAt, "break", "", "stop after the first Step with this, and show the state: "+strings.Join(breaks, ", "))
	_ = c.RegisterFlagCompletionFunc("break", cli.Words(breaks...))
	f.StringVar(&o.capture, "capture", "", "write the packets, as they were before they were sealed, to this pcapng file")
	f.StringVar(&o.log, "log", "", "write the log to stderr, at this level: debug, info, warn, error")
	return c
}

func (o *options) check() error {
	if o.breakAt != "" && !slices.Contains(breaks, o.breakAt) {
		return cli.Usagef("--break %q: write one of %s", o.breakAt, strings.Join(breaks, ", "))
	}
	if o.log != "" {
		if err := o.level.UnmarshalText([]byte(o.log)); err != nil {
			return cli.Usagef("--log %q: write debug, info, warn or error", o.log)
		}
	}
	if o.until == "" {
		return nil
	}
	if n, err := strconv.ParseUint(o.until, 10, 64); err == nil && n > 0 {
		o.steps = n
		return nil
	}
	d, err := time.ParseDuration(o.until)
	if err != nil || d <= 0 {
		return cli.Usagef("--until %q: write the number of a Step, as 12000, or a time, as 1.5s", o.until)
	}
	o.after = int64(d)
	return nil
}

// replay replays all shards.
func (o *options) replay(ctx context.Context, w, errs io.Writer, r *record.Recording) error {
	cfg, err := config.Parse([]byte(r.Config))
	if err != nil {
		return fmt.Errorf("the configuration in the recording is not one of this program:\n%w", err)
	}
	if err := device.Recordable(cfg); err != nil {
		return err
	}
	fmt.Fprintf(w, "NIC %s, recorded by vnic %s from %s on\n", r.NIC, r.Version, at(r.Started))
	if r.Version != device.Version {
		fmt.Fprintf(w, "this is vnic %s: it may do something else than the one that was recorded\n", device.Version)
	}
	for i := range r.Shards {
		run := run{o: o, r: r, tape: r.Tape(i), out: w}
		if err := run.shard(ctx, i, cfg, errs); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	return nil
}

// at is a time for people.
func at(ns int64) string { return time.Unix(0, ns).Format("2006-01-02 15:04:05.000000") }

// run is the replay of one shard.
type run struct {
	o     *options
	r     *record.Recording
	tape  *tape.Tape
	out   io.Writer
	first int64 // time of the first Step
	seen  seen
}

// seen counts what --break waits for.
type seen struct{ violations, faults, failed uint64 }

// wall returns the wall clock at a time of the shard.
func (x *run) wall(now int64) string { return at(now + x.r.Offset) }

// shard replays one shard to its end, or to where it is to stop.
func (x *run) shard(ctx context.Context, index int, cfg *config.Config, errs io.Writer) error {
	p, err := shard.NewPlayer(index, cfg, x.tape, x.log(errs))
	if err != nil {
		return err
	}
	defer p.Shard.Close()
	if x.o.capture != "" {
		c, err := capture.Create(x.o.capture, config.CaptureClear)
		if err != nil {
			return err
		}
		defer c.Close()
		sink := capture.NewSink(c, config.CaptureClear)
		if err := p.Shard.View().Captures.Start(&sink, x.r.Offset); err != nil {
			return err
		}
	}
	var k tape.Kind
	for why := ""; err == nil && why == ""; {
		if k, err = p.Next(); k != tape.Step || err != nil {
			continue
		}
		if x.first == 0 {
			x.first = x.tape.Now()
		}
		if why = x.stops(p.Shard); why != "" {
			fmt.Fprintf(x.out, "shard %d: Step %d at %s: %s\n", index, x.tape.Steps(), x.wall(x.tape.Now()), why)
			return x.show(p.Shard)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	var d *tape.Difference
	switch {
	case errors.Is(err, io.EOF):
		took := time.Duration(x.tape.Now() - x.first)
		fmt.Fprintf(x.out, "shard %d: %d Steps in %s, to %s: what went out is what was recorded\n", index, x.tape.Steps(), took.Round(time.Microsecond), x.wall(x.tape.Now()))
		return nil
	case errors.As(err, &d):
		var before []string
		for _, k := range d.Before {
			before = append(before, k.String())
		}
		return fmt.Errorf("%s in Step %d, at %s; before that: %s", d.What, d.Step, x.wall(d.Now), strings.Join(before, ", "))
	}
	return err
}

// log returns the log of the shard, in the time of the recording.
func (x *run) log(w io.Writer) *slog.Logger {
	if x.o.log == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: x.o.level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			a.Value = slog.StringValue(x.wall(x.tape.Now()))
		}
		return a
	}}))
}

// stops says why the replay stops after this Step; "": it goes on.
func (x *run) stops(s *shard.Shard) string {
	switch {
	case x.o.steps != 0 && x.tape.Steps() >= x.o.steps:
		return "stopped there"
	case x.o.after != 0 && x.tape.Now()-x.first >= x.o.after:
		return "stopped there"
	case x.o.breakAt == "":
		return ""
	}
	was := x.seen
	x.seen = look(s)
	switch is := x.seen; {
	case x.o.breakAt == breakViolation && is.violations > was.violations:
		return "a driver broke a rule"
	case x.o.breakAt == breakFault && is.faults > was.faults:
		return "a function has a fault"
	case x.o.breakAt == breakQPError && is.failed > was.failed:
		return "a queue pair is in error"
	}
	return ""
}

// look counts what --break waits for.
func look(s *shard.Shard) (n seen) {
	v := s.View()
	for _, id := range v.Functions.Present() {
		for _, is := range v.Objects.Violations(0, id) {
			n.violations += uint64(is.Count)
		}
		if v.Functions.Describe(id).Fault != "" {
			n.faults++
		}
		for _, q := range v.Objects.QPs(id) {
			if q.State == abi.QPStateErr.String() || q.State == abi.QPStateSQE.String() {
				n.failed++
			}
		}
	}
	return n
}

// show prints the state of a shard.
func (x *run) show(s *shard.Shard) error {
	v := s.View()
	var fs []control.Function
	var qps []control.QP
	var queues []control.Queue
	var conns []control.Connection
	var broke []control.Violation
	for _, id := range v.Functions.Present() {
		fs = append(fs, v.Functions.Describe(id))
		qps = append(qps, v.Objects.QPs(id)...)
		queues = append(queues, v.Objects.Queues(id)...)
		conns = append(conns, v.Objects.Connections(x.tape.Now(), id)...)
		broke = append(broke, v.Objects.Violations(x.tape.Now(), id)...)
	}
	for _, part := range []struct {
		name string
		is   any
		none bool
	}{
		{"functions", fs, len(fs) == 0},
		{"qps", qps, len(qps) == 0},
		{"queues", queues, len(queues) == 0},
		{"connections", conns, len(conns) == 0},
		{"violations", broke, len(broke) == 0},
	} {
		if part.none {
			continue
		}
		fmt.Fprintln(x.out)
		if err := cli.PrintTable(x.out, func(w io.Writer) { show.Print(w, part.name, part.is) }); err != nil {
			return err
		}
	}
	return nil
}
