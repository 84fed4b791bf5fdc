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
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
)

const imageConfig = `
nic: {host: 1}
control: %[1]s/control
uplink: {name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}, port: {mode: bridged, name: vp1, bridge: gbr1}}
attach:
  - {type: vhost-user, socket: %[1]s/g1.sock, cid: 1001}
`

// TestLongGuestImage makes a guest by vnic image and boots it by vnic qemu, with a port and a
// shared folder. The guest has a shell on its console, which Ctrl-C reaches, an address and an MTU
// by DHCP, its packages, the program, the added files, and verbs by Soft-RoCE. Then the test boots
// the image with a command.
func TestLongGuestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	vnictest.RequireGuests(t)
	dir, err := os.MkdirTemp("", "vnic-image-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	share, config, guest := filepath.Join(dir, "share"), filepath.Join(dir, "nic.yaml"), filepath.Join(dir, "guest")
	for path, text := range map[string]string{config: fmt.Sprintf(imageConfig, dir), filepath.Join(share, "hello"): "from the host\n"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, stderr, code := vnictest.Run(t, "image", "--out", guest, "--package", "strace", "--file", config+":/root/here/nic.yaml", "--json")
	if code != 0 || !strings.Contains(out, `"name": "strace"`) || !strings.Contains(out, `"name": "iperf3"`) {
		t.Fatalf("exit status %d, %s\n%s", code, out, stderr)
	}
	boot := []string{"qemu", "-c", config, "--guest", "1001", "--accel", "tcg", "--image", guest, "--share", share}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	netns.Run(t, func() {
		for _, words := range []string{"link add gbr1 type bridge", "link set gbr1 up"} {
			if out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v %s", words, err, out)
			}
		}
		nic := exec.CommandContext(ctx, vnictest.Program(t), "run", "-c", config)
		nic.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		nic.Cancel = func() error { return nic.Process.Signal(syscall.SIGTERM) }
		var log bytes.Buffer
		nic.Stderr = &log
		if err := nic.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = nic.Process.Signal(syscall.SIGTERM)
			if err := nic.Wait(); err != nil || t.Failed() {
				t.Errorf("vnic run: %v\n%s", err, &log)
			}
		}()
		if _, stderr, code := vnictest.Run(t, "wait", "-s", filepath.Join(dir, "control")); code != 0 {
			t.Fatal(stderr)
		}
		line, err := vnictest.Here(t, qemu.Command(), boot[1:]...)
		_, tap, found := strings.Cut(line, "its port: ")
		if err != nil || !found {
			t.Fatalf("%v %s", err, line)
		}
		tap, _, _ = strings.Cut(tap, "\n")
		if out, err := exec.Command("sh", "-c", tap).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", tap, err, out)
		}
		cmd := exec.CommandContext(ctx, vnictest.Program(t), append(boot, "--run")...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		in, err1 := cmd.StdinPipe()
		said, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		c := &vnictest.Console{Out: said}
		const prompt = "vnic-guest:~# "
		c.Until(t, prompt)
		for _, tc := range [][2]string{
			{"vnic guest info --samples 0", "192.168.100.11"},
			{"ip -br addr show dev eth0", "192.168.100.11/24"},
			{"ip link show dev eth0", "mtu 4432"},
			{"cat /share/hello", "from the host"},
			{"cat /root/here/nic.yaml", "cid: 1001"},
			{"strace -V", "strace -- version"},
			{"iperf3 --version", "iperf 3"},
			{"type ib_write_bw tcpdump ping", "/usr/bin/ping"},
			{"rdma link add rxe0 type rxe netdev eth0; ibv_devices", "rxe0 "},
			{"echo from the guest > /share/answer; sync", ""},
		} {
			fmt.Fprintln(in, tc[0])
			if got := c.Until(t, prompt); !strings.Contains(got, tc[1]) {
				t.Errorf("%s: %q is not in\n%s", tc[0], tc[1], got)
			}
		}
		// In any shell, a Ctrl-C that comes before the shell has given the terminal to its command
		// is lost. So the command itself prints that it runs.
		fmt.Fprintln(in, "sh -c 'echo begun; exec sleep 1000'")
		c.Until(t, "\nbegun")
		fmt.Fprint(in, "\x03") // it ends what runs in the guest, and not the guest
		c.Until(t, prompt)
		fmt.Fprintln(in, "echo status $?")
		c.Until(t, "status 130")
		fmt.Fprintln(in, "exit")
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &c.All)
		}
		if b, err := os.ReadFile(filepath.Join(share, "answer")); string(b) != "from the guest\n" {
			t.Errorf("%q, %v", b, err)
		}

		cmd = exec.CommandContext(ctx, vnictest.Program(t), append(boot, "--run", "--exec", "guest info --samples 0")...)
		text, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(text, []byte("h1.pf0.vf1")) {
			t.Errorf("%v %s", err, text)
		}
	})
}
