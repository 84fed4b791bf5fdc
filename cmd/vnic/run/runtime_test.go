package run_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
)

const runtimeConfig = `
nic: {host: 1}
control: %[1]s/c.sock
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    tenant: 100
    address: 192.168.100.10
    guest: {unix: pf}
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {cid: 1001}, enabled: false}
attach:
  - {type: vhost-user, socket: %[1]s/g1.sock, cid: 1001, windows: true}
  - {type: unix, name: pf, socket: %[1]s/pf.sock}
`

// runNIC starts a NIC with a configuration, whose control socket is c.sock in dir, and waits until it
// serves.
func runNIC(t *testing.T, config, dir string) (stop func()) {
	t.Helper()
	log := filepath.Join(dir, "log")
	p, err := labkit.Start("nic", log, vnictest.Program(t), "run", "-c", config)
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		p.Stop(20 * time.Second)
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("%s", b)
		}
	}
	if _, errs, code := vnictest.Run(t, "wait", "-s", filepath.Join(dir, "c.sock"), "--timeout", "30s"); code != 0 {
		stop()
		t.Fatal(errs)
	}
	return stop
}

// TestWindowsAtRunTime: a VF that is enabled while the NIC runs has a window like the others, and
// vnic qemu prints it.
func TestWindowsAtRunTime(t *testing.T) {
	dir, err := os.MkdirTemp("", "vnic-rt-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := vnictest.WriteConfig(t, fmt.Sprintf(runtimeConfig, dir))
	vnictest.ServeOn(t, fabric.New(4500), path)
	window := func(vf int) string { return filepath.Join(dir, fmt.Sprintf("g1.pf0.vf%d", vf)) }
	c := control.NewClient(filepath.Join(dir, "c.sock"))
	change := func(function string, set map[string]string) {
		t.Helper()
		if _, err := c.ChangeFunction(t.Context(), control.FunctionChange{Function: function, Action: "enable", Set: set}); err != nil {
			t.Fatal(err)
		}
	}
	introduced(t, window(1))
	if _, err := os.Stat(window(3)); err == nil {
		t.Error("a VF that nobody enabled has a window")
	}

	change("pf0.vf3", map[string]string{"tenant": "100", "address": "192.168.100.13", "guest": "cid:1001"})
	introduced(t, window(3))
	change("pf0.vf4", map[string]string{"tenant": "100", "address": "192.168.100.14", "guest": "unix:pf"})
	if _, err := os.Stat(window(4)); err == nil {
		t.Error("the VF of a client without a QEMU has a window")
	}
	change("pf0.vf3", nil) // again: it keeps what it has
	introduced(t, window(3))

	introduced(t, window(2)) // configured, though not enabled
	change("pf0.vf4", map[string]string{"guest": "cid:1001"})
	introduced(t, window(4))

	line, err := vnictest.Here(t, qemu.Command(), "-c", path, "--guest", "1001", "--functions", "pf0.vf1,pf0.vf4")
	if err != nil || !strings.Contains(line, "path="+window(4)) || !strings.Contains(line, "pf0.vf4: tenant 100, address 192.168.100.14") {
		t.Errorf("%v\n%s", err, line)
	}
	if _, err := vnictest.Here(t, qemu.Command(), "-c", path, "--guest", "1001", "--functions", "pf0.vf9"); err == nil || !strings.Contains(err.Error(), "guest 1001 has no function pf0.vf9") {
		t.Error(err)
	}
}

// introduced waits until a window's server gives QEMU its window.
func introduced(t *testing.T, path string) {
	t.Helper()
	vnictest.Eventually(t, "window at "+path, func() error {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(vnictest.Limit))
		var fds fdpass.FDs
		defer fds.Close()
		var b [(ivshmem.Files + 2) * 8]byte
		return fds.ReadFull(c, b[:], ivshmem.Files)
	})
}

