package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/supervisor"
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
	if err != nil && !errors.Is(err, supervisor.ErrFirst) { // the worker has logged the reason
		stderr.say(err)
	}
	stderr.flush()
	os.Exit(exitStatus(err))
}

// command returns the whole command tree.
func command() *cobra.Command {
	return root(thisVersion().Version,
		runCommand(), waitCommand(), upgradeCommand(), demoCommand(), keysCommand(), showCommand(), topCommand(), vfCommand(),
		injectCommand(), captureCommand(), traceCommand(), simCommand(), qemuCommand(), imageCommand(), guestCommand(),
		bareConformCommand(), explainCommand(), versionCommand(),
	)
}
