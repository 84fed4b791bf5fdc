package guest_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// The output of the C programs and of the Go program of the same name.
var (
	driverSays  = regexp.MustCompile(`(?s)function 0x\w+, ABI 2\.\d+.*work request [12]: status 0, .*work request [12]: status 0, .*received: hello, vnic`)
	tripsSays   = regexp.MustCompile(`200 round trips of 64 bytes, [\d.]+ ?.s each`)
	othersSays  = regexp.MustCompile(`WRITE, FETCH_ADD, CMP_SWAP and READ did what they should`)
	sanitizers  = []string{"CFLAGS=-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"}
	staticBuild = []string{"LDFLAGS=-static"}
)

// buildC builds the C library and its programs and returns their folder.
func buildC(t testing.TB, variables ...string) string {
	t.Helper()
	for _, tool := range []string{"gcc", "make"} {
		_, err := exec.LookPath(tool)
		vnictest.Require(t, err == nil, tool+" is not installed")
	}
	dir := t.TempDir()
	out, err := exec.Command("make", append([]string{"-C", "../../../guestlib/c", "CC=gcc", "OUT=" + dir}, variables...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("make: %v\n%s", err, out)
	}
	return dir
}

// TestProgramsInCWorkWithoutAVM: the C programs, built with sanitizers, work without a VM, with each other and with the Go
// driver.
func TestProgramsInCWorkWithoutAVM(t *testing.T) {
	bin := buildC(t, sanitizers...)
	goBin := t.TempDir()
	if err := vnictest.Build(filepath.Join(goBin, "pingpong"), "../../../guestlib/examples/pingpong"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	vnictest.Serve(t, vnictest.WriteConfig(t, fmt.Sprintf(latencyConfig, dir)))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	say := func(argv ...string) (string, error) {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		return string(out), err
	}
	if text, err := say(filepath.Join(bin, "driver"), dir+"/a"); err != nil || !driverSays.MatchString(text) {
		t.Fatalf("driver: %v\n%s", err, text)
	}
	driversMeet(ctx, t, filepath.Join(bin, "driver"), dir+"/a", dir+"/b")
	a, b := "unix://"+dir+"/a", "unix://"+dir+"/b"
	inC, inGo := []string{filepath.Join(bin, "pingpong")}, []string{filepath.Join(goBin, "pingpong"), "-d"}
	unreliable := append(slices.Clone(inC), "-u")
	for name, tc := range map[string]struct{ server, client []string }{
		"C and C":             {inC, inC},
		"C and C, unreliable": {unreliable, unreliable},
		"Go and C":            {inGo, inC},
		"C and Go":            {inC, inGo},
	} {
		served := make(chan error, 1)
		go func() {
			text, err := say(append(slices.Clone(tc.server), a)...)
			if err != nil {
				err = fmt.Errorf("server: %w\n%s", err, text)
			}
			served <- err
		}()
		text, err := say(append(slices.Clone(tc.client), b, "192.168.100.11")...)
		if err != nil || !tripsSays.MatchString(text) || othersSays.MatchString(text) != (&tc.client[0] == &inC[0]) {
			t.Errorf("%s: client: %v\n%s", name, err, text)
		}
		if err := <-served; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for want, args := range map[string][]string{
		"unix:///nowhere: No such file or directory; is the NIC running?": {"unix:///nowhere"},
		`"nobody" is no IPv4 or IPv6 address`:                             {a, "nobody"},
		"write vsock://2:7000, pci:// or unix:///PATH":                    {"tcp://1"},
	} {
		text, err := say(append(slices.Clone(inC), args...)...)
		if err == nil || !bytes.Contains([]byte(text), []byte(want)) {
			t.Errorf("%q: %v, %q, want %q", args, err, text, want)
		}
	}
}

// driversMeet runs the driver at two ends, gives each what the other prints, and expects that each
// receives what the other sends.
func driversMeet(ctx context.Context, t *testing.T, driver string, sockets ...string) {
	t.Helper()
	type end struct {
		in    io.WriteCloser
		lines *bufio.Scanner
		cmd   *exec.Cmd
	}
	var ends [2]end
	var who [2]string
	for i := range ends {
		e := &ends[i]
		e.cmd = exec.CommandContext(ctx, driver, sockets[i], "peer")
		e.cmd.Stderr = os.Stderr
		out, err := e.cmd.StdoutPipe()
		if err == nil {
			e.in, err = e.cmd.StdinPipe()
		}
		if err == nil {
			err = e.cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		e.lines = bufio.NewScanner(out)
		for found := false; !found && e.lines.Scan(); {
			who[i], found = strings.CutPrefix(e.lines.Text(), "for the other end: ")
		}
	}
	for i := range ends {
		fmt.Fprintln(ends[i].in, who[1-i])
	}
	var said [2]strings.Builder
	for i := range ends { // both have all before one ends
		for !strings.Contains(said[i].String(), "received: ") && ends[i].lines.Scan() {
			fmt.Fprintln(&said[i], ends[i].lines.Text())
		}
	}
	for i := range ends {
		_ = ends[i].in.Close()
		if err := ends[i].cmd.Wait(); err != nil || !strings.Contains(said[i].String(), "work request 2: status 0") || !strings.Contains(said[i].String(), "received: hello, vnic") {
			t.Errorf("driver with a peer: %v\n%s", err, &said[i])
		}
	}
}

const cGuestConfig = `
nic: {host: 1}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {unix: b}}
attach:
  - {type: vhost-user, socket: %s/g.sock, cid: 1001}
  - {type: unix, name: b, socket: %[1]s/b}
`

// TestCInGuest: the C programs work in QEMU guests with Debian's kernel: the driver, and the
// library with a Go program outside.
func TestCInGuest(t *testing.T) {
	cInGuest(t, cGuestConfig, func(guest func(m qemu.Machine, args ...string) string, dir string) {
		m := qemu.Machine{Vsock: dir + "/g.sock"}
		if text := guest(m, "/bin/driver"); !driverSays.MatchString(text) {
			t.Errorf("driver: %s", text)
		}
		if text := guest(m, "/bin/pingpong", "vsock", "192.168.100.12"); !tripsSays.MatchString(text) || !othersSays.MatchString(text) {
			t.Errorf("pingpong: %s", text)
		}
	})
}

// TestLongCOverPCI: the C library works in guests whose function is a PCI device, through vfio-pci
// and mapped from sysfs.
func TestLongCOverPCI(t *testing.T) {
	config := strings.Replace(cGuestConfig, "vhost-user", "vfio-user", 1)
	cInGuest(t, config, func(guest func(m qemu.Machine, args ...string) string, dir string) {
		m := qemu.Machine{Binary: vnictest.NewQEMU(t, t.Context()), Vfio: []qemu.Vfio{{Function: "pf0.vf1", Socket: dir + "/g.pf0.vf1"}}}
		for _, m.IOMMU = range []bool{true, false} {
			if text := guest(m, "/bin/pingpong", "pci://", "192.168.100.12"); !tripsSays.MatchString(text) || !othersSays.MatchString(text) {
				t.Errorf("pingpong, IOMMU %t: %s", m.IOMMU, text)
			}
		}
	})
}

// cInGuest lets f run C programs in guests of a NIC. Outside runs a Go program, the peer of each
// pingpong.
func cInGuest(t *testing.T, config string, f func(guest func(m qemu.Machine, args ...string) string, dir string)) {
	vnictest.RequireGuests(t)
	bin := buildC(t, staticBuild...)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	vnictest.Require(t, err == nil, fmt.Sprint("no guest kernel: ", err))
	initrd := filepath.Join(t.TempDir(), "initramfs.cpio")
	if err := (image.Initramfs{
		Kernel: k, Init: vnictest.Program(t), Modules: slices.Concat(image.VsockModules, image.VFIOModules),
		Programs: []string{filepath.Join(bin, "driver"), filepath.Join(bin, "pingpong")},
	}).Write(initrd); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "vnic-c-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	vnictest.Serve(t, vnictest.WriteConfig(t, fmt.Sprintf(config, dir)))
	outside := filepath.Join(t.TempDir(), "pingpong")
	if err := vnictest.Build(outside, "../../../guestlib/examples/pingpong"); err != nil {
		t.Fatal(err)
	}
	f(func(m qemu.Machine, args ...string) string {
		t.Helper()
		console := filepath.Join(dir, "console")
		m.Memory, m.Kernel, m.Initrd, m.InitArgs, m.Console = vnictest.GuestMemory, k.Boot(), initrd, args, qemu.FileChardev(console)
		vm, err := qemu.Start(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		defer vm.Stop()
		served := make(chan error, 1)
		serving, stop := context.WithCancel(ctx)
		go func() {
			if filepath.Base(args[0]) != "pingpong" {
				served <- nil
				return
			}
			out, err := exec.CommandContext(serving, outside, "-d", "unix://"+dir+"/b").CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, out)
			}
			served <- err
		}()
		var said bytes.Buffer
		for lines := bufio.NewScanner(vm.Output()); lines.Scan(); {
			fmt.Fprintln(&said, lines.Text())
		}
		if err := vm.Wait(ctx); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(console)
		if err != nil || bytes.Contains(text, []byte("vnic-init:")) {
			t.Errorf("%q: %v\n%s\n%s", args, err, &said, text)
		}
		if t.Failed() {
			stop() // the program outside waits for one that is gone
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		stop()
		return said.String()
	}, dir)
}

// TestCodeOfTheGuideIsPartOfTheDriver: all C code in the guide is part of the driver, and the driver is as short as the
// guide says.
func TestCodeOfTheGuideIsPartOfTheDriver(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/driver-guide.md")
	if err != nil {
		t.Fatal(err)
	}
	driver, err := os.ReadFile("../../../guestlib/c/example/driver.c")
	if err != nil {
		t.Fatal(err)
	}
	pieces := regexp.MustCompile("(?s)```c\n(.*?)```").FindAllSubmatch(guide, -1)
	if len(pieces) < 8 {
		t.Errorf("%d pieces of code", len(pieces))
	}
	for _, p := range pieces {
		if !bytes.Contains(driver, p[1]) {
			t.Errorf("not in driver.c:\n%s", p[1])
		}
	}
	if n := bytes.Count(driver, []byte("\n")); n >= 300 {
		t.Errorf("driver.c has %d lines; the guide says less than 300", n)
	}
}
