package qemu_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	qemucmd "github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vf"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/qemu"
)

const hotPlugConfig = `
nic: {host: 1}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {cid: 1001}%[1]s}
      - {vf: 3, tenant: 100, address: 192.168.100.13, guest: {cid: 1001}}
attach:
  - {type: vhost-user, socket: %[2]s, cid: 1001, windows: true}
control: %[2]s.control
`

const hotPlugMAC = "02:56:4e:01:00:02"

// TestLongHotPlug starts a guest with one of its functions by the printed line. While it runs, the
// test plugs in the window and the port of another function, unplugs them and plugs them in again,
// and then the window of a VF that was not enabled when the guest started. The guest runs
// TestInsideHotPlug.
func TestLongHotPlug(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	kernel, initrd := vnictest.GuestOfTest(t, ctx, "virtio_net")
	dir, err := os.MkdirTemp("", "vnic-plug-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "g1.sock")
	withPort := vnictest.WriteConfig(t, fmt.Sprintf(hotPlugConfig, ", port: {mode: bridged, name: vp2, mac: '02:56:50:01:00:02'}", socket))
	vnictest.ServeOn(t, fabric.New(4500), vnictest.WriteConfig(t, fmt.Sprintf(hotPlugConfig, "", socket)))
	vnic := func(args ...string) (string, error) {
		return vnictest.Here(t, qemucmd.Command(), append([]string{"-c", withPort, "--guest", "1001"}, args[1:]...)...)
	}
	netns.Run(t, func() {
		if out, err := exec.Command("ip", "tuntap", "add", "vp2g", "mode", "tap").CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		console, output := filepath.Join(dir, "console"), filepath.Join(dir, "output")
		line, err := vnic("qemu", "--functions", "pf0.vf1", "--hotplug", "3", "--memory", "256M", "--kernel", kernel, "--initrd", initrd,
			"--append", "console=ttyS0 panic=-1 loglevel=4 random.trust_cpu=on mitigations=off no_timer_check -- -test.v -test.run=^TestInsideHotPlug$",
			"--", "-nodefaults", "-no-reboot", "-serial", "file:"+console, "-serial", "file:"+output)
		if err != nil {
			t.Fatal(err)
		}
		sh := exec.CommandContext(ctx, "sh", "-c", "exec "+strings.TrimSpace(vnictest.StripComments(line)))
		var said bytes.Buffer
		sh.Stdout, sh.Stderr = &said, &said
		sh.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := sh.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- sh.Wait() }()
		reports := func(what string) {
			t.Helper()
			for b := []byte(nil); !bytes.Contains(b, []byte(what)); b, _ = os.ReadFile(output) {
				select {
				case <-time.After(100 * time.Millisecond):
				case err := <-ended:
					ended <- err
					if b, _ = os.ReadFile(output); bytes.Contains(b, []byte(what)) {
						return
					}
					log, _ := os.ReadFile(console)
					t.Fatalf("the guest ended without %q: %v %s\n%s\nconsole:\n%s", what, err, &said, b, log)
				}
			}
		}
		reports("first window in use")

		before := guestStatus(t, vnic)
		if before.State != "running" || before.CPUs != 1 || before.Memory != (qemu.Backend{ID: "m0", Type: "memory-backend-memfd", Bytes: 256 << 20, Shared: true}) {
			t.Errorf("%+v", before)
		}
		devices(t, before, "pf0.vf1 ivshmem-doorbell 08.0", "vsock vhost-user-vsock-pci 01.0")
		if out, err := vnictest.Here(t, vf.Command(), "set", "-s", socket+".control", "pf0.vf4", "enable", "tenant", "100", "address", "192.168.100.14", "guest", "cid:1001"); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		out, err := vnic("qemu", "plug", "pf0.vf2", "pf0.vf4")
		if err != nil || !strings.Contains(out, "port of pf0.vf2 plugged in, TAP vp2g") {
			t.Fatalf("%v %s", err, out)
		}
		devices(t, guestStatus(t, vnic), "pf0.vf1 ivshmem-doorbell 08.0", "pf0.vf2 ivshmem-doorbell hot0", "pf0.vf4 ivshmem-doorbell hot1", "port-pf0.vf2 virtio-net-pci hot2", "vsock vhost-user-vsock-pci 01.0")
		for function, want := range map[string]string{"pf0.vf2": "the guest has it already", "pf0.vf3": "all 3 root ports"} {
			if out, err := vnic("qemu", "plug", function); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v %s", function, err, out)
			}
		}
		if text, err := vnic("qemu", "status"); err != nil || !strings.Contains(text, "none free") {
			t.Errorf("%v %s", err, text)
		} else {
			t.Log("\n" + text)
		}
		reports("port in use")
		if out, err := vnic("qemu", "unplug", "pf0.vf1"); err == nil || !strings.Contains(err.Error(), "from the start, at 08.0") {
			t.Errorf("%v %s", err, out)
		}
		if out, err = vnic("qemu", "unplug", "pf0.vf2"); err != nil || !strings.Contains(out, "port of pf0.vf2 unplugged") {
			t.Fatalf("%v %s", err, out)
		}
		after := guestStatus(t, vnic)
		devices(t, after, "pf0.vf1 ivshmem-doorbell 08.0", "pf0.vf4 ivshmem-doorbell hot1", "vsock vhost-user-vsock-pci 01.0")
		if !slices.Equal(after.HotPlug.Free, []string{"hot0", "hot2"}) {
			t.Errorf("%+v", after.HotPlug)
		}
		reports("without a window")
		if out, err := vnic("qemu", "plug", "pf0.vf2"); err != nil {
			t.Fatalf("plugged in again: %v %s", err, out)
		}
		reports("--- PASS: TestInsideHotPlug")
		<-ended
		if out, err := vnic("qemu", "status"); err == nil || !strings.Contains(err.Error(), "does not run") {
			t.Errorf("status of a guest that is gone: %v %s", err, out)
		}
	})
}

