package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/demo"
	"github.com/falcon-vnic/vnic/cmd/vnic/doctor"
	"github.com/falcon-vnic/vnic/cmd/vnic/explain"
	"github.com/falcon-vnic/vnic/cmd/vnic/fleet"
	"github.com/falcon-vnic/vnic/cmd/vnic/guest"
	"github.com/falcon-vnic/vnic/cmd/vnic/image"
	"github.com/falcon-vnic/vnic/cmd/vnic/inject"
	"github.com/falcon-vnic/vnic/cmd/vnic/keys"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab"
	"github.com/falcon-vnic/vnic/cmd/vnic/peer"
	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/record"
	"github.com/falcon-vnic/vnic/cmd/vnic/replay"
	"github.com/falcon-vnic/vnic/cmd/vnic/run"
	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/cmd/vnic/show"
	"github.com/falcon-vnic/vnic/cmd/vnic/sim"
	"github.com/falcon-vnic/vnic/cmd/vnic/vf"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// version is set by the Makefile.
var version = unknownVersion

func main() {
	if guestinit.Active() {
		guestinit.Run(os.Args[1:]) // does not return
	}
	device.Version = thisVersion().Version
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	var said cli.CommandFailed
	if err != nil && !errors.Is(err, supervisor.ErrFirst) && !errors.As(err, &said) { // the worker, or the command, has told the reason
		cli.Stderr.Say(err)
	}
	cli.Stderr.Flush()
	os.Exit(cli.ExitStatus(err))
}

// command returns the whole command tree.
func command() *cobra.Command {
	return cli.Root(thisVersion().Version,
		run.Command(), run.WaitCommand(), run.UpgradeCommand(), run.ReloadCommand(), doctor.Command(run.CheckMachine), demo.Command(), lab.Command(), keys.Command(), show.Command(), show.TopCommand(), vf.Command(), peer.Command(), fleet.Command(),
		inject.Command(), show.CaptureCommand(), show.TraceCommand(), record.Command(), replay.Command(), sim.Command(), qemu.Command(), image.Command(), guest.Command(),
		guest.ConformCommand(), explain.Command(), versionCommand(),
	)
}
