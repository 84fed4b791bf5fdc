package guest

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf"
)

// perfCommand has perftest's tests with perftest's flags, where they mean something here, and one of
// our own.
func perfCommand(url *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "perf",
		Short: "bandwidth and latency, as perftest (ib_write_bw, ib_write_lat, …) measures them",
		Long: `Start the test on one side without a peer (the server). Start it on the other side
with the server's address (the client). Flags and columns are perftest's. The
server takes sizes, iterations and queue pairs from the client.

The other end may be a program of perftest (ib_write_bw) that has the Linux driver or
RoCE. Each recognises the other: a server listens at TCP port --port, too, and a client
that finds no server of ours goes to that port of PEER. perftest's programs do not tell
each other what they were told, so start the same test with the same --size, --iters and
--qp at both ends. Over RC and in one direction only: no -c UD, no -b, and no -R there.`,
		Example: `  vnic guest perf write_bw                     # in one guest
  vnic guest perf write_bw -s 65536 192.168.100.11   # in the other
  ib_write_bw -F 192.168.100.11                      # or there, with the Linux driver`,
	}
	for _, test := range perf.Tests() {
		cmd.AddCommand(perfTest(url, test))
	}
	cmd.AddCommand(doorbellCommand(url))
	return cmd
}

// doorbellCommand measures the device itself, which perftest does not.
func doorbellCommand(url *string) *cobra.Command {
	var cfg perf.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doorbell [PEER]",
		Short: "what doorbells, wake-ups and small WRITEs cost",
		Long: `Start it in one guest without a peer, and then in another with the address of the
first. The second measures, over the stream alone and then over its best path. All
figures are medians in microseconds.`,
		Args: cli.Arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) > 0 {
				if cfg.Peer, err = guestlib.ParseGID(args[0]); err != nil {
					return cli.Usagef("peer %q: %w", args[0], err)
				}
			}
			cfg.URL = *url
			return measureDoorbells(cmd, cfg, asJSON)
		},
	}
	f := cmd.Flags()
	doorbellFlags(f, &cfg, &asJSON)
	f.Uint64VarP(&cfg.Service, "port", "p", 18515, "service number to meet at")
	f.DurationVar(&cfg.Meet, "wait", time.Minute, "how long to look for the server")
	return cmd
}

