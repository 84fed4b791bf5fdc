package demo_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// demoRun is a running demo with a temporary folder of its own.
type demoRun struct {
	t     testing.TB
	cmd   *exec.Cmd
	mark  string   // in the environment of all its processes
	under []string // program that runs it, with arguments
	tmp   string
	out   string
	lines *bufio.Scanner
	text  bytes.Buffer // what it has printed
	errs  bytes.Buffer
}

func startDemo(t testing.TB, args ...string) *demoRun {
	t.Helper()
	return startUnder(t, nil, args...)
}

// startWithoutRights starts a demo that has no capability, like an ordinary user's.
func startWithoutRights(t testing.TB, args ...string) *demoRun {
	t.Helper()
	if os.Geteuid() != 0 {
		return startUnder(t, nil, args...)
	}
	return startUnder(t, []string{"setpriv", "--inh-caps=-all", "--bounding-set=-all"}, append(args, "--fabric", "udp")...)
}

func startUnder(t testing.TB, under []string, args ...string) *demoRun {
	t.Helper()
	tmp, err := os.MkdirTemp("", "vd-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	d := &demoRun{t: t, tmp: tmp, out: filepath.Join(t.TempDir(), "out"), mark: "VNIC_TEST_DEMO=" + tmp, under: under}
	d.start(args...)
	return d
}

func (d *demoRun) start(args ...string) {
	d.t.Helper()
	argv := append(slices.Clone(d.under), vnictest.Program(d.t), "demo", "--timeout", "10m", "--out", d.out)
	argv = append(argv, args...)
	d.cmd = exec.Command(argv[0], argv[1:]...)
	d.cmd.Env = append(os.Environ(), d.mark, "TMPDIR="+d.tmp)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.text.Reset()
	d.errs.Reset()
	d.cmd.Stderr = &d.errs
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	d.lines = bufio.NewScanner(out)
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	cmd := d.cmd
	d.t.Cleanup(func() { _ = cmd.Process.Kill() })
}

// read reads lines up to one with that text, or to the end.
func (d *demoRun) read(until string) (found bool) {
	for d.lines.Scan() {
		fmt.Fprintln(&d.text, d.lines.Text())
		if until != "" && strings.Contains(d.lines.Text(), until) {
			return true
		}
	}
	return false
}

// wait reads to the end and returns the exit code.
func (d *demoRun) wait() int {
	d.t.Helper()
	d.read("")
	err := d.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return d.cmd.ProcessState.ExitCode()
}

// nothingLeft checks that no process, no socket folder and no link is left.
func (d *demoRun) nothingLeft() {
	d.t.Helper()
	d.noProcess()
	for _, pattern := range []string{d.tmp + "/*vnic-demo-*", "/run/vnic/lab/vnic-demo*", "/run/netns/vnic-demo*", "/etc/netns/vnic-demo*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			d.t.Errorf("files are left: %v", left)
		}
	}
}

// noProcess waits until no process and no link of the demo is left. The children of a killed
// process end soon after it.
func (d *demoRun) noProcess() {
	d.t.Helper()
	vnictest.Eventually(d.t, "processes of the demo", func() error {
		if pids := vnictest.Marked(d.mark); len(pids) > 0 {
			return fmt.Errorf("%v still run", pids)
		}
		return nil
	})
	links, err := net.Interfaces()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, "vnic-") {
			d.t.Errorf("link %s in the host's own network", l.Name)
		}
	}
}

// tableRow is one line of the demo's table.
var tableRow = regexp.MustCompile(`(?m)^ *m([12]) +([A-Z_]+(?: [A-Z]+)?) +(\d+ (?:B|KiB|MiB)) +(\d+) .* (yes|NO)$`)

