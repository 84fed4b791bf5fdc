package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/guestlib/conform"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// conformCommand returns `vnic guest conform`, with the device URL of its parent command.
func conformCommand(url *string) *cobra.Command {
	var cfg conform.Config
	var match string
	var asJSON, driver bool
	cmd := &cobra.Command{
		Use:   "conform [-- DRIVER ARGS…]",
		Short: "check the device, or with --driver a driver, against the rules of docs/abi",
		Long: `Checks what docs/abi says the device does (the DEV clauses) on a function that
nobody uses, and prints the result of each clause as TAP or JSON. It breaks rules on
purpose, and resets the function often.

With --driver it runs the command after -- and prints which rules for drivers (the
DRV clauses) the device saw broken on the function meanwhile. Without a command it
prints those that the device remembers. With nic.strict on the host it sees more.

On a PF that has unused VFs (vf_count) the clauses about VFs are checked too.`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if match != "" {
				if cfg.Match, err = regexp.Compile(match); err != nil {
					return cli.Usagef("--run: %w", err)
				}
			}
			if len(args) > 0 && !driver {
				return cli.Usagef("%sunexpected argument %q: a command to run comes after -- and needs --driver", cli.Place(cmd), args[0])
			}
			cfg.URL = *url
			var report *conform.Report
			if driver {
				report, err = conform.Watch(cmd.Context(), cfg, driverCommand(args, cmd.ErrOrStderr()))
			} else {
				report, err = conform.Run(cmd.Context(), cfg)
			}
			if err != nil {
				return err
			}
			write := report.TAP
			if asJSON {
				write = report.JSON
			}
			return errors.Join(write(cmd.OutOrStdout()), report.Err())
		},
	}
	f := cmd.Flags()
	f.StringVar(&match, "run", "", "only the checks whose name matches this `regexp`")
	f.DurationVar(&cfg.Wait, "wait", 20*time.Second, "how long to wait for a required event")
	cli.JSONFlag(f, &asJSON)
	f.BoolVar(&driver, "driver", false, "watch a driver: the command after --")
	return cmd
}

// driverCommand returns a function that runs the driver under test, or nil if argv is empty.
func driverCommand(argv []string, w io.Writer) func(context.Context) error {
	if len(argv) == 0 {
		return nil
	}
	return func(ctx context.Context) error {
		c := exec.CommandContext(ctx, argv[0], argv[1:]...)
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, w, w
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
		return nil
	}
}

// ConformCommand returns `vnic conform`: the guest command with its own --device flag, for
// clients outside a guest.
func ConformCommand() *cobra.Command {
	var url string
	cmd := conformCommand(&url)
	cmd.Flags().VarP((*deviceURL)(&url), "device", "d", fmt.Sprintf("the function: unix:///PATH of an attachment, or vsock://1:%d?memory=FILE; ?function=pf0.vf1 where several are assigned", abi.Port))
	_ = cmd.MarkFlagRequired("device")
	return cmd
}