// latencyCommand is what doorbellCommand was called before.
func latencyCommand(url *string) *cobra.Command {
	cfg := perf.Config{Service: 4792, Meet: 2 * time.Minute}
	var first, second, asJSON bool
	var peer string
	cmd := &cobra.Command{
		Use:   "latency --first|--second --peer GID",
		Short: "another name of perf doorbell",
		Long: `Measures what vnic guest perf doorbell does. Start it in two guests, in one with
--first, which measures, and in the other with --second.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			gid, err := guestlib.ParseGID(peer)
			if err != nil {
				return cli.Usagef("--peer: %w", err)
			}
			cfg.URL = *url
			if first {
				cfg.Peer = gid
			}
			return measureDoorbells(cmd, cfg, asJSON)
		},
	}
	f := cmd.Flags()
	doorbellFlags(f, &cfg, &asJSON)
	f.BoolVar(&first, "first", false, "measure")
	f.BoolVar(&second, "second", false, "provide the memory")
	f.StringVar(&peer, "peer", "", "tenant address of the other guest's function")
	cmd.MarkFlagsOneRequired("first", "second")
	cmd.MarkFlagsMutuallyExclusive("first", "second")
	_ = cmd.MarkFlagRequired("peer")
	return cmd
}

func doorbellFlags(f *pflag.FlagSet, cfg *perf.Config, asJSON *bool) {
	cli.JSONFlag(f, asJSON)
	f.IntVar(&cfg.Iterations, "samples", 1000, "samples per figure; WRITEs go on for 2 ms for each")
}

func measureDoorbells(cmd *cobra.Command, cfg perf.Config, asJSON bool) error {
	costs, err := perf.Doorbells(cmd.Context(), cfg)
	switch {
	case err != nil:
		return err
	case asJSON:
		return cli.PrintJSON(cmd.OutOrStdout(), costs)
	case costs == nil:
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "done")
		return err
	}
	return cli.PrintTable(cmd.OutOrStdout(), func(w io.Writer) {
		fmt.Fprintln(w, "PATH\tDOORBELL\tBUSY DEVICE\tWAKE\tWRITE 64")
		for _, c := range costs {
			fmt.Fprintf(w, "%s\t%.1f µs\t%.1f µs\t%.1f µs\t%.1f µs\n", c.Path, c.Latency.DoorbellUS, c.ShadowUS, c.Latency.WakeUS, c.Write64US)
		}
	})
}

// perfOptions are the flags of one of perftest's programs.
type perfOptions struct {
	cfg        perf.Config
	report     perf.Report
	seconds    int
	json       bool
	connection string
	atomic     string
}

func perfTest(url *string, test perf.Test) *cobra.Command {
	o := &perfOptions{
		cfg: perf.Config{Test: test, Inline: -1}, report: perf.Report{Test: test},
		connection: "RC", atomic: "FETCH_AND_ADD",
	}
	cmd := &cobra.Command{
		Use: test.String() + " [PEER]", Short: test.Title(), Args: cli.Arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.cfg.URL = *url
			return o.run(cmd, args)
		},
	}
	o.addFlags(cmd, test)
	return cmd
}

func (o *perfOptions) addFlags(cmd *cobra.Command, test perf.Test) {
	cfg, f := &o.cfg, cmd.Flags()
	f.IntVarP(&cfg.Size, "size", "s", 0, "bytes of a message (default 65536, latency 2)")
	f.BoolVarP(&cfg.All, "all", "a", false, "sizes from 2 to --size or 2^23")
	f.IntVarP(&cfg.Iterations, "iters", "n", 0, "messages per size and queue pair (default 5000, latency 1000)")
	f.IntVarP(&cfg.TxDepth, "tx-depth", "t", 0, "sends outstanding per queue pair (default 128, latency 32)")
	f.Uint64VarP(&cfg.Service, "port", "p", 18515, "service number to meet at")
	f.DurationVar(&cfg.Meet, "wait", time.Minute, "how long to look for the server")
	f.IntVarP(&cfg.MTU, "mtu", "m", 0, "path MTU: 256 to 4096 (default the device's)")
	f.IntVarP(&cfg.Timeout, "qp-timeout", "u", 0, "4.096 µs × 2^n (default the device's)")
	cli.JSONFlag(f, &o.json)
	if test.Op != perf.Read && test.Op != perf.Atomic {
		f.IntVarP(&cfg.Inline, "inline_size", "I", -1, "messages up to this size are copied into the queue; -1: none, for latency up to 220")
	} else {
		f.IntVarP(&cfg.Outs, "outs", "o", 0, "operations in flight (default what the device allows)")
	}
	f.Uint8Var(&cfg.Path.TrafficClass, "tclass", 0, "traffic class: DSCP in its upper six bits")
	f.Uint32Var(&cfg.Path.FlowLabel, "flow_label", 0, "picks the path through the fabric (default the device does)")
	if test.Op == perf.Send {
		_ = cmd.RegisterFlagCompletionFunc("connection", cli.Words("RC", "UD"))
		f.StringVarP(&o.connection, "connection", "c", o.connection, "RC or UD; the server takes the client's")
		f.IntVarP(&cfg.RxDepth, "rx-depth", "r", 0, "receives outstanding per queue pair (default 512)")
	}
	if test.Op == perf.Atomic {
		f.StringVarP(&o.atomic, "atomic_type", "A", o.atomic, "FETCH_AND_ADD or CMP_AND_SWAP")
	}
	if test.Op != perf.Write || !test.Latency {
		f.BoolVarP(&cfg.Events, "events", "e", false, "sleep for completions instead of polling")
	}
	if test.Latency {
		f.BoolVarP(&o.report.Unsorted, "report-unsorted", "U", false, "print every latency in the order measured")
		f.BoolVarP(&o.report.Histogram, "report-histogram", "H", false, "print every latency, sorted")
	} else {
		f.IntVarP(&o.seconds, "duration", "D", 0, "seconds to run instead of --iters")
		f.IntVarP(&cfg.QPs, "qp", "q", 1, "queue pairs")
		f.IntVarP(&cfg.CQMod, "cq-mod", "Q", 0, "sends per completion (default 100, at most the tx depth)")
		f.BoolVarP(&cfg.Bidirectional, "bidirectional", "b", false, "both directions at once; the sum is printed")
		f.BoolVarP(&cfg.NoPeak, "noPeak", "N", false, "do not measure the peak, which reads the clock less often")
		f.BoolVar(&o.report.Gbits, "report_gbits", false, "bandwidth in Gbit/s instead of MB/s")
	}
}

func (o *perfOptions) run(cmd *cobra.Command, args []string) (err error) {
	o.cfg.Duration, o.report.W = time.Duration(o.seconds)*time.Second, cmd.OutOrStdout()
	if len(args) > 0 {
		if o.cfg.Peer, err = guestlib.ParseGID(args[0]); err != nil {
			return cli.Usagef("peer %q: %w", args[0], err)
		}
	}
	if o.cfg.Datagrams = o.connection == "UD"; !o.cfg.Datagrams && o.connection != "RC" {
		return cli.Usagef("--connection %s: write RC or UD", o.connection)
	}
	if o.cfg.CmpSwap = o.atomic == "CMP_AND_SWAP"; !o.cfg.CmpSwap && o.atomic != "FETCH_AND_ADD" {
		return cli.Usagef("--atomic_type %s: write FETCH_AND_ADD or CMP_AND_SWAP", o.atomic)
	}
	o.cfg.Waiting = func(err error) {
		fmt.Fprintf(cmd.ErrOrStderr(), "waiting for the server at %v, up to %v: %v\n", o.cfg.Peer, o.cfg.Meet, err)
	}
	if !o.json {
		o.cfg.Header, o.cfg.Row = o.report.Header, o.report.Row
	}
	rows, err := perf.Run(cmd.Context(), o.cfg)
	if err != nil {
		return err
	}
	if o.json {
		return cli.PrintJSON(cmd.OutOrStdout(), rows)
	}
	o.report.End()
	return nil
}
