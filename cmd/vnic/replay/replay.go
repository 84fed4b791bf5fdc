package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// options are the flags of `vnic replay`.
type options struct {
	until   string
	breakAt string
	capture string
	log     string
	trace   string
	reduce  string
	shard   int // -1: all
	step    bool
	list    bool
	json    bool

	stop  stop             // of --until and --break
	level slog.Level       // of --log
	in    io.Reader        // commands of --step
	out   io.Writer        // standard output
	errs  io.Writer        // standard error
	cap   *capture.Capture // nil: none
}

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
with exit status 1, and what led to it is printed.

--until and --break stop earlier and show the state there, as vnic show does.
--step takes commands from standard input: n for the next Step, c to go on, show
for the state, help for the others.

A recording of nic.recorder whose beginning had to make room cannot run again.
--list prints what came in, of any recording: frames and packets, what drivers
did, orders of the NIC's core.`,
		Example: `  vnic replay nic.rec
  vnic replay nic.rec --break violation
  vnic replay nic.rec --until 2200 --json
  vnic replay nic.rec --trace pf0.vf1
  vnic replay nic.rec --step
  vnic replay nic.rec --list
  vnic replay nic.rec --break violation --reduce small.rec`,
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
			o.in, o.out, o.errs = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return o.replay(cmd.Context(), r)
		},
	}
	f := c.Flags()
	f.StringVar(&o.until, "until", "", "stop at this `Step` (12000), or so long after the first (1.5s), and show the state")
	f.StringVar(&o.breakAt, "break", "", "stop after the first Step with this `event`, and show the state: "+strings.Join(breaks, ", ")+", or a rule as DRV-602")
	_ = c.RegisterFlagCompletionFunc("break", cli.Words(breaks...))
	f.StringVar(&o.capture, "capture", "", "write the packets, as they were before they were sealed, to this pcapng `file`")
	f.StringVar(&o.log, "log", "", "write the log to standard error, at this `level`: debug, info, warn or error")
	f.StringVar(&o.trace, "trace", "", "print the requests of this `function`, as vnic trace does")
	f.StringVar(&o.reduce, "reduce", "", "write a smaller recording to this `file` that still shows what --break names")
	f.IntVar(&o.shard, "shard", -1, "replay this shard only, counted from 0; -1: all")
	f.BoolVar(&o.step, "step", false, "take commands from standard input, Step by Step")
	f.BoolVar(&o.list, "list", false, "do not run it: print what came in, also of a recording without a beginning")
	cli.JSONFlag(f, &o.json)
	return c
}

func (o *options) check() (err error) {
	if o.step && o.json {
		return cli.Usagef("--step is for people and prints no JSON; --until and --break do")
	}
	if o.list && (o.json || o.step || o.reduce != "" || o.trace != "" || o.capture != "" || o.log != "" || o.until != "" || o.breakAt != "") {
		return cli.Usagef("--list runs nothing, and goes with --shard alone")
	}
	if o.log != "" {
		if err := o.level.UnmarshalText([]byte(o.log)); err != nil {
			return cli.Usagef("--log %q: write debug, info, warn or error", o.log)
		}
	}
	if o.stop.what, err = parseBreak(o.breakAt); err != nil {
		return cli.Usagef("--break %v", err)
	}
	if o.reduce != "" && o.breakAt == "" {
		return cli.Usagef("--reduce: write by --break what the smaller recording is to show")
	}
	if o.until != "" {
		if err := o.stop.parse(o.until); err != nil {
			return cli.Usagef("--until %v", err)
		}
	}
	return nil
}

// report is what --json prints.
type report struct {
	NIC       string    `json:"nic"`
	Version   string    `json:"version"`    // of the program that recorded it
	StartedNS int64     `json:"started_ns"` // wall clock, since 1970
	Shards    []*ending `json:"shards"`
}

// ending says how the replay of a shard ended.
type ending struct {
	Shard  int      `json:"shard"`
	Steps  uint64   `json:"steps"`
	TimeNS int64    `json:"time_ns"` // of the last Step: wall clock, since 1970
	Why    string   `json:"why"`     // why it stopped, "difference", or "end"
	Differ string   `json:"difference,omitempty"`
	Before []string `json:"before,omitempty"` // what happened before the difference
	State  *state   `json:"state,omitempty"`  // where it was told to stop
}

// Values of ending.Why, beside those of stop.
const (
	whyEnd        = "end"
	whyDifference = "difference"
)

