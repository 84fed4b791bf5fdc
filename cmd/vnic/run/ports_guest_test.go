package run_test

import (
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

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
)

// portGuestConfig has a guest with a port in its memory and another that it gets while it runs, and
// a port on the host.
const portGuestConfig = `
nic: {host: 1}
control: %[1]s/control
uplink: {name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}, port: {type: vhost-user, socket: %[1]s/p1, mtu: 1500, queues: 2}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {cid: 1001}, port: {type: vhost-user, socket: %[1]s/p2, mtu: 1500}}
      - {vf: 3, tenant: 100, address: 192.168.100.13, port: {mode: direct, name: vp3, mtu: 1500}}
attach:
  - {type: vhost-user, socket: %[1]s/g1.sock, cid: 1001}
`

// TestLongGuestPortOfQEMU and TestLongGuestPortOfNewQEMU: Linux in a QEMU, that of Debian 12 or
// that of its backports, works on ports in its memory. The first port has two pairs of queues, for
// each of which QEMU 7.2 announces each piece of memory once. iperf3 runs to the host and back, a
// second port is plugged in by QEMU's monitor, and a NIC is killed with its supervisor and started
// again.
func TestLongGuestPortOfQEMU(t *testing.T) { guestPortInQEMU(t, "qemu-system-x86_64") }

func TestLongGuestPortOfNewQEMU(t *testing.T) {
	vnictest.RequireGuests(t)
	guestPortInQEMU(t, vnictest.NewQEMU(t, t.Context()))
}

func guestPortInQEMU(t *testing.T, program string) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	vnictest.RequireGuests(t)
	dir, err := os.MkdirTemp("", "vnic-gp-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path, image, log := filepath.Join(dir, "nic.yaml"), filepath.Join(dir, "guest"), filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, fmt.Appendf(nil, portGuestConfig, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := vnictest.Run(t, "image", "--out", image); code != 0 {
		t.Fatalf("exit status %d\n%s", code, stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	own := []string{"-c", path, "--guest", "1001"}
	netns.Run(t, func() {
		serve := func() *labkit.Process {
			t.Helper()
			p, err := labkit.Start("vnic run", log, vnictest.Program(t), "run", "-c", path)
			if err != nil {
				t.Fatal(err)
			}
			if _, stderr, code := vnictest.Run(t, "wait", "-s", filepath.Join(dir, "control")); code != 0 {
				t.Fatal(stderr)
			}
			if err := netns.Up("vp3", "192.168.100.13/24"); err != nil {
				t.Fatal(err)
			}
			return p
		}
		nic := serve()
		defer func() {
			nic.Stop(5 * time.Second)
			if t.Failed() {
				b, _ := os.ReadFile(log)
				t.Logf("vnic run:\n%s", b)
			}
		}()
		server, err := labkit.StartCommand("iperf3", exec.Command("iperf3", "-s"))
		if err != nil {
			t.Fatal(err)
		}
		defer server.Stop(0)

		cmd := exec.CommandContext(ctx, vnictest.Program(t), append(append([]string{"qemu"}, own...), "--accel", "tcg", "--qemu", program, "--image", image, "--functions", "pf0.vf1", "--run")...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		in, err1 := cmd.StdinPipe()
		said, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		c := &vnictest.Console{Out: said}
		const prompt = "vnic-guest:~# "
		c.Until(t, prompt)
		do := func(line, want string) {
			t.Helper()
			fmt.Fprintln(in, line)
			if got := c.Until(t, prompt); !strings.Contains(got, want) {
				t.Fatalf("%s: %q is not in\n%s", line, want, got)
			}
		}
		carrier := func(is int) {
			t.Helper()
			do(fmt.Sprintf(`for i in $(seq 300); do [ "$(cat /sys/class/net/eth0/carrier)" = %d ] && break; sleep 0.1; done; echo carrier $(cat /sys/class/net/eth0/carrier)`, is), fmt.Sprintf("carrier %d", is))
		}
		iperf := func() {
			t.Helper()
			do("iperf3 -c 192.168.100.13 -t 1 | tail -n 4", "receiver")
			do("iperf3 -c 192.168.100.13 -t 1 -R | tail -n 4", "receiver")
		}
		do("ip -br addr show dev eth0", "192.168.100.11/24")
		do("cat /sys/class/net/eth0/speed /sys/class/net/eth0/duplex", "100000\r\nfull")
		iperf()

		if out, err := vnictest.Here(t, qemu.Command(), append(append([]string{"plug"}, own...), "pf0.vf2")...); err != nil || !strings.Contains(out, "port of pf0.vf2 plugged in, the NIC's socket "+dir+"/p2") {
			t.Fatalf("%v %s", err, out)
		}
		mac := config.FunctionMAC("1", 0, 2).String()
		do(`for i in $(seq 100); do grep -qi `+mac+` /sys/class/net/eth1/address && break; sleep 0.1; done; ip link set eth1 up; cat /sys/class/net/eth1/address`, mac)
		do("cat /sys/class/net/eth1/speed", "100000")
		do("ip addr add 192.168.100.12/32 dev eth1; ping -c 2 -W 60 -I eth1 192.168.100.13", " 0% packet loss")

		if err := nic.Cmd.Process.Kill(); err != nil { // its worker ends with it
			t.Fatal(err)
		}
		<-nic.Done
		carrier(0)
		nic = serve()
		carrier(1)
		iperf()
		do("ping -c 2 -W 60 -I eth1 192.168.100.13", " 0% packet loss")
		fmt.Fprintln(in, "exit")
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &c.All)
		}
	})
}
