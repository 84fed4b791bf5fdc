package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

func latencyCommand(url *string) *cobra.Command {
	cfg := workload.Config{Service: 4792}
	var first, second, asJSON bool
	var peer string
	cmd := &cobra.Command{
		Use:   "latency --first|--second --peer GID",
		Short: "what doorbells, wake-ups and small WRITEs cost",
		Long: `Start it on two guests, on one with --first and on the other with --second. The
first measures, over the stream alone and then over its best path. The second
provides the memory. All figures are medians in microseconds.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			gid, err := guestlib.ParseGID(peer)
			if err != nil {
				return usagef("--peer: %w", err)
			}
			cfg.URL, cfg.PeerGID, cfg.First = *url, gid, first
			costs, err := workload.Measure(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			switch {
			case asJSON:
				return printJSON(cmd.OutOrStdout(), costs)
			case !first:
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "done")
				return err
			}
			return printTable(cmd.OutOrStdout(), func(w io.Writer) { printCosts(w, costs) })
		},
	}
	f := cmd.Flags()
	jsonFlag(f, &asJSON)
	f.BoolVar(&first, "first", false, "measure")
	f.BoolVar(&second, "second", false, "provide the memory")
	f.StringVar(&peer, "peer", "", "tenant address of the other guest's function")
	f.IntVar(&cfg.Count, "samples", 1000, "samples per figure; WRITEs go on for 2 ms for each")
	cmd.MarkFlagsOneRequired("first", "second")
	cmd.MarkFlagsMutuallyExclusive("first", "second")
	_ = cmd.MarkFlagRequired("peer")
	return cmd
}

func printCosts(w io.Writer, costs []workload.Cost) {
	fmt.Fprintln(w, "PATH\tDOORBELL\tBUSY DEVICE\tWAKE\tWRITE 64")
	for _, c := range costs {
		fmt.Fprintf(w, "%s\t%.1f µs\t%.1f µs\t%.1f µs\t%.1f µs\n", c.Path, c.Latency.DoorbellUS, c.ShadowUS, c.Latency.WakeUS, c.Write64US)
	}
}
