package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/device/control"
)

func waitCommand() *cobra.Command {
	var socket string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait -s SOCKET",
		Short: "wait until a NIC serves guests",
		Long: `Returns when the NIC with that control socket answers: its attachments listen
by then, so that QEMU can be started. Fails with the reason when it does not in
time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return fmt.Errorf("--timeout %v: must be longer than nothing", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return control.NewClient(socket).Wait(ctx)
		},
	}
	cmd.Flags().StringVarP(&socket, "socket", "s", "/run/vnic/control.sock", socketHelp)
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up after this long")
	return cmd
}
