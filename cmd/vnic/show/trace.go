package show

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
)

// traceOptions are the flags of `vnic trace`.
type traceOptions struct {
	cli.NIC
	qp, side string
	count    int
	duration time.Duration
	summary  bool
	chrome   string
}

func TraceCommand() *cobra.Command {
	var o traceOptions
	cmd := &cobra.Command{
		Use:   "trace FUNCTION",
		Short: "where the time of a function's requests goes, from doorbell to completion",
		Long: `Follows each request of a function, and each request of peers to it. It prints a
timeline for every completed request, and a summary at the end or when interrupted.
When --for ends it also prints the incomplete requests, which the summary does not
count. A requester's steps:

  doorbell     the NIC has taken the doorbell, or found the entry by polling
  wqe_read     it has read the entry
  issued       the first packet has its credits and its place in the order
  scheduled    Falcon takes that packet for sending
  sealed       it is encrypted and queued for the uplink; last_sealed: the same for
               the last packet, or for one that was sent again
  acked        the last packet is acknowledged, or the last data of a READ has arrived
  cqe_written  the completion is in the guest's memory
  event        the driver is notified, if it asked for it

A responder's steps: received, opened (decrypted), delivered (in the guest's memory,
or the atomic is done), cqe_written and event of the receive, acked (the
acknowledgement was sent). A READ or atomic also has scheduled and sealed, of the
response, and its acked is the peer's acknowledgement. Inside one NIC (loopback)
nothing is sealed, sent or received. Over RoCEv2 (roce) nobody acknowledges
responses and datagrams; to a port of the same NIC nothing is sealed.`,
		Example: `  vnic trace pf0.vf1 --count 10
  vnic trace pf0.vf1 --qp 0x11 --for 5s --summary
  vnic trace pf0.vf1 --for 1s --chrome trace.json     # for ui.perfetto.dev`,
		Args:              cli.Arguments(1, 3),
		ValidArgsFunction: cli.ByPosition(cli.CompleteFunctions),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, rest := cli.FunctionName(args)
			if len(rest) > 0 {
				return cli.Usagef("%s: %q is not expected; write one function", name, rest[0])
			}
			return o.run(cmd.Context(), name, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	o.SocketFlag(f)
	f.StringVar(&o.qp, "qp", "", "of this queue pair only, as 0x11")
	f.StringVar(&o.side, "side", "both", "requester, responder or both")
	f.IntVarP(&o.count, "count", "n", 0, "requests to follow; 0: until interrupted")
	f.DurationVar(&o.duration, "for", 0, "how long; 0: until interrupted")
	f.BoolVar(&o.JSON, "json", false, "print one JSON object for each request")
	f.BoolVar(&o.summary, "summary", false, "print the summary only")
	_ = cmd.RegisterFlagCompletionFunc("side", cli.Words("requester", "responder", "both"))
	_ = cmd.RegisterFlagCompletionFunc("qp", completeQPs)
	f.StringVar(&o.chrome, "chrome", "", "write a `file` that ui.perfetto.dev and chrome://tracing show; - for standard output")
	return cmd
}

func (o *traceOptions) run(ctx context.Context, function string, stdout, stderr io.Writer) (err error) {
	qpn := uint64(0)
	if o.qp != "" {
		if qpn, err = strconv.ParseUint(o.qp, 0, 24); err != nil || qpn == 0 {
			return cli.Usagef("--qp %q: write a queue pair's number, as 0x11 (vnic show qps)", o.qp)
		}
	}
	switch o.side {
	case "requester", "responder", "both":
	default:
		return cli.Usagef("--side %q: choose requester, responder or both", o.side)
	}
	if o.JSON && o.chrome != "" {
		return cli.Usagef("--json and --chrome are two formats; choose one")
	}
	t := &traceReader{o: o, show: func(op *control.Operation) error { return PrintOperation(stdout, op) }}
	done := func() error { return t.sum.Print(stdout) }
	switch {
	case o.JSON:
		enc := json.NewEncoder(stdout)
		t.show, done = func(op *control.Operation) error { return enc.Encode(op) }, func() error { return nil }
	case o.chrome != "":
		file, closeFile, err := captureFile(o.chrome, stdout)
		if err != nil {
			return err
		}
		c := newChrome(file)
		t.show, done = c.operation, func() error { return errors.Join(c.end(), closeFile()) }
	case o.summary:
		t.show = func(*control.Operation) error { return nil }
	}
	err = o.Client().Trace(ctx, control.TraceRequest{Function: function, QPN: uint32(qpn), For: o.duration}, t)
	if errors.Is(err, errEnough) {
		err = nil
	}
	if t.lost > 0 {
		fmt.Fprintf(stderr, "%d steps were missed, because too much happened at once; trace one queue pair (--qp)\n", t.lost)
	}
	if !t.begun {
		return err
	}
	return errors.Join(err, done())
}

var errEnough = errors.New("as many requests as asked for")

// traceReader is a writer that parses the lines of a trace.
type traceReader struct {
	o     *traceOptions
	part  []byte // of an incomplete line
	show  func(*control.Operation) error
	sum   Summary
	seen  int
	lost  uint64
	begun bool
}

func (t *traceReader) Write(b []byte) (int, error) {
	t.part = append(t.part, b...)
	for {
		i := bytes.IndexByte(t.part, '\n')
		if i < 0 {
			return len(b), nil
		}
		var line control.TraceLine
		if err := json.Unmarshal(t.part[:i], &line); err != nil {
			return 0, fmt.Errorf("%w (is it another version of vnic?)", err)
		}
		t.part = t.part[:copy(t.part, t.part[i+1:])]
		if err := t.line(&line); err != nil {
			return 0, err
		}
	}
}

func (t *traceReader) line(l *control.TraceLine) error {
	t.lost += l.Lost
	t.begun = t.begun || l.Tracing != ""
	op := l.Operation
	if op == nil || len(op.Steps) == 0 || t.o.side != "both" && op.Side != t.o.side {
		return nil
	}
	if !op.Open {
		t.sum.Add(op)
	}
	if err := t.show(op); err != nil {
		return err
	}
	if t.seen++; t.seen == t.o.count {
		return errEnough
	}
	return nil
}

// PrintOperation writes one timeline, as vnic trace does.
func PrintOperation(w io.Writer, o *control.Operation) error {
	first, last := o.Steps[0].At, o.Steps[len(o.Steps)-1].At
	b := new(bytes.Buffer)
	fmt.Fprintf(b, "%s  %s %s QP %#x  %s %d bytes", time.Unix(0, first).Format("15:04:05.000000"), o.Function, o.Side, o.QPN, o.Op, o.Bytes)
	if o.Packets > 1 {
		fmt.Fprintf(b, " in %d packets", o.Packets)
	}
	if o.Again > 0 {
		fmt.Fprintf(b, ", %d sent again", o.Again)
	}
	if o.Side == "requester" {
		fmt.Fprintf(b, "  WQE %d wr_id %#x", o.WQE, o.WRID)
	} else {
		fmt.Fprintf(b, "  CID %#x RSN %d", o.CID, o.RSN)
	}
	fmt.Fprintf(b, "  %s  %s  %s\n", o.Transport, outcome(o), inMicros(last-first))
	for i, s := range o.Steps {
		note := ""
		switch {
		case s.Name == "doorbell" && o.Found:
			note = "  (found by polling)"
		case i == 0 && s.Name == "wqe_read":
			note = "  (its queue was being read)"
		}
		fmt.Fprintf(b, "  %12s  %12s  %s%s\n", inMicros(s.At-first), "+"+inMicros(s.After), s.Name, note)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// outcome describes how an operation ended.
func outcome(o *control.Operation) string {
	if o.Open {
		return "NOT COMPLETE"
	}
	return cmp.Or(o.Status, "no completion")
}

// inMicros formats nanoseconds as microseconds.
func inMicros(ns int64) string { return fmt.Sprintf("%.2fµs", float64(ns)/1e3) }

// completeQPs offers the queue pairs of the NIC.
var completeQPs = cli.FromNIC(func(ctx context.Context, c *control.Client) (numbers []string) {
	qps, _ := c.QPs(ctx)
	for _, q := range qps {
		numbers = append(numbers, "0x"+strconv.FormatUint(uint64(q.QPN), 16))
	}
	return numbers
})
