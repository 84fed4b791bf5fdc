package run

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
)

func WaitCommand() *cobra.Command {
	var o cli.NIC
	var timeout time.Duration
	var peers bool
	cmd := &cobra.Command{
		Use:   "wait -s SOCKET",
		Short: "wait until a NIC serves guests",
		Long: `Returns when the NIC with that control socket answers. Its attachments listen by
then, so QEMU can be started. If the NIC does not answer yet, the command says why
at once and waits. If it does not answer in time, the command fails with the reason.
With --peers it also waits until the NIC has reached each of its peers.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return cli.Usagef("--timeout %v: must be more than 0", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			var ready func(control.NIC) error
			if peers {
				ready = peersUp
			}
			nic, err := o.Client().Wait(ctx, ready, func(err error) {
				fmt.Fprintf(cmd.ErrOrStderr(), "waiting up to %v: %v\n", timeout, err)
			})
			if err != nil || !o.JSON {
				return err
			}
			return cli.PrintJSON(cmd.OutOrStdout(), nic)
		},
	}
	o.Flags(cmd.Flags())
	cmd.Flags().BoolVar(&peers, "peers", false, "also wait until every peer is up")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up after this long")
	return cmd
}

// peersUp is nil when the links to all peers are up.
func peersUp(nic control.NIC) error {
	for _, p := range nic.Peers {
		if !p.Up {
			return fmt.Errorf("peer %s is down: %s", p.Name, p.Note)
		}
	}
	return nil
}
