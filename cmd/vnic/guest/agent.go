package guest

import (
	"fmt"

	"github.com/mdlayher/vsock"
	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/agent"
	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
)

func agentCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "agent",
		Short: "let the host run commands in this guest and copy files, over vsock",
		Long: fmt.Sprintf(`Serves vnic lab shell, exec and cp on vsock port %d until it is stopped: whoever
connects, which only the host can, is root here. Guests made by vnic image run it.`, agent.Port),
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := vsock.Listen(agent.Port, nil)
			if err != nil {
				return fmt.Errorf("%w; is the module vmw_vsock_virtio_transport loaded, and has the guest a vsock device?", err)
			}
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				select {
				case <-cmd.Context().Done():
				case <-stop:
				}
				l.Close()
			}()
			if err := agent.Serve(l); cmd.Context().Err() == nil {
				return err
			}
			return nil
		},
	}
}
