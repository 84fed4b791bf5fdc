package lab_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// TestLongGuestsOfALabWorkAndAreRemoved: a guest on a port in its memory and one on a TAP with a window run commands, take and
// give files, have a console, and are started again; down removes them, also after kill -9.
func TestLongGuestsOfALabWorkAndAreRemoved(t *testing.T) {
	vnictest.RequireGuests(t)
	apart(t, "TestInsideGuests")
}

// debianModule returns a module of the kernel that guests have, and the folder of that kernel.
func debianModule(t *testing.T, name string) (path, folder string) {
	t.Helper()
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	_ = filepath.WalkDir(k.Modules, func(p string, _ fs.DirEntry, _ error) error {
		if filepath.Base(p) == name+".ko" {
			path = p
		}
		return nil
	})
	return path, filepath.Dir(filepath.Dir(k.Image))
}

const guests = `
name: guests
hosts: {a: {}, b: {}}
machines:
  m1: {host: a, guest: {kernel: KERNEL}}
  m2: {host: b, guest: {port: tap, function: window, memory: 600M}, exec: ["iperf3 -s -D"]}
  m3: {host: b}
validate:
  - {run: [m1, ping, -c1, -W2, m2], wait: 20s}
  - {run: [m2, ping, -c1, -W2, m3], wait: 20s}
  - {run: [m3, iperf3, -c, m2, -t1], wait: 20s}
  - {run: [m1, vnic, guest, info], output: h1.pf0.vf1}
  - {run: [m2, uname, -n], output: ^m2$}
  - {run: [m1, "false"], fails: true}
`

func TestInsideGuests(t *testing.T) {
	inside(t)
	module, kernel := debianModule(t, "dummy")
	path := file(t, strings.Replace(guests, "KERNEL", kernel, 1))
	said := vnic(t, "lab", "up", path)
	vnictest.RequireIn(t, said, "guests: 2 started", "vnic lab shell m1", "ip netns exec guests.m3 bash")
	if strings.Contains(said, "no address") {
		t.Error(said)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "m2", "ip", "-br", "-4", "address"), "192.168.100.2/24")
	said = vnic(t, "lab", "validate")
	if strings.Count(said, "PASS") != 6 {
		t.Error(said)
	}
	line := vnic(t, "lab", "config", "m2")
	vnictest.RequireIn(t, line, "qemu-system-x86_64", "-m 600M", "ivshmem-doorbell", "ifname=vf1g")
	inUse := imageOf(t, line)
	if !inUse() {
		t.Error("a running guest does not have its image in use")
	}

	// Files.
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/to", []byte("from the host"), 0o755); err != nil {
		t.Fatal(err)
	}
	vnic(t, "lab", "cp", dir+"/to", "m1:/root/there")
	if said := vnic(t, "lab", "exec", "m1", "cat", "/root/there"); said != "from the host" {
		t.Errorf("%q", said)
	}
	vnic(t, "lab", "cp", "m1:/etc/vnic", dir)
	if _, err := os.Stat(filepath.Join(dir, "vnic/start")); err != nil {
		t.Error(err)
	}
	cmd := exec.Command(os.Getenv(programVariable), "lab", "exec", "m1", "sh", "-c", "exit 7")
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("the command's exit status is not that of vnic lab exec: %v", err)
	}

	// A module takes the place of the one that is loaded.
	for range 2 {
		vnic(t, "lab", "reload", "m1", module)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "m1", "ip", "-br", "link", "show", "dummy0"), "dummy0")
	if said := refused(t, "lab", "reload", "m1", dir+"/to"); !strings.Contains(said, "name a file that ends in .ko") {
		t.Error(said)
	}

	// The console has a shell.
	console, err := net.Dial("unix", "/run/vnic/lab/guests/m1.console")
	if err != nil {
		t.Fatal(err)
	}
	_ = console.SetDeadline(time.Now().Add(vnictest.Limit))
	c := &vnictest.Console{Out: console}
	if _, err := console.Write([]byte("echo $((6*7))-from-the-console\n")); err != nil {
		t.Fatal(err)
	}
	c.Until(t, "42-from-the-console")
	console.Close()

	// Started again, by itself and with its host, a guest is a new one that works.
	vnic(t, "lab", "restart", "m1")
	refused(t, "lab", "exec", "m1", "cat", "/root/there")
	vnic(t, "lab", "restart", "b")
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS", "PASS")

	// A guest that was killed is started by up; the other goes on.
	before := pidsOf("qemu", "guests.m2")
	for _, pid := range pidsOf("qemu", "guests.m1") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	vnictest.Eventually(t, "its end", func() error { return none(pidsOf("qemu", "guests.m1")) })
	vnictest.RequireIn(t, vnic(t, "lab", "status"), "m1", "off")
	vnic(t, "lab", "up", path)
	if now := pidsOf("qemu", "guests.m2"); len(now) != 1 || now[0] != before[0] {
		t.Errorf("guest m2 is of processes %v, before %v", now, before)
	}
	vnictest.RequireIn(t, refused(t, "lab", "exec", "m1", "sh", "-c", "echo o > /proc/sysrq-trigger; sleep 1000"), "guest m1 has ended: vnic lab restart m1 starts it")
	for _, pid := range pidsOf("qemu", "guests.m2") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
	vnictest.Eventually(t, "the image unused", func() error { // QEMU's last thread gives the lock back
		if inUse() {
			return errors.New("an image is in use when its guest has ended")
		}
		return nil
	})
}