func guestStatus(t *testing.T, vnic func(...string) (string, error)) (s qemu.Status) {
	t.Helper()
	text, err := vnic("qemu", "status", "--json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &s)
	}
	if err != nil {
		t.Fatalf("%v %s", err, text)
	}
	return s
}

func devices(t *testing.T, s qemu.Status, want ...string) {
	t.Helper()
	var got []string
	for _, d := range s.Devices {
		got = append(got, fmt.Sprintf("%s %s %s", d.ID, d.Driver, d.PCI))
		if !d.Connected {
			t.Errorf("%s is not connected", d.ID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("devices %q, want %q", got, want)
	}
}

// TestInsideHotPlug runs in the guest of TestLongHotPlug.
func TestInsideHotPlug(t *testing.T) {
	if os.Getenv("VNIC_GUEST") == "" {
		t.Skip("runs in the guest of TestLongHotPlug")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	open := func(function string) (path string) {
		t.Helper()
		d, err := guestlib.Open(ctx, "vsock://2:7000?function="+function, guestlib.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		path, _ = d.Path()
		if _, err := d.MeasureLatency(ctx, 20); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if p := open("pf0.vf1"); p != "ivshmem" {
		t.Fatalf("pf0.vf1 rings over %s", p)
	}
	if p := open("pf0.vf2"); p != "vsock" {
		t.Fatalf("pf0.vf2 rings over %s before its window is plugged in", p)
	}
	fmt.Println("first window in use")
	for open("pf0.vf2") != "ivshmem" {
		time.Sleep(200 * time.Millisecond)
	}
	fmt.Println("second window in use")
	for open("pf0.vf4") != "ivshmem" {
		time.Sleep(200 * time.Millisecond)
	}
	port := func() bool {
		t.Helper()
		all, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(i net.Interface) bool { return i.HardwareAddr.String() == hotPlugMAC })
		if i >= 0 && all[i].MTU != 4432 {
			t.Fatalf("the port has MTU %d", all[i].MTU)
		}
		return i >= 0
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for ; !is(); time.Sleep(200 * time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("in vain: %s", what)
			}
		}
		fmt.Println(what)
	}
	until("port in use", port)
	until("port taken away", func() bool { return !port() }) // the window before it
	if p := open("pf0.vf2"); p != "vsock" {
		t.Fatalf("pf0.vf2 rings over %s without a window", p)
	}
	fmt.Println("without a window")
	until("port in use again", port)
	until("window in use again", func() bool { return open("pf0.vf2") == "ivshmem" })
}
