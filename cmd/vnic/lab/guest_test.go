package lab_test

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// TestLongGuests: a guest on a port in its memory and one on a TAP with a window run commands, take and
// give files, have a console, and are started again; down removes them, also after kill -9.
func TestLongGuests(t *testing.T) {
	vnictest.RequireGuests(t)
	apart(t, "TestInsideGuests")
}

// debianModule returns a module of the kernel that guests have.
func debianModule(t *testing.T, name string) string {
	t.Helper()
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	var path string
	_ = filepath.WalkDir(k.Modules, func(p string, _ fs.DirEntry, _ error) error {
		if filepath.Base(p) == name+".ko" {
			path = p
		}
		return nil
	})
	return path
}

const guests = `
name: guests
hosts: {a: {}, b: {}}
machines:
  m1: {host: a, guest: {}}
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
	path := file(t, guests)
	vnictest.RequireIn(t, vnic(t, "lab", "up", path), "guests: 2 started", "vnic lab shell m1", "ip netns exec guests.m3 bash")
	said := vnic(t, "lab", "validate")
	if strings.Count(said, "PASS") != 6 {
		t.Error(said)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "config", "m2"), "qemu-system-x86_64", "-m 600M", "ivshmem-doorbell", "ifname=vf1g")

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
	module := debianModule(t, "dummy")
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
	for _, pid := range pidsOf("qemu", "guests.m1") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
}
