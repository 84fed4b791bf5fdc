package run

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
)

// ReloadCommand returns `vnic reload`.
func ReloadCommand() *cobra.Command {
	var o cli.NIC
	cmd := &cobra.Command{
		Use:   "reload -s SOCKET",
		Short: "reload the configuration of a running NIC, without a restart",
		Long: `Reads the configuration of a running vnic run again. What differs from before takes
effect at once, while traffic flows: peers, functions with their ports and limits,
the level of the log, psp.rotate_every, and a renewed certificate in cm.identity.
Other keys need vnic upgrade, or a stop and start: if one of them has changed, it is
named and nothing takes effect. SIGHUP to vnic run does the same, but gives no answer.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			is, err := o.Client().Reload(cmd.Context())
			if err != nil {
				return err
			}
			return o.Print(cmd, is, func(w io.Writer) {
				if len(is.Changed) == 0 {
					fmt.Fprintln(w, "nothing has changed")
				}
				for _, what := range is.Changed {
					fmt.Fprintln(w, what)
				}
			})
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}
