package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
)

func UpgradeCommand() *cobra.Command {
	var o cli.NIC
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "upgrade -s SOCKET",
		Short: "replace a running NIC with the program and configuration on disk",
		Long: `Starts the program that is now at the path of vnic run, with the configuration as
it is now, and replaces the running worker. Guests keep running: their functions
are reset, and their drivers start again. If the program or the configuration is
not valid, the old ones continue and the reason is printed. SIGUSR2 to vnic run
does the same, but gives no answer.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			before, after, err := upgrade(ctx, o.Client())
			if err != nil {
				return err
			}
			return o.Print(cmd, upgraded{before, after}, func(w io.Writer) {
				fmt.Fprintf(w, "%s: vnic %s, process %d, took over from vnic %s, process %d\n", after.Name, after.Version, after.Worker, before.Version, before.Worker)
			})
		},
	}
	o.Flags(cmd.Flags())
	// The supervisor waits for the new worker for a minute, and then starts the old program again.
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "give up waiting after this long")
	return cmd
}

// upgraded is what `vnic upgrade --json` prints.
type upgraded struct {
	Before control.NIC `json:"before"`
	After  control.NIC `json:"after"`
}

// upgrade replaces the worker of a NIC and waits for the next.
func upgrade(ctx context.Context, c *control.Client) (before, after control.NIC, err error) {
	if before, err = c.NIC(ctx); err != nil {
		return before, after, err
	}
	if before.Worker == 0 {
		return before, after, fmt.Errorf("process %d has no worker to replace (vnic run --single, or the demo): stop and start it", before.PID)
	}
	sig := syscall.SIGHUP // of an older vnic run
	if before.Reloadable {
		sig = syscall.SIGUSR2
	}
	if err := syscall.Kill(before.PID, sig); err != nil {
		return before, after, fmt.Errorf("%v to vnic run, process %d: %w", sig, before.PID, err)
	}
	for {
		after, err = c.NIC(ctx)
		switch {
		case err != nil:
		case after.Upgrades != before.Upgrades && after.UpgradeRefused != "":
			return before, after, fmt.Errorf("not upgraded, %s continues as before: %s", after.Name, after.UpgradeRefused)
		case after.Worker != before.Worker:
			return before, after, nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = errors.New("the old worker still serves; the log of vnic run says why")
			}
			return before, after, fmt.Errorf("not upgraded: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
