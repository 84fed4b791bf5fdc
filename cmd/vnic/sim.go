package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/scenario"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/sim/plot"
)

func simCommand() *cobra.Command {
	var seed uint64
	var jsonFile, svgDir string
	c := &cobra.Command{
		Use:   "sim FILE",
		Short: "run a transport scenario in virtual time",
		Long: `Runs the Falcon engine in a simulated network of hosts around one switch, as a
scenario file describes it, and prints the results. Time is virtual: the figures
depend only on the file and the seed, not on the machine.

Scenarios to start from are in falcon/sim/scenarios.`,
		Example: "  vnic sim falcon/sim/scenarios/incast32.yaml --json out.json --svg plots",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := scenario.Load(args[0])
			if err != nil {
				return err
			}
			start := time.Now()
			r, err := sim.Run(s, seed)
			if err != nil {
				return fmt.Errorf("scenario %s: %w", args[0], err)
			}
			if err := printResult(cmd.OutOrStdout(), r); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "\nseed %d, %v of virtual time in %v\n", seed, time.Duration(s.Duration), time.Since(start).Round(time.Millisecond))
			if jsonFile != "" {
				if err := writeResult(jsonFile, r); err != nil {
					return err
				}
			}
			if svgDir == "" {
				return nil
			}
			return drawResult(svgDir, r)
		},
	}
	c.Flags().Uint64Var(&seed, "seed", 1, "seed of losses, reordering, sizes and start times")
	c.Flags().StringVar(&jsonFile, "json", "", "write the result with its series to this file")
	c.Flags().StringVar(&svgDir, "svg", "", "draw goodput, cwnd, delay and queue over time into this folder")
	return c
}

func printResult(w io.Writer, r *sim.Result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, v ...any) { fmt.Fprintf(tw, name+"\t"+format+"\n", v...) }
	row("scenario", "%s", r.Scenario)
	row("goodput", "%.2f Gbit/s, %.4f of the link rate", r.Goodput/1e9, r.GoodputOverRate)
	if r.GoodputOverIdeal != nil {
		row("", "%.4f of that without impairments", *r.GoodputOverIdeal)
	}
	row("fairness", "%.4f (Jain index of %d flows)", r.Jain, len(r.Flows))
	row("packets", "%d sent, %d retransmitted (%d early, %d by timeout)", r.Packets, r.Retransmissions, r.Early, r.Timeouts)
	row("spurious", "%d, %.4f %%: the receiver had them already", r.Spurious, 100*r.SpuriousShare)
	row("lost", "%d, %.4f %%; %d drops of full queues", r.Lost, 100*r.LossShare, r.QueueDrops)
	row("ECN marks", "%d", r.Marked)
	row("failed", "%d operations", r.Failed)
	row("fabric delay", "%.2f µs, target %.2f µs, quotient %.3f", r.Delay/1e3, r.Target/1e3, r.DelayOverTarget)
	row("queue peak", "%d bytes", r.QueuePeak)
	return tw.Flush()
}

func writeResult(path string, r *sim.Result) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("--json: %w; give a file that can be written", err)
	}
	return nil
}

func drawResult(dir string, r *sim.Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--svg: %w; give a folder that can be made", err)
	}
	for i := range plot.Figures {
		f := &plot.Figures[i]
		out, err := os.Create(filepath.Join(dir, r.Scenario+"-"+f.Name+".svg"))
		if err != nil {
			return fmt.Errorf("--svg: %w; give a folder that can be written", err)
		}
		if err := f.Draw(out, r); err != nil {
			_ = out.Close()
			return err
		}
		if err := out.Close(); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
	}
	return nil
}