// imageOf returns whether somebody has the image in use that QEMU's line names.
func imageOf(t *testing.T, line string) (inUse func() bool) {
	t.Helper()
	kernel := regexp.MustCompile(`-kernel (\S+)`).FindStringSubmatch(line)
	if kernel == nil {
		t.Fatalf("no kernel in %s", line)
	}
	return func() bool {
		f, err := os.Open(filepath.Dir(kernel[1]))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	}
}

// Environment variables by which the tests below get what was made outside of their namespaces.
const (
	qemuVariable = "VNIC_LAB_TEST_QEMU"
	diskVariable = "VNIC_LAB_TEST_DISK"
)

// TestLongAPCIFunctionInALab: a guest whose function is a PCI device, by vfio-user, has plain IP, an IPv6
// address here, a shell and a console, and starts again after a crash.
func TestLongAPCIFunctionInALab(t *testing.T) {
	vnictest.RequireGuests(t)
	t.Setenv(qemuVariable, vnictest.NewQEMU(t, t.Context()))
	apart(t, "TestInsideAPCIFunctionInALab")
}

func TestInsideAPCIFunctionInALab(t *testing.T) {
	inside(t)
	path := file(t, `
name: pci
hosts: {a: {}, b: {}}
tenants: {six: {subnet: "fd00:6::/64"}}
machines:
  p: {host: a, guest: {function: vfio-user, qemu: `+os.Getenv(qemuVariable)+`}}
  m: {host: b}
validate:
  - {run: [m, ping, -c1, -W2, p], wait: 2m}
`)
	vnictest.RequireIn(t, vnic(t, "lab", "up", path), "guests: 1 started", "vnic lab shell p")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "p", "ip", "-br", "-6", "address"), "fd00:6::1/64")
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "p", "vnic", "guest", "info", "--device", "pci://"), "pf0.vf1", "pci-msix")
	console, err := net.Dial("unix", "/run/vnic/lab/pci/p.console")
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	_ = console.SetDeadline(time.Now().Add(vnictest.Limit))
	c := &vnictest.Console{Out: console}
	for _, say := range [][2]string{{"cat /sys/bus/pci/devices/*/device\n", "0x10f0"}, {"echo c > /proc/sysrq-trigger\n", "vnic-init: started"}} {
		if _, err := console.Write([]byte(say[0])); err != nil {
			t.Fatal(err)
		}
		c.Until(t, say[1])
	}
	vnictest.RequireIn(t, vnic(t, "lab", "crash", "p"), "sysrq_handle_crash")
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	vnic(t, "lab", "down")
	nothingLeft(t)
}

// TestLongADiskInALab: the lab debian has a guest that boots a whole Debian from an overlay of a disk, which
// goes with the lab.
func TestLongADiskInALab(t *testing.T) {
	vnictest.RequireGuests(t)
	disk := filepath.Join(t.TempDir(), "debian.qcow2")
	if _, stderr, code := vnictest.Run(t, "image", "--disk", disk); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	t.Setenv(diskVariable, disk)
	apart(t, "TestInsideADiskInALab")
}

func TestInsideADiskInALab(t *testing.T) {
	inside(t)
	disk := os.Getenv(diskVariable)
	before, err := os.Stat(disk)
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := os.ReadFile("../../../docs/labs/debian.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Under another name: overlays are outside of the test's namespaces.
	path := filepath.Join(filepath.Dir(disk), "disk.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(string(shipped), "name: debian", "name: disk-of-its-own", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "up", path), "guests: 1 started", "vnic lab shell deb")
	if said := vnic(t, "lab", "validate"); strings.Count(said, "PASS") != 3 {
		t.Error(said)
	}
	vnic(t, "lab", "exec", "deb", "sh", "-c", "echo here > /var/mark; sync")
	overlays, _ := filepath.Glob("/var/tmp/vnic-lab/disk-of-its-own/*")
	if len(overlays) != 1 {
		t.Errorf("overlays: %v", overlays)
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
	if left, _ := filepath.Glob("/var/tmp/vnic-lab/disk-of-its-own*"); len(left) > 0 {
		t.Errorf("overlays are left: %v", left)
	}
	if now, err := os.Stat(disk); err != nil || !now.ModTime().Equal(before.ModTime()) {
		t.Errorf("the disk has changed: %v", err)
	}
}
