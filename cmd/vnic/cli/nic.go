package cli

import (
	"cmp"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/falcon-vnic/vnic/device/control"
)

const (
	// SocketVariable is the environment variable with the control socket, for commands without
	// --socket.
	SocketVariable = "VNIC_SOCKET"
	// DeviceVariable is the environment variable with the function of a guest, for commands without
	// --device.
	DeviceVariable = "VNIC_DEVICE"
	// FleetVariable is the environment variable with the fleet's folder, for commands without --dir.
	FleetVariable = "VNIC_FLEET"
	defaultSocket = "/run/vnic/control.sock"
	socketHelp    = "control socket of the NIC: the `path` of control: in its config (default also: $" + SocketVariable + ")"
)

// NIC holds the flags of a command that queries a running NIC: its socket and the output format.
type NIC struct {
	socket string
	JSON   bool
}

// Flags adds these flags to a command.
func (a *NIC) Flags(f *pflag.FlagSet) {
	a.SocketFlag(f)
	JSONFlag(f, &a.JSON)
}

func (a *NIC) SocketFlag(f *pflag.FlagSet) {
	f.StringVarP(&a.socket, "socket", "s", cmp.Or(os.Getenv(SocketVariable), defaultSocket), socketHelp)
}

func (a *NIC) Client() *control.Client { return control.NewClient(a.socket) }

// Print writes an answer: as JSON with --json, else as text with aligned columns.
func (a *NIC) Print(cmd *cobra.Command, v any, text func(io.Writer)) error {
	if a.JSON {
		return PrintJSON(cmd.OutOrStdout(), v)
	}
	return PrintTable(cmd.OutOrStdout(), text)
}

// FunctionName reads "pf0.vf2", or "pf0 vf 2", in front of other arguments.
func FunctionName(args []string) (name string, rest []string) {
	if len(args) >= 3 && args[1] == "vf" {
		return args[0] + ".vf" + args[2], args[3:]
	}
	return args[0], args[1:]
}

// Named are the functions of that name, with or without the host.
func Named(fs []control.Function, name string) (found []control.Function) {
	for _, f := range fs {
		if _, short, _ := strings.Cut(f.ID, "."); f.ID == name || short == name {
			found = append(found, f)
		}
	}
	return found
}

// Shell completion queries the NIC that the command line names, so it offers only names that exist.

// completionTime is the time limit of that query.
const completionTime = time.Second

type completion = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// FromNIC returns a completion that offers the words that ask gets from the NIC, or nothing if no
// NIC answers.
func FromNIC(ask func(context.Context, *control.Client) []string) completion {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		socket, err := cmd.Flags().GetString("socket")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		return ask(ctx, control.NewClient(socket)), cobra.ShellCompDirectiveNoFileComp
	}
}

// ByPosition returns a completion that uses the first of offers for the first argument, the second for
// the second argument, and so on.
func ByPosition(offers ...completion) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) < len(offers) {
			return offers[len(args)](cmd, args, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func Words(w ...string) completion {
	return cobra.FixedCompletions(w, cobra.ShellCompDirectiveNoFileComp)
}

// CompleteFunctions offers the functions of the NIC.
var CompleteFunctions = FromNIC(func(ctx context.Context, c *control.Client) (names []string) {
	fs, _ := c.Functions(ctx)
	for _, f := range fs {
		_, short, _ := strings.Cut(f.ID, ".")
		names = append(names, short)
	}
	return names
})