// replay replays the shards.
func (o *options) replay(ctx context.Context, r *record.Recording) error {
	cfg, err := config.Parse([]byte(r.Config))
	if err != nil {
		return fmt.Errorf("this program does not accept the configuration in the recording:\n%w", err)
	}
	first, last := 0, r.Shards-1
	if o.shard >= 0 {
		first, last = o.shard, o.shard
	}
	traced, err := o.traced(cfg)
	switch {
	case err != nil:
		return err
	case last >= r.Shards:
		return cli.Usagef("--shard %d: the recording has %d, counted from 0", o.shard, r.Shards)
	case o.step && first != last:
		return cli.Usagef("--step: the recording has %d shards; choose one by --shard", r.Shards)
	}
	if o.list {
		return o.listShards(r, first, last)
	}
	for i := first; i <= last; i++ {
		steps, now, err := r.Begins(i)
		switch {
		case err != nil:
			return fmt.Errorf("shard %d: %w", i, err)
		case steps > 0:
			return fmt.Errorf("shard %d: the recording has no beginning: the first %d Steps, to %s, made room for later ones; --list prints what is there (a larger nic.recorder.size keeps more, vnic upgrade makes a beginning)", i, steps, at(now+r.Offset))
		}
	}
	if o.reduce != "" {
		var shards []int
		for i := first; i <= last; i++ {
			shards = append(shards, i)
		}
		return o.reduceTo(ctx, r, cfg, shards)
	}
	if o.capture != "" {
		if o.cap, err = capture.Create(o.capture, config.CaptureClear); err != nil {
			return err
		}
		defer o.cap.Close()
	}
	rep := &report{NIC: r.NIC, Version: r.Version, StartedNS: r.Started}
	o.say("NIC %s, recorded by vnic %s from %s on\n", r.NIC, r.Version, at(r.Started))
	if r.Version != device.Version {
		o.warn("this is vnic %s: it may behave differently from the one that was recorded\n", device.Version)
	}
	for i := first; i <= last && err == nil; i++ {
		x := &run{o: o, r: r, index: i, tape: r.Tape(i), stop: o.stop}
		if traced != 0 && cfg.ShardOf()(traced.PF(), traced.VF()) == i {
			x.traced = traced
		}
		if err = x.shard(ctx, cfg, rep); err != nil {
			err = fmt.Errorf("shard %d: %w", i, err)
		}
	}
	if o.json {
		err = errors.Join(cli.PrintJSON(o.out, rep), err)
	}
	return err
}

