package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func waitCommand() *cobra.Command {
	var o asking
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait -s SOCKET",
		Short: "wait until a NIC serves guests",
		Long: `Returns when the NIC with that control socket answers. Its attachments listen by
then, so QEMU can be started. If the NIC does not answer yet, the command says why
at once and waits. If it does not answer in time, the command fails with the reason.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usagef("--timeout %v: must be more than 0", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			nic, err := o.client().Wait(ctx, func(err error) {
				fmt.Fprintf(cmd.ErrOrStderr(), "waiting up to %v: %v\n", timeout, err)
			})
			if err != nil || !o.json {
				return err
			}
			return printJSON(cmd.OutOrStdout(), nic)
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up after this long")
	return cmd
}
