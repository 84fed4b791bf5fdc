package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/supervisor"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
)

// runOptions are the flags of `vnic run`.
type runOptions struct {
	path     string
	check    bool
	single   bool
	worker   bool
	protocol int
}

func runCommand() *cobra.Command {
	var o runOptions
	run := &cobra.Command{
		Use:   "run -c FILE",
		Short: "run one NIC until it is told to stop",
		Long: `Runs the NIC in a worker process, and keeps for it what must outlive it: the
sockets, what is said to QEMU on them, and the TAPs. A worker that ends is
started again, and guests go on after a reset of their functions, without a
reboot. SIGHUP, or vnic upgrade, replaces it by the program on disk.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.worker {
				return runWorker(o.path)
			}
			cfg, err := config.Load(o.path)
			if err != nil {
				return err
			}
			if o.check {
				if o.protocol != 0 && o.protocol != supervisor.Protocol {
					return fmt.Errorf("the vnic run that is running speaks version %d to its worker, this program %d: stop and start it", o.protocol, supervisor.Protocol)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: good: host %d, %d functions, %d peers\n", o.path, cfg.NIC.Host, len(cfg.AllFunctions()), len(cfg.Peers))
				return nil
			}
			if o.single {
				return runNIC(cmd.Context(), cfg)
			}
			return supervise(cmd.Context(), cfg, o.path)
		},
	}
	f := run.Flags()
	f.StringVarP(&o.path, "config", "c", "", "configuration (see docs/vnic.example.yaml)")
	f.BoolVar(&o.check, "check", false, "only check the configuration")
	f.BoolVar(&o.single, "single", false, "all in one process: guests do not survive its end")
	f.BoolVar(&o.worker, "worker", false, "")
	f.IntVar(&o.protocol, "protocol", 0, "")
	_ = f.MarkHidden("worker")
	_ = f.MarkHidden("protocol")
	_ = run.MarkFlagRequired("config")
	return run
}

// runNIC runs a NIC in this process alone.
func runNIC(ctx context.Context, cfg *config.Config) error {
	log, err := newLog(cfg.Log.Level)
	if err != nil {
		return err
	}
	attachments, err := attach(cfg, ownSockets{log})
	if err != nil {
		return err
	}
	nic, err := device.NewNIC(cfg, device.Deps{Attachments: attachments, Log: log})
	if err != nil {
		return err
	}
	return serve(ctx, nic, log, notify)
}

// serve runs the NIC and keeps the service manager informed.
func serve(ctx context.Context, nic *device.NIC, log *slog.Logger, notify func(string) error) error {
	tell := func(state string) {
		if err := notify(state); err != nil {
			log.Warn("service manager not told", "state", state, "err", err)
		}
	}
	ended := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		select {
		case <-nic.Ready():
			tell(stateReady)
		case <-ended:
			return
		}
		select {
		case <-ctx.Done():
		case <-ended:
		}
		tell(stateStopping)
	})
	err := nic.Run(ctx)
	close(ended)
	told.Wait()
	return err
}

// What a service manager is told, by the names of sd_notify(3).
const (
	stateReady    = "READY=1"
	stateStopping = "STOPPING=1"
)

func newLog(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
