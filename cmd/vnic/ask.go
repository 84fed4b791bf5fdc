package main

import (
	"cmp"
	"encoding/json"
	"io"
	"os"
	"text/tabwriter"

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

func jsonFlag(f *pflag.FlagSet, v *bool) { f.BoolVar(v, "json", false, "print JSON") }

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printTable calls text and aligns the columns that it writes, separated by tabs.
func printTable(w io.Writer, text func(io.Writer)) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	text(tw)
	return tw.Flush()
}