// TestAWindowThatCouldNotBeServedIsTriedAgain: with a folder in the place of its socket, a window or a function by
// vfio-user is refused. Once the folder is gone, the same command works.
func TestAWindowThatCouldNotBeServedIsTriedAgain(t *testing.T) {
	dir, err := os.MkdirTemp("", "vnic-rt-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at, err := labkit.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	more := fmt.Sprintf("  - {type: vfio-user, socket: %s/g2.sock, cid: 1002}\n", dir)
	text := strings.Replace(fmt.Sprintf(runtimeConfig, dir)+more, "{backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}", fmt.Sprintf("{type: udp, listen: \"127.0.0.1:%d\"}", at[0]), 1)
	socket := filepath.Join(dir, "c.sock")
	defer runNIC(t, vnictest.WriteConfig(t, text), dir)()
	for vf, guest := range map[int]string{3: "1001", 4: "1002"} {
		path := filepath.Join(dir, fmt.Sprintf("g%s.pf0.vf%d", guest[3:], vf))
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		enable := []string{"vf", "set", "-s", socket, fmt.Sprintf("pf0.vf%d", vf), "enable", "tenant", "100", "address", fmt.Sprintf("192.168.100.1%d", vf), "guest", "cid:" + guest}
		for range 2 {
			if _, errs, code := vnictest.Run(t, enable...); code == 0 || !strings.Contains(errs, "the supervisor does not serve the window at "+path) {
				t.Errorf("guest %s: exit status %d, %s", guest, code, errs)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := vnictest.Run(t, enable...); code != 0 {
			t.Errorf("guest %s: exit status %d, %s", guest, code, errs)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if guest == "1001" {
			introduced(t, path)
		}
	}
}

// TestPortsAtRunTime: a VF that is enabled while the NIC runs gets a port in a bridge, and vnic
// qemu prints it. Nothing is left of the port when it is removed.
func TestPortsAtRunTime(t *testing.T) {
	vnictest.RequireRoot(t)
	vnictest.Program(t)
	dir, err := os.MkdirTemp("", "vnic-rt-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	netns.Run(t, func() {
		for _, bridge := range []string{"up0", "guests0"} {
			if err := tap.NewBridge(bridge, 4500); err != nil {
				t.Fatal(err)
			}
		}
		text := strings.ReplaceAll(fmt.Sprintf(runtimeConfig, dir), "backend: memory, name: up1", "name: up1, bridge: up0")
		path, socket := vnictest.WriteConfig(t, text), filepath.Join(dir, "c.sock")
		defer runNIC(t, path, dir)()
		vnic := func(args ...string) string {
			t.Helper()
			out, errs, code := vnictest.Run(t, args...)
			if code != 0 {
				t.Fatalf("%v: exit status %d, %s", args, code, errs)
			}
			return out
		}
		n, err := control.NewClient(socket).NIC(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		files := func() (count int) { // of supervisor and worker
			for _, pid := range []int{n.PID, n.Worker} {
				list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
				if err != nil {
					t.Fatal(err)
				}
				count += len(list)
			}
			return count
		}
		enable := []string{"vf", "set", "-s", socket, "pf0.vf3", "enable", "tenant", "100", "address", "192.168.100.13", "guest", "cid:1001", "port", "name=vp3,mode=bridged,bridge=guests0"}
		if out := vnic(enable...); !strings.Contains(out, "port vp3, bridged, up") || !strings.Contains(out, "bridge guests0") {
			t.Error(out)
		}
		introduced(t, filepath.Join(dir, "g1.pf0.vf3"))
		link, err := netlink.LinkByName("vp3")
		if err != nil || link.Attrs().MasterIndex == 0 {
			t.Fatalf("%+v, %v", link, err)
		}
		line := vnic("qemu", "-c", path, "--guest", "1001", "--functions", "pf0.vf3")
		for _, want := range []string{"ifname=vp3g", "mac=02:56:4e:01:00:03", "path=" + filepath.Join(dir, "g1.pf0.vf3"), "host_mtu=4432"} {
			if !strings.Contains(line, want) {
				t.Errorf("no %s in\n%s", want, line)
			}
		}
		vnic("vf", "set", "-s", socket, "pf0.vf3", "port", "none")
		before := files()
		for range 5 {
			vnic(enable...)
			vnic("vf", "set", "-s", socket, "pf0.vf3", "port", "none")
			vnic("vf", "disable", "-s", socket, "pf0.vf3")
		}
		if _, err := netlink.LinkByName("vp3"); err == nil {
			t.Error("the device is left behind")
		}
		vnictest.Eventually(t, "descriptors returned", func() error {
			if n := files(); n > before {
				return fmt.Errorf("%d descriptors, %d before", n, before)
			}
			return nil
		})

		// A killed worker is followed by one that knows the settings, and the device stays.
		vnic(enable...)
		if link, err = netlink.LinkByName("vp3"); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		vnictest.Eventually(t, "the next worker", func() error {
			is, err := control.NewClient(socket).NIC(t.Context())
			if err == nil && is.Worker == n.Worker {
				err = errors.New("the old one answers")
			}
			return err
		})
		if out := vnic("vf", "show", "-s", socket, "pf0.vf3"); !strings.Contains(out, "port vp3, bridged, up") || !strings.Contains(out, "address 192.168.100.13") {
			t.Errorf("after a restart:\n%s", out)
		}
		if now, err := netlink.LinkByName("vp3"); err != nil || now.Attrs().Index != link.Attrs().Index {
			t.Errorf("another device: %v, %v", now, err)
		}
		introduced(t, filepath.Join(dir, "g1.pf0.vf3"))
	})
}