// succeeded checks a complete run: its exit code, and every row of the table.
func (d *demoRun) succeeded() {
	d.t.Helper()
	if code := d.wait(); code != 0 {
		d.t.Fatalf("exit status %d: %s\n%s", code, &d.errs, &d.text)
	}
	rows := map[string]bool{}
	for _, m := range tableRow.FindAllStringSubmatch(d.text.String(), -1) {
		if m[5] != "yes" || m[4] == "0" {
			d.t.Errorf("not verified: %s", m[0])
		}
		rows[m[1]+" "+m[2]+" "+m[3]] = true
	}
	want := 0
	for _, guest := range []string{"1", "2"} {
		for _, op := range []string{"SEND", "SEND_IMM", "WRITE", "WRITE_IMM", "READ", "CMP_SWAP", "FETCH_ADD", "MASKED_CMP_SWAP", "MASKED_FETCH_ADD", "UD SEND", "SRQ SEND", "XRC SEND", "WIRED SEND", "WINDOW WRITE", "LOOPBACK SEND"} {
			sizes := []string{"1 B", "64 B", "1000 B", "4 KiB", "4097 B", "64 KiB", "1 MiB"}
			if strings.HasSuffix(op, "CMP_SWAP") || strings.HasSuffix(op, "FETCH_ADD") {
				sizes = []string{"8 B"}
			}
			if op == "UD SEND" { // one packet
				sizes = sizes[:4]
			}
			for _, size := range sizes {
				want++
				if row := guest + " " + op + " " + size; !rows[row] {
					d.t.Errorf("no row for guest %s", row)
				}
			}
		}
	}
	if len(rows) != want {
		d.t.Errorf("%d rows, want %d", len(rows), want)
	}
	if d.t.Failed() {
		d.t.Logf("%s", &d.text)
	}
}

// plainIP checks the measurements of the guests' Ethernet interfaces.
func (d *demoRun) plainIP() {
	d.t.Helper()
	for _, guest := range []string{"1", "2"} {
		for _, row := range []string{`iperf3 TCP +\d+\.\d MB +[1-9]\d* Mbit/s +\d+ segments sent again`, `iperf3 UDP +\d+\.\d MB +[1-9]\d* Mbit/s +\d+\.\d % lost`} {
			if !regexp.MustCompile(`(?m)^ *m` + guest + ` +` + row + `$`).MatchString(d.text.String()) {
				d.t.Errorf("guest %s: no row like %s in\n%s", guest, row, &d.text)
			}
		}
	}
}

// sealedOnly checks that only sealed packets left the NIC.
func (d *demoRun) sealedOnly() {
	d.t.Helper()
	if !regexp.MustCompile(`uplink of host a: [1-9]\d{3,} PSP, \d+ ARP, \d+ ND frames, 0 others`).MatchString(d.text.String()) {
		d.t.Errorf("the uplink carried something else:\n%s", &d.text)
	}
	if st, err := os.Stat(filepath.Join(d.out, "uplink.pcapng")); err != nil || st.Size() < 1<<20 {
		d.t.Errorf("capture: %v", err)
	}
}

func TestDemoNeedsNoRights(t *testing.T) {
	d := startWithoutRights(t, "--no-vm")
	d.succeeded()
	d.nothingLeft()
}

// TestLongDemoGuestsNeedNoRights: QEMU guests too, with ports in their memory.
func TestLongDemoGuestsNeedNoRights(t *testing.T) {
	vnictest.RequireGuests(t)
	_, err := exec.LookPath("iperf3")
	vnictest.Require(t, err == nil, "iperf3 is not installed")
	d := startWithoutRights(t)
	d.succeeded()
	d.plainIP()
	d.nothingLeft()
}

func TestDemoOverTAPs(t *testing.T) {
	vnictest.RequireRoot(t)
	d := startDemo(t, "--no-vm", "--fabric", "tap")
	d.succeeded()
	d.sealedOnly()
	d.nothingLeft()
}

func TestDemoGuests(t *testing.T) {
	vnictest.RequireGuests(t)
	_, err := exec.LookPath("iperf3")
	vnictest.Require(t, err == nil, "iperf3 is not installed")
	d := startDemo(t)
	d.succeeded()
	d.plainIP()
	d.sealedOnly()
	d.nothingLeft()
}

// TestLongDemoDriver: the guests also run Debian's programs over the Linux driver.
func TestLongDemoDriver(t *testing.T) {
	vnictest.RequireDriver(t)
	d := startDemo(t, "--count", "5", "--driver", "../../../build/linux")
	d.succeeded()
	for _, row := range []string{`ib_write_bw .*  WRITE 64 KiB × 300: \d+\.\d MB/s`, `rping .*  SEND, READ and WRITE: 10 pings, data checked`} {
		if !regexp.MustCompile(`(?m)^ *m1  ` + row + `$`).MatchString(d.text.String()) {
			t.Errorf("no row like %s in\n%s", row, &d.text)
		}
	}
	d.nothingLeft()
}

