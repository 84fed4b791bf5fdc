package image_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
)

const arm64Config = `
nic: {host: 1}
control: %[1]s/control
uplink: {name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}, port: {type: vhost-user, socket: %[1]s/net1.sock, mtu: 1432}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {unix: client}}
attach:
  - {type: vhost-user, socket: %[1]s/g1.sock, cid: 1001, windows: true}
  - {type: unix, name: client, socket: %[1]s/client.sock}
`

// TestLongArm64Guest: vnic image --arch arm64 makes a guest of that architecture, vnic qemu boots it,
// and the whole workload runs between it and a client on this machine, by the window of its function.
func TestLongArm64Guest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	vnictest.RequireGuests(t)
	_, err := exec.LookPath("qemu-system-aarch64")
	vnictest.Need(t, err, "qemu-system-aarch64")
	dir := vnictest.PublicFolder(t, "vnic-arm64-") // t.TempDir may be too long for a socket
	program, config, guest := filepath.Join(dir, "vnic-arm64"), filepath.Join(dir, "nic.yaml"), filepath.Join(dir, "guest")
	if err := os.WriteFile(config, fmt.Appendf(nil, arm64Config, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, "github.com/falcon-vnic/vnic/cmd/vnic")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, stderr, code := vnictest.Run(t, "image", "--arch", "arm64", "--program", program, "--out", guest); code != 0 || !strings.Contains(out, "-arm64, ") {
		t.Fatalf("exit status %d, %s\n%s", code, out, stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*vnictest.Limit)
	defer cancel()
	netns.Run(t, func() {
		var log, second bytes.Buffer
		start := func(out *bytes.Buffer, name string, args ...string) *exec.Cmd {
			t.Helper()
			cmd := exec.CommandContext(ctx, name, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			cmd.Stdout, cmd.Stderr = out, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd
		}
		nic := start(&log, vnictest.Program(t), "run", "-c", config)
		defer func() {
			_ = nic.Process.Signal(syscall.SIGTERM)
			if err := nic.Wait(); err != nil || t.Failed() {
				t.Errorf("vnic run: %v\n%s", err, &log)
			}
		}()
		if _, stderr, code := vnictest.Run(t, "wait", "-s", filepath.Join(dir, "control")); code != 0 {
			t.Fatal(stderr)
		}
		line, err := vnictest.Here(t, qemu.Command(), "-c", config, "--guest", "1001", "--image", guest,
			"--exec", "guest workload --first --peer 192.168.100.12 --service 4791")
		if err != nil || !strings.Contains(line, "qemu-system-aarch64") {
			t.Fatalf("%v %s", err, line)
		}
		client := start(&second, vnictest.Program(t), "guest", "workload", "--device", "unix://"+filepath.Join(dir, "client.sock"), "--second", "--peer", "192.168.100.11", "--service", "4791")
		var said bytes.Buffer
		vm := start(&said, "sh", "-c", "exec "+strings.TrimSpace(vnictest.StripComments(line)))
		if err := errors.Join(vm.Wait(), client.Wait()); err != nil || !strings.Contains(said.String(), `"kind":"done"`) || !strings.Contains(second.String(), "all verified") {
			t.Errorf("%v\nguest:\n%s\nclient:\n%s", err, &said, &second)
		}
	})
}
