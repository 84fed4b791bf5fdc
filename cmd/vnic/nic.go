package main

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
	// socketVariable is the environment variable with the control socket, for commands without
	// --socket.
	socketVariable = "VNIC_SOCKET"
	defaultSocket  = "/run/vnic/control.sock"
	socketHelp     = "control socket of the NIC: the `path` of control: in its config (default also: $" + socketVariable + ")"
)

// asking holds the flags of a command that queries a running NIC: its socket and the output format.
type asking struct {
	socket string
	json   bool
}

// flags adds these flags to a command.
func (a *asking) flags(f *pflag.FlagSet) {
	a.socketFlag(f)
	jsonFlag(f, &a.json)
}

func (a *asking) socketFlag(f *pflag.FlagSet) {
	f.StringVarP(&a.socket, "socket", "s", cmp.Or(os.Getenv(socketVariable), defaultSocket), socketHelp)
}

func (a *asking) client() *control.Client { return control.NewClient(a.socket) }

// print writes an answer: as JSON with --json, else as text with aligned columns.
func (a *asking) print(cmd *cobra.Command, v any, text func(io.Writer)) error {
	if a.json {
		return printJSON(cmd.OutOrStdout(), v)
	}
	return printTable(cmd.OutOrStdout(), text)
}

// functionName reads "pf0.vf2", or "pf0 vf 2", in front of other arguments.
func functionName(args []string) (name string, rest []string) {
	if len(args) >= 3 && args[1] == "vf" {
		return args[0] + ".vf" + args[2], args[3:]
	}
	return args[0], args[1:]
}

// named are the functions of that name, with or without the host.
func named(fs []control.Function, name string) (found []control.Function) {
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

// fromNIC returns a completion that offers the words that ask gets from the NIC, or nothing if no
// NIC answers.
func fromNIC(ask func(context.Context, *control.Client) []string) completion {
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

// firstly returns a completion that uses the first of offers for the first argument, the second for
// the second argument, and so on.
func firstly(offers ...completion) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) < len(offers) {
			return offers[len(args)](cmd, args, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func words(w ...string) completion {
	return cobra.FixedCompletions(w, cobra.ShellCompDirectiveNoFileComp)
}

// completeFunctions offers the functions of the NIC.
var completeFunctions = fromNIC(func(ctx context.Context, c *control.Client) (names []string) {
	fs, _ := c.Functions(ctx)
	for _, f := range fs {
		_, short, _ := strings.Cut(f.ID, ".")
		names = append(names, short)
	}
	return names
})