// TestLongDemoPCI: the guests' functions are PCI devices.
func TestLongDemoPCI(t *testing.T) {
	vnictest.RequireGuests(t)
	d := startDemo(t, "--pci", "--count", "20", "--qemu", vnictest.NewQEMU(t, t.Context()))
	d.succeeded()
	for _, guest := range []string{"1", "2"} {
		if !regexp.MustCompile(`m` + guest + `.*Capabilities: \[[0-9a-f]+\] MSI-X: Enable`).MatchString(d.text.String()) {
			t.Errorf("guest %s did not show its function", guest)
		}
	}
	if t.Failed() {
		t.Logf("%s", &d.text)
	}
	d.nothingLeft()
}

// TestAStoppedDemoLeavesNothing: however the demo is ended in the middle of its work, nothing is left.
func TestAStoppedDemoLeavesNothing(t *testing.T) {
	bare := []string{"--no-vm", "--fabric", "tap", "--count", "3000"}
	for _, tc := range []struct {
		name string
		need func(testing.TB)
		sig  syscall.Signal
		at   string // the line after which
		args []string
	}{
		{"interrupt", vnictest.RequireRoot, syscall.SIGINT, "m1  SEND ", bare},
		{"terminate", vnictest.RequireRoot, syscall.SIGTERM, "m1  SEND ", bare},
		{"kill", vnictest.RequireRoot, syscall.SIGKILL, "m1  SEND ", bare},
		{"interrupt on loopback", func(testing.TB) {}, syscall.SIGINT, "m1  SEND ", []string{"--no-vm", "--count", "3000"}},
		{"interrupt while starting", vnictest.RequireRoot, syscall.SIGINT, "network: ", bare},
		{"interrupt with guests", vnictest.RequireGuests, syscall.SIGINT, "guests: 2 boot", nil},
		{"kill with guests", vnictest.RequireGuests, syscall.SIGKILL, "guests: 2 boot", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.need(t)
			d := startDemo(t, tc.args...)
			if !d.read(tc.at) {
				_ = d.cmd.Wait()
				t.Fatalf("it never came to %q:\n%s%s", tc.at, &d.text, &d.errs)
			}
			if err := d.cmd.Process.Signal(tc.sig); err != nil {
				t.Fatal(err)
			}
			code := d.wait()
			if tc.sig != syscall.SIGKILL {
				if code != 1 || !strings.Contains(d.errs.String(), "interrupted; everything was removed") {
					t.Errorf("exit status %d: %s", code, &d.errs)
				}
				d.nothingLeft()
				return
			}
			d.noProcess() // nobody was left to remove the folder of sockets: the next does
			d.start("--no-vm")
			d.succeeded()
			d.nothingLeft()
		})
	}
}

// TestTheDemoRefusesOptionsThatCannotWork: options that cannot work are refused with a reason.
func TestTheDemoRefusesOptionsThatCannotWork(t *testing.T) {
	precious := t.TempDir()
	if err := os.WriteFile(precious+"/thesis", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"demo", "--fabric", "ether"}, cli.ExitUsage, `vnic: --fabric "ether": choose tap or udp` + "\n"},
		{[]string{"demo", "--fabric", "udp", "--windows"}, cli.ExitUsage, "vnic: --windows, --pci and --driver are for the guests of a lab, which needs root: run with sudo, or leave them out\n"},
		{[]string{"demo", "--no-vm", "--out", precious}, cli.ExitFailed, "vnic: --out " + precious + ": has files that are not from a demo; name another folder\n"},
		{[]string{"demo", "now"}, cli.ExitUsage, `vnic: demo: unexpected argument "now"; write: vnic demo [flags]` + "\n"},
	} {
		if _, stderr, code := vnictest.Run(t, tc.args...); code != tc.code || stderr != tc.want {
			t.Errorf("%v: exit status %d, %q, want %q", tc.args, code, stderr, tc.want)
		}
	}
}

func TestKilledDemoLeavesNothing(t *testing.T) {
	vnictest.RequireGuests(t)
	vnictest.KilledLeavesNothing(t, "TestDemoGuests", "qemu-system-", 2)
}
