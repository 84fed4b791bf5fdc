package vnictest

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/run"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
)

// Serve runs a NIC with an in-memory fabric of its own until the test ends.
func Serve(tb testing.TB, path string) {
	tb.Helper()
	ServeOn(tb, fabric.New(4500), path)
}

// ServeOn runs a NIC on an in-memory fabric until the test ends.
func ServeOn(tb testing.TB, segment *fabric.Switch, path string) {
	tb.Helper()
	cfg, err := config.Load(path)
	if err != nil {
		tb.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	uplink, err := segment.Port(cfg.Uplink.Name)
	if err != nil {
		tb.Fatal(err)
	}
	deps := device.Deps{Uplink: uplink, Log: log}
	if err := run.OpenGuests(cfg, &deps); err != nil {
		tb.Fatal(err)
	}
	nic, err := device.NewNIC(cfg, deps)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- nic.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	select {
	case <-nic.Ready():
	case err := <-ended:
		ended <- nil
		tb.Fatal(err)
	}
}

// Here runs a command of the program in this process and returns what it prints.
func Here(tb testing.TB, c *cobra.Command, args ...string) (string, error) {
	tb.Helper()
	return Execute(tb, cli.Root("test", c), append([]string{c.Name()}, args...)...)
}

// Execute runs a command line in this process and returns what it prints.
func Execute(tb testing.TB, program *cobra.Command, args ...string) (string, error) {
	tb.Helper()
	var out bytes.Buffer
	program.SetArgs(args)
	program.SetOut(&out)
	program.SetErr(&out)
	err := program.ExecuteContext(tb.Context())
	return out.String(), err
}

func WriteConfig(tb testing.TB, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "nic.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
