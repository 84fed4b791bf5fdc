package main

import (
	"context"
	"log/slog"
	"net"
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

// TestReadiness follows one NIC from its start to its end: as a service manager
// and as somebody who waits sees it.
func TestReadiness(t *testing.T) {
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
		if err := manager.SetReadDeadline(time.Now().Add(testTime)); err != nil {
			t.Fatal(err)
		}
		if n, err := manager.Read(b); err != nil || string(b[:n]) != want {
			t.Fatalf("%q, %v; want %s", b[:n], err, want)
		}
	}

	socket := filepath.Join(dir, "ctl")
	if out, err := runHere(t, "wait", "-s", socket, "--timeout", "50ms"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("nobody there: %v %s", err, out)
	}
	cfg, err := config.Load(writeQEMUConfig(t, strings.ReplaceAll(notifyTestConfig, "CONTROL", socket)))
	if err != nil {
		t.Fatal(err)
	}
	uplink, err := fabric.New(4500).Port("up1")
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { // from before the start
		_, err := runHere(t, "wait", "-s", socket)
		waited <- err
	}()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, cfg, device.Deps{Uplink: uplink, Log: slog.New(slog.DiscardHandler)}, notify)
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

func TestNotifyWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify("READY=1"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if err := notify("READY=1"); err == nil || !strings.Contains(err.Error(), "NOTIFY_SOCKET") {
		t.Fatal(err)
	}
	if _, err := runHere(t, "wait", "--timeout", "0s"); err == nil {
		t.Fatal("a wait of no time was accepted")
	}
}
