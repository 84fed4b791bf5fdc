package run

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
)

const notifyTestConfig = `
nic: {host: 1}
control: CONTROL
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions: [{pf: 0}]
`

// waitHere runs vnic wait.
func waitHere(args ...string) error {
	c := WaitCommand()
	c.SetArgs(args)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetErr(io.Discard)
	return c.Execute()
}

// TestServiceManagerHearsOfStartAndEnd follows a NIC from start to end as a service manager and
// vnic wait see it.
func TestServiceManagerHearsOfStartAndEnd(t *testing.T) {
	dir := t.TempDir()
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "notify"))
	expect := func(want string) {
		t.Helper()
		b := make([]byte, 100)
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := manager.Read(b); err != nil || string(b[:n]) != want {
			t.Fatalf("%q, %v; want %s", b[:n], err, want)
		}
	}

	socket := filepath.Join(dir, "ctl")
	if err := waitHere("-s", socket, "--timeout", "50ms"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("nobody there: %v", err)
	}
	path := filepath.Join(dir, "nic.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(notifyTestConfig, "CONTROL", socket)), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	uplink, err := fabric.New(4500).Port("up1")
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { // from before the start
		waited <- waitHere("-s", socket)
	}()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, cfg, device.Deps{Uplink: uplink, Log: slog.New(slog.DiscardHandler)}, notify, func(*device.NIC) {})
	}()
	expect("READY=1")
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	cancel()
	expect("STOPPING=1")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestNotifyNeedsNoServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify("READY=1"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if err := notify("READY=1"); err == nil || !strings.Contains(err.Error(), "NOTIFY_SOCKET") {
		t.Fatal(err)
	}
	if err := waitHere("--timeout", "0s"); err == nil {
		t.Fatal("a wait of no time was accepted")
	}
}