// listShards prints what came in.
func (o *options) listShards(r *record.Recording, first, last int) error {
	o.say("NIC %s, recorded by vnic %s from %s on\n", r.NIC, r.Version, at(r.Started))
	for i := first; i <= last; i++ {
		o.say("shard %d:\n", i)
		err := shard.List(r.List(i), func(n shard.Note) { o.note(r, &n) })
		if err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	return nil
}

// note prints something that happened.
func (o *options) note(r *record.Recording, n *shard.Note) {
	o.say("  Step %d, %s  %s\n", n.Step, at(n.Now + r.Offset)[len("2006-01-02 "):], n.What)
}

// traced returns the function of --trace; 0: there is none.
func (o *options) traced(cfg *config.Config) (pfvf.ID, error) {
	name := o.trace
	if name == "" {
		return 0, nil
	}
	if strings.HasPrefix(name, "pf") {
		name = fmt.Sprintf("h%d.%s", cfg.NIC.Host, name)
	}
	id, err := pfvf.ParseID(name)
	if err != nil {
		return 0, cli.Usagef("--trace: %v", err)
	}
	return id, nil
}

// say prints for people.
func (o *options) say(format string, args ...any) {
	if !o.json {
		fmt.Fprintf(o.out, format, args...)
	}
}

// warn prints for people: with --json to standard error.
func (o *options) warn(format string, args ...any) {
	w := o.out
	if o.json {
		w = o.errs
	}
	fmt.Fprintf(w, format, args...)
}

// at is a time for people.
func at(ns int64) string { return time.Unix(0, ns).Format("2006-01-02 15:04:05.000000") }

// run is the replay of one shard.
type run struct {
	o      *options
	r      *record.Recording
	index  int
	tape   *tape.Tape
	player *shard.Player
	traced pfvf.ID // 0: none
	trace  *tracing
	first  int64         // time of the first Step
	steps  atomic.Uint64 // that were played
	why    string        // what play returned
	err    error
	stop   stop
}

// wall returns the wall clock at a time of the shard.
func (x *run) wall(now int64) string { return at(now + x.r.Offset) }

// here says which Step it is, for people.
func (x *run) here() string {
	return fmt.Sprintf("Step %d at %s", x.tape.Steps(), x.wall(x.tape.Now()))
}

// shard replays the shard to its end, or to where it is to stop.
func (x *run) shard(ctx context.Context, cfg *config.Config, rep *report) (err error) {
	if x.player, err = shard.NewPlayer(x.index, cfg, x.tape, x.log()); err != nil {
		return err
	}
	s := x.player.Shard
	defer s.Close()
	if x.o.cap != nil {
		sink := capture.NewSink(x.o.cap, config.CaptureClear)
		if err := s.View().Captures.Start(&sink, x.r.Offset); err != nil {
			return err
		}
	}
	if x.traced != 0 {
		if x.trace, err = x.newTracing(); err != nil {
			return err
		}
	}
	if x.o.step {
		return errors.Join(x.step(ctx), x.trace.end())
	}
	why, err := x.on(ctx, &x.stop)
	err = errors.Join(err, x.trace.end())
	e := &ending{Shard: x.index, Steps: x.tape.Steps(), TimeNS: x.tape.Now() + x.r.Offset, Why: why}
	rep.Shards = append(rep.Shards, e)
	var d *tape.Difference
	switch {
	case errors.As(err, &d):
		e.Why, e.Differ = whyDifference, d.What
		for _, n := range x.player.Notes() {
			e.Before = append(e.Before, fmt.Sprintf("Step %d: %s", n.Step, n.What))
		}
		return x.differs(d)
	case err != nil:
		return err
	case why == whyEnd:
		x.o.say("shard %d: %s\n", x.index, x.ended())
		return nil
	}
	e.State = x.state()
	x.o.say("shard %d: %s: %s\n", x.index, x.here(), why)
	if x.o.json {
		return nil
	}
	return e.State.print(x.o.out)
}

// patience is how long a Step may take: that is much longer than a NIC's loop may be stuck.
const patience = 20 * time.Second

// on goes on until the replay is to stop, and says why. If the NIC was in an endless loop, so is the replay:
// then the error says where.
func (x *run) on(ctx context.Context, p *stop) (why string, err error) {
	ended, last := make(chan struct{}), x.tape.Steps()
	x.steps.Store(last)
	go func() {
		defer close(ended)
		x.why, x.err = x.play(ctx, p)
	}()
	t := time.NewTicker(patience)
	defer t.Stop()
	for {
		select {
		case <-ended:
			return x.why, x.err
		case <-t.C:
		}
		is := x.steps.Load()
		if is == last {
			b := make([]byte, 64<<10)
			return "", fmt.Errorf("the Step after Step %d does not end: it is a loop without an end, here:\n%s", is, b[:runtime.Stack(b, true)])
		}
		last = is
	}
}

func (x *run) play(ctx context.Context, p *stop) (why string, err error) {
	for ctx.Err() == nil {
		k, err := x.player.Next()
		x.steps.Store(x.tape.Steps())
		switch {
		case errors.Is(err, io.EOF):
			return whyEnd, nil
		case err != nil:
			return "", err
		}
		if x.first == 0 && k == tape.Step {
			x.first = x.tape.Now()
		}
		x.trace.take()
		if why := x.stops(p, k == tape.Step); why != "" {
			return why, nil
		}
	}
	return "", ctx.Err()
}

// ended says that the replay has come to the end of the recording.
func (x *run) ended() string {
	took := time.Duration(x.tape.Now() - x.first).Round(time.Microsecond)
	how := ""
	if x.tape.TornIn() {
		how = "; the program that was recorded ended in the last of them"
	}
	return fmt.Sprintf("%d Steps in %s, to %s: what went out is what was recorded%s", x.tape.Steps(), took, x.wall(x.tape.Now()), how)
}

// lastNotes is how much is printed of what led to a difference.
const lastNotes = 12

// differs prints what led to a difference, and returns it as an error.
func (x *run) differs(d *tape.Difference) error {
	x.o.say("shard %d: what led to the difference:\n", x.index)
	x.last(lastNotes)
	var before []string
	for _, k := range d.Before {
		before = append(before, k.String())
	}
	return fmt.Errorf("%s in Step %d, at %s; the entries before: %s", d.What, d.Step, x.wall(d.Now), strings.Join(before, ", "))
}

// last prints the last n things that happened.
func (x *run) last(n int) {
	notes := x.player.Notes()
	for i := max(0, len(notes)-n); i < len(notes); i++ {
		x.o.note(x.r, &notes[i])
	}
}

// log returns the log of the shard, in the time of the recording.
func (x *run) log() *slog.Logger {
	if x.o.log == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(x.o.errs, &slog.HandlerOptions{Level: x.o.level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			a.Value = slog.StringValue(x.wall(x.tape.Now()))
		}
		return a
	}}))
}
