package vf

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// options are the flags that all commands of `vnic vf` have.
type options struct{ cli.NIC }

func Command() *cobra.Command {
	vf := &cobra.Command{Use: "vf", Short: "set, show, enable, disable and reset functions of a running NIC"}
	o := &options{}
	o.Flags(vf.PersistentFlags())
	vf.AddCommand(
		setCommand(o),
		actionCommand(o, "enable", "make a VF, or allow a function that was disabled again"),
		actionCommand(o, "disable", "reset a function and switch it off; a VF then takes no memory"),
		actionCommand(o, "reset", "function-level reset; that of a PF resets its VFs first"),
		showCommand(o),
	)
	return vf
}

// change asks the NIC for the change c and prints the function afterwards.
func (o *options) change(cmd *cobra.Command, c control.FunctionChange) error {
	f, err := o.Client().ChangeFunction(cmd.Context(), c)
	if err != nil {
		return err
	}
	return printFunction(cmd.OutOrStdout(), []control.Function{f}, o.JSON)
}

func setCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "set FUNCTION [enable|disable] KEY VALUE [KEY VALUE ...]",
		Short: "change what a function may do, as `ip link set … vf` does",
		Long: `Changes a function, PF or VF, while the NIC runs. Either all changes take effect
or none. FUNCTION is pf0.vf2 or, as ip writes it, pf0 vf 2.

` + settingsHelp() + `
A new mac, tenant, address or dma_window resets the function, and its driver is
told. The other settings change while traffic flows. Changes last until the NIC
ends; they are not written to the configuration.`,
		Example: `  vnic vf set pf0 vf 2 max_tx_rate 1000 spoofchk on
  vnic vf set pf0.vf3 enable tenant 1 address 192.168.100.13 guest unix:bare
  vnic vf set pf0.vf3 port name=vp3,mode=bridged,bridge=br1
  vnic vf set pf0.vf2 credits req-pkt-tx=64 guarantee req-pkt-tx=16`,
		Args:              cli.Arguments(2, -1),
		ValidArgsFunction: completeSettings,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := functionChange(args)
			if err != nil {
				return err
			}
			return o.change(cmd, c)
		},
	}
}

// settingsHelp has a line for each key.
func settingsHelp() string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range settings.All() {
		help := s.Help
		if len(s.Also) > 0 {
			help += " (also: " + strings.Join(s.Also, ", ") + ")"
		}
		fmt.Fprintf(tw, "  %s %s\t%s\n", s.Key, s.Value, help)
	}
	_ = tw.Flush() // to memory
	return b.String()
}

// functionChange reads FUNCTION [enable|disable] KEY VALUE ….
func functionChange(args []string) (c control.FunctionChange, err error) {
	name, rest := cli.FunctionName(args)
	c = control.FunctionChange{Function: name, Set: map[string]string{}}
	if len(rest) > 0 && (rest[0] == "enable" || rest[0] == "disable") {
		c.Action, rest = rest[0], rest[1:]
	}
	if len(rest)%2 != 0 {
		return c, cli.Usagef("%s: %s has no value; write KEY VALUE pairs (vnic vf set --help)", name, rest[len(rest)-1])
	}
	for i := 0; i < len(rest); i += 2 {
		if _, twice := c.Set[rest[i]]; twice {
			return c, cli.Usagef("%s: %s is given twice; keep one", name, rest[i])
		}
		c.Set[rest[i]] = rest[i+1]
	}
	return c, nil
}

func actionCommand(o *options, action, short string) *cobra.Command {
	return &cobra.Command{
		Use: action + " FUNCTION", Short: short, Args: cli.Arguments(1, 3), ValidArgsFunction: cli.ByPosition(cli.CompleteFunctions),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, rest := cli.FunctionName(args)
			if len(rest) > 0 {
				return cli.Usagef("%s: %q is not expected; write one function", name, rest[0])
			}
			return o.change(cmd, control.FunctionChange{Function: name, Action: action})
		},
	}
}

func showCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "show [FUNCTION]", Short: "settings and state of functions", Args: cli.Arguments(0, 3), ValidArgsFunction: cli.ByPosition(cli.CompleteFunctions),
		RunE: func(cmd *cobra.Command, args []string) error {
			fs, err := o.Client().Functions(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) > 0 {
				name, rest := cli.FunctionName(args)
				if len(rest) > 0 {
					return cli.Usagef("%s: %q is not expected; write one function", name, rest[0])
				}
				if fs = cli.Named(fs, name); len(fs) == 0 {
					return fmt.Errorf("function %s: the NIC has no such function; `vnic show functions` lists them", name)
				}
			}
			return printFunction(cmd.OutOrStdout(), fs, o.JSON)
		},
	}
}

func printFunction(w io.Writer, fs []control.Function, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(w, fs)
	}
	for _, f := range fs {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.ID, f.State, f.Fault)
		rate := "no limit"
		if f.MaxTxRate > 0 {
			rate = fmt.Sprintf("%d Mbit/s", f.MaxTxRate)
		}
		fmt.Fprintf(tw, "  link/ether %s\ttenant %d\taddress %s\n", f.MAC, f.Tenant, cmp.Or(f.Addr, "none"))
		fmt.Fprintf(tw, "  link-state %s, %s\tmax_tx_rate %s, weight %d\ttrust %s, spoof checking %s\n", f.Link, cli.UpDown(f.LinkUp), rate, f.Weight, onOff(f.Trust), onOff(f.SpoofCheck))
		fmt.Fprintf(tw, "  guest %s\tattached %s\tDMA window %s\n", cmp.Or(f.Guest, "none"), cmp.Or(f.Attached, "no"), cmp.Or(f.DMAWindow, "all"))
		for k := range abi.NumObjects { // two in a column, four in a line
			fmt.Fprintf(tw, "%s%s %d of %d", [...]string{"  ", ", ", "\t", ", "}[k%4], k, *f.Has(k), *f.MayHave(k))
			if k%4 == 3 || k == abi.NumObjects-1 {
				fmt.Fprintln(tw)
			}
		}
		fmt.Fprintf(tw, "  resets %d\n", f.Resets)
		if p := f.Port; p != nil {
			fmt.Fprintf(tw, "  port %s, %s, %s\tmtu %d\t%s\n", p.Name, p.Mode, cli.UpDown(p.Up), p.MTU, portPlace(p))
		}
		if f.Type == "pf" {
			fmt.Fprintf(tw, "  VFs %d enabled, up to %d\n", f.NumVFs, f.TotalVFs)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// portPlace describes where a port's device is.
func portPlace(p *control.Port) string {
	switch {
	case p.Bridge != "":
		return "bridge " + p.Bridge
	case p.Netns != "":
		return "netns " + p.Netns
	}
	return ""
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// completeSettings offers the keys of `vnic vf set`, and the values of keys that have only a few.
func completeSettings(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return cli.CompleteFunctions(cmd, args, begun)
	}
	_, rest := cli.FunctionName(args)
	if len(rest) > 0 && (rest[0] == "enable" || rest[0] == "disable") {
		rest = rest[1:]
	}
	if len(rest)%2 == 0 {
		return append(settings.Keys(), "enable", "disable"), cobra.ShellCompDirectiveNoFileComp
	}
	if s := settings.Find(rest[len(rest)-1]); s != nil {
		return s.Values, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
