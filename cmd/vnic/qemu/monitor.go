package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/qemu"
)

// monitorTimeout is the time limit of a session with QEMU's monitor.
const monitorTimeout = 20 * time.Second

// unplugTimeout is how long to wait until a guest releases devices.
const unplugTimeout = 2 * time.Minute

func statusCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status -c FILE --guest CID", Short: "ask a guest's QEMU for its state, memory and the devices that connect it to the NIC", Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := o.load(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), monitorTimeout)
			defer cancel()
			q, err := qemu.DialQMP(ctx, o.line.Monitor)
			if err != nil {
				return err
			}
			defer q.Close()
			s, err := qemu.Inspect(ctx, q)
			if err != nil {
				return err
			}
			return printGuest(cmd.OutOrStdout(), s, o.json)
		},
	}
	cli.JSONFlag(cmd.Flags(), &o.json)
	return cmd
}

func printGuest(w io.Writer, s *qemu.Status, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(w, s)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	accel := "TCG"
	if s.KVM {
		accel = "KVM"
	}
	shared := "not shared: the NIC cannot map it"
	if s.Memory.Shared {
		shared = "shared"
	}
	fmt.Fprintf(tw, "guest\t%s, %s\n", s.Name, s.State)
	fmt.Fprintf(tw, "QEMU\t%s, %s, %d CPUs\n", s.Version, accel, s.CPUs)
	fmt.Fprintf(tw, "memory\t%s, %d MiB, %s\n", s.Memory.Type, s.Memory.Bytes>>20, shared)
	free := "none free"
	if len(s.HotPlug.Free) > 0 {
		free = "free: " + strings.Join(s.HotPlug.Free, ", ")
	}
	fmt.Fprintf(tw, "hot-plug\t%d root ports, %s\n", s.HotPlug.Ports, free)
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(tw, "\nDEVICE\tDRIVER\tPCI\tBACKEND\tSTATE")
	for _, d := range s.Devices {
		state := "connected"
		if !d.Connected {
			state = "disconnected"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", d.ID, d.Driver, d.PCI, d.Backend, state)
	}
	return tw.Flush()
}

func plugCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "plug -c FILE --guest CID FUNCTION...", Short: "add the window and the port of more functions to a running guest",
		Long: `Plugs devices of functions that the configuration gives to the guest into free root
ports of its QEMU: of each function the window, if the guest's attachment has windows,
or the function itself (vfio-user), and its Ethernet port, if that is bridged or of type
vhost-user. The vsock device, the memory and the machine cannot change while the guest
runs.`,
		Example: "  vnic qemu plug -c nic.yaml --guest 1001 pf0.vf2",
		Args:    cli.Arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.eachDevice(cmd, args, monitorTimeout, "plugged in", plugging{qemu.PlugWindow, qemu.PlugVfio, qemu.PlugPort})
		},
	}
	cli.JSONFlag(cmd.Flags(), &o.json)
	return cmd
}

func unplugCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "unplug -c FILE --guest CID FUNCTION...", Short: "remove from a running guest what was plugged in",
		Long: `Removes the windows and ports that vnic qemu plug added to a running guest. It waits
until the guest's kernel releases them, which takes five seconds or more for each.
End the programs that use the functions first.`,
		Example: "  vnic qemu unplug -c nic.yaml --guest 1001 pf0.vf2",
		Args:    cli.Arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.eachDevice(cmd, args, unplugTimeout, "unplugged", plugging{qemu.UnplugWindow, qemu.UnplugVfio, qemu.UnplugPort})
		},
	}
	cli.JSONFlag(cmd.Flags(), &o.json)
	return cmd
}

// pluggedDevice is an entry of the output of plug and unplug with --json.
type pluggedDevice struct {
	Function string `json:"function"`
	Device   string `json:"device"` // window, function (by vfio-user) or port
	Done     string `json:"done"`
	TAP      string `json:"tap,omitempty"`
	Socket   string `json:"socket,omitempty"`
}

// plugging holds the actions on each kind of device: plug or unplug.
type plugging struct {
	window   func(context.Context, *qemu.QMP, qemu.Window) error
	function func(context.Context, *qemu.QMP, qemu.Vfio) error
	port     func(context.Context, *qemu.QMP, qemu.Port) error
}

// eachDevice calls the actions of do, through QEMU's monitor, for the windows or vfio-user devices
// of the named functions, and then for their ports.
func (o *options) eachDevice(cmd *cobra.Command, functions []string, limit time.Duration, done string, do plugging) error {
	o.only = functions
	if _, _, err := o.load(); err != nil {
		return err
	}
	if len(o.line.Windows)+len(o.line.Vfio)+len(o.line.Ports) == 0 {
		return fmt.Errorf("%s: no device to plug: windows are off for guest %d (attach: windows), and no function named has a port that is bridged or of type vhost-user; over vsock a function needs no device of its own", o.config, o.cid)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	q, err := qemu.DialQMP(ctx, o.line.Monitor)
	if err != nil {
		return err
	}
	defer q.Close()
	said := func(d pluggedDevice, text string) error {
		if o.json {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(d)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), text)
		return err
	}
	for _, w := range o.line.Windows {
		if err := do.window(ctx, q, w); err != nil {
			return err
		}
		if err := said(pluggedDevice{Function: w.Function, Device: "window", Done: done}, "window of "+w.Function+" "+done); err != nil {
			return err
		}
	}
	for _, f := range o.line.Vfio {
		if err := do.function(ctx, q, f); err != nil {
			return err
		}
		if err := said(pluggedDevice{Function: f.Function, Device: "function", Done: done}, f.Function+" "+done); err != nil {
			return err
		}
	}
	for _, p := range o.line.Ports {
		if err := do.port(ctx, q, p); err != nil {
			return err
		}
		where := ", TAP " + p.TAP
		if p.Socket != "" {
			where = ", the NIC's socket " + p.Socket
		}
		if err := said(pluggedDevice{p.Function, "port", done, p.TAP, p.Socket}, "port of "+p.Function+" "+done+where); err != nil {
			return err
		}
	}
	return nil
}
