package sim

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/sim/scenario"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/sim/plot"
)

func Command() *cobra.Command {
	var seed uint64
	var asJSON bool
	var svgDir string
	c := &cobra.Command{
		Use:   "sim FILE",
		Short: "run a transport scenario in virtual time",
		Long: `Runs the Falcon engine in a simulated network of hosts around one switch, as a
scenario file describes it, and prints the results. Time is virtual: the figures
depend only on the file and the seed, not on the machine.

Scenarios to start from are in falcon/sim/scenarios.`,
		Example: "  vnic sim falcon/sim/scenarios/incast32.yaml --json --svg plots > out.json",
		Args:    cli.Arguments(1, 1),
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
			took := time.Since(start).Round(time.Millisecond)
			if svgDir != "" {
				if err := drawResult(svgDir, r); err != nil {
					return err
				}
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), r)
			}
			if err := printResult(cmd.OutOrStdout(), r); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nseed %d, %v of virtual time in %v\n", seed, time.Duration(s.Duration), took)
			return err
		},
	}
	c.Flags().Uint64Var(&seed, "seed", 1, "seed of losses, reordering, sizes and start times")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the series over time")
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
	if r.Offered > 0 {
		row("offered", "%.2f Gbit/s, %.4f of it delivered", r.Offered/1e9, r.Goodput/r.Offered)
	}
	micros := func(t int64) float64 { return float64(t) / 1e3 }
	row("completion", "%.2f µs for half of %d operations, %.2f µs for 99 %%, %.2f µs for 99.9 %%",
		micros(r.Time50), r.Operations, micros(r.Time99), micros(r.Time999))
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
