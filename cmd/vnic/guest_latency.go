package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

func latencyCommand(url *string) *cobra.Command {
	cfg := workload.Config{Service: 4792}
	var first, second bool
	var peer string
	cmd := &cobra.Command{
		Use:   "latency --first|--second --peer GID",
		Short: "what doorbells, wake-ups and small WRITEs cost, as JSON",
		Long: `Runs with the same command on another guest, one --first and the other --second.
The first measures, over messages alone and then over its best path; the second
lends its memory. All figures are medians in microseconds.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			gid, err := guestlib.ParseGID(peer)
			if err != nil {
				return fmt.Errorf("--peer: %w", err)
			}
			cfg.URL, cfg.PeerGID, cfg.First = *url, gid, first
			costs, err := workload.Measure(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if !first {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "done")
				return err
			}
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(costs)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&first, "first", false, "measure")
	f.BoolVar(&second, "second", false, "be measured with")
	f.StringVar(&peer, "peer", "", "tenant address of the other guest's function")
	f.IntVar(&cfg.Count, "samples", 1000, "of each figure")
	cmd.MarkFlagsOneRequired("first", "second")
	cmd.MarkFlagsMutuallyExclusive("first", "second")
	_ = cmd.MarkFlagRequired("peer")
	return cmd
}
