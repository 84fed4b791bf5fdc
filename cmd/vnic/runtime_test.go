package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fabric"
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

// TestWindowsAtRunTime: a VF that is enabled while the NIC runs has a window as
// those have that were there at the start, and vnic qemu knows it.
func TestWindowsAtRunTime(t *testing.T) {
	dir, err := os.MkdirTemp("", "vnic-rt-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := writeQEMUConfig(t, fmt.Sprintf(runtimeConfig, dir))
	serveOn(t, fabric.New(4500), path)
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

	line, err := runHere(t, "qemu", "-c", path, "--guest", "1001", "--functions", "pf0.vf1,pf0.vf4")
	if err != nil || !strings.Contains(line, "path="+window(4)) || !strings.Contains(line, "pf0.vf4: tenant 100, address 192.168.100.14") {
		t.Errorf("%v\n%s", err, line)
	}
	if _, err := runHere(t, "qemu", "-c", path, "--guest", "1001", "--functions", "pf0.vf9"); err == nil || !strings.Contains(err.Error(), "guest 1001 has no function pf0.vf9") {
		t.Error(err)
	}
}

// introduced waits until a window's server gives QEMU its window.
func introduced(t *testing.T, path string) {
	t.Helper()
	eventually(t, "window at "+path, func() error {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		var fds fdpass.FDs
		defer fds.Close()
		var b [(4 + ivshmem.Vectors) * 8]byte
		return fds.ReadFull(c, b[:], 2+ivshmem.Vectors)
	})
}
