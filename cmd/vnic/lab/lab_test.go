package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// A test with labs runs in namespaces of its own for networks, processes and mounts, with an empty
// /run: so that labs of this machine do not matter, and nothing is left if the test is killed.

// programVariable is the environment variable by which a test in there finds the program.
const programVariable = "VNIC_LAB_TEST_PROGRAM"

// apart runs a test of this package, named TestInside…, in such namespaces.
func apart(t *testing.T, name string) {
	t.Helper()
	vnictest.RequireRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*vnictest.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^"+name+"$", "-test.v")
	cmd.Env = append(os.Environ(), programVariable+"="+vnictest.Program(t))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

// inside prepares these namespaces, and skips a test that is not in them.
func inside(t *testing.T) {
	t.Helper()
	if os.Getenv(programVariable) == "" || os.Getpid() != 1 {
		t.Skip("part of another test, which runs it in its own namespaces")
	}
	for _, m := range [][2]string{{"proc", "/proc"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil {
			t.Fatalf("mount %s on %s: %v", m[0], m[1], err)
		}
	}
	// An /etc of its own, as a mount on /etc/netns alone goes when somebody else on this machine removes
	// that folder.
	if out, err := exec.Command("cp", "-a", "/etc", "/run/etc").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.RemoveAll("/run/etc/netns"); err != nil { // of this machine's labs
		t.Fatal(err)
	}
	if err := unix.Mount("/run/etc", "/etc", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob("/run/vnic/lab/*/*.log")
			for _, l := range logs {
				b, _ := os.ReadFile(l)
				t.Logf("%s:\n%s", l, b)
			}
		}
	})
}

// vnic runs the program, which must succeed, and returns what it printed.
func vnic(t *testing.T, args ...string) string {
	t.Helper()
	out, err := try(args...)
	if err != nil {
		t.Fatalf("vnic %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused runs the program, which must fail, and returns what it printed.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	out, err := try(args...)
	if err == nil {
		t.Fatalf("vnic %s succeeds:\n%s", strings.Join(args, " "), out)
	}
	return out
}

func try(args ...string) (string, error) {
	cmd := exec.Command(os.Getenv(programVariable), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// file writes a lab's file.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// nothingLeft fails the test if anything of a lab is there: namespaces, links, processes, files.
func nothingLeft(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/*", "/etc/netns/*", "/run/vnic*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
	}
	links, err := exec.Command("ip", "-o", "link").Output()
	if n := bytes.Count(links, []byte("\n")); err != nil || n != 1 {
		t.Errorf("links are left: %s, %v", links, err)
	}
	for pid, line := range running() {
		t.Errorf("process %d is left: %s", pid, line)
	}
}

// running returns the command lines of all other processes that have one: those that have ended and
// were not waited for have none.
func running() map[int]string {
	found := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		if pid, _ := strconv.Atoi(filepath.Base(d)); pid != os.Getpid() && len(line) > 0 {
			found[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		}
	}
	return found
}

// pidsOf returns the processes whose command lines contain all of some texts.
func pidsOf(texts ...string) (pids []int) {
	for pid, line := range running() {
		if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(line, s) }) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// none returns an error if there are processes.
func none(pids []int) error {
	if len(pids) > 0 {
		return fmt.Errorf("processes %v", pids)
	}
	return nil
}

const pair = `
name: pair
hosts: {a: {}, b: {}}
machines: {m1: {host: a}, m2: {host: b, exec: ["echo began >> /run/began"]}}
validate:
  - {name: plain, run: [m1, ping, -c1, -W2, m2], wait: 10s}
`

// TestALabGoesUpAndDown: machines reach each other, what the lab made can be looked at, and down
// leaves nothing.
func TestALabGoesUpAndDown(t *testing.T) { apart(t, "TestInsideALabGoesUpAndDown") }

func TestInsideALabGoesUpAndDown(t *testing.T) {
	inside(t)
	path := file(t, pair)
	vnictest.RequireIn(t, vnic(t, "lab", "up", path), "lab pair", "a up", "1 of 1", "m1", "ip netns exec pair.m1")
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS", "plain")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "m1", "ping", "-c1", "m2"), "192.168.100.2", "1 received")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "m2", "vnic", "guest", "info"), "h2.pf0.vf1")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "b", "vnic", "show", "nic"), "host 2", "peer a", "up")
	vnictest.RequireIn(t, vnic(t, "lab", "config", "b"), "nic: {host: 2, name: b}", "netns: pair.m2")

	cmd := exec.Command(os.Getenv(programVariable), "lab", "exec", "m1", "sh", "-c", "exit 7")
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("the command's exit status is not that of vnic lab exec: %v", err)
	}
	var status []struct {
		Lab      string
		Machines []struct{ Name, Address, State string }
	}
	if err := json.Unmarshal([]byte(vnic(t, "lab", "status", "--json")), &status); err != nil || len(status) != 1 || len(status[0].Machines) != 2 || status[0].Machines[1].Address != "192.168.100.2/24" {
		t.Errorf("%v: %+v", err, status)
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
	vnictest.RequireIn(t, vnic(t, "lab", "status"), "there is no lab")
	refused(t, "lab", "down")
	if said := refused(t, "lab", "down", "pair"); !strings.Contains(said, `there is no lab "pair", nor any other; vnic lab up makes one`) {
		t.Error(said)
	}
}

// TestUpAgainChangesWhatChanged: a NIC whose host did not change goes on, and numbers and addresses
// stay.
func TestUpAgainChangesWhatChanged(t *testing.T) { apart(t, "TestInsideUpAgainChangesWhatChanged") }

func TestInsideUpAgainChangesWhatChanged(t *testing.T) {
	inside(t)
	vnic(t, "lab", "up", file(t, pair))
	before := pidsOf("run", "pair/a.yaml")
	vnic(t, "lab", "up", file(t, pair))
	if now := pidsOf("run", "pair/a.yaml"); !slices.Equal(now, before) {
		t.Errorf("NIC a is of processes %v, before %v: nothing had changed", now, before)
	}
	if b, _ := os.ReadFile("/run/began"); string(b) != "began\n" {
		t.Errorf("commands of a machine that stayed: %q", b)
	}
	// A host in front that has machines of another tenant, and is no peer of the others.
	vnic(t, "lab", "up", file(t, `
name: pair
hosts: {new: {}, a: {}, b: {}}
tenants: {other: {subnet: 10.1.0.0/24}, lab: {subnet: 192.168.100.0/24}}
machines: {n1: {host: new, tenant: other}, m1: {host: a, tenant: lab}, m2: {host: b, tenant: lab}}
validate:
  - {run: [m1, ping, -c1, -W2, 192.168.100.2], wait: 10s}
  - {run: [n1, ping, -c1, -W2, 10.1.0.1], wait: 10s}
`))
	if now := pidsOf("run", "pair/a.yaml"); !slices.Equal(now, before) {
		t.Errorf("NIC a is of processes %v, before %v: a host that is no peer was added", now, before)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS", "PASS")
	// Two hosts more, which are peers: a learns of them while it runs. Then a machine of one goes to the
	// other, and they go.
	for _, where := range []string{"c", "d"} {
		vnic(t, "lab", "up", file(t, `
name: pair
hosts: {a: {}, b: {}, c: {}, d: {}}
machines: {m1: {host: a}, m2: {host: b}, m3: {host: c}, m4: {host: d}, m5: {host: `+where+`, address: 192.168.100.99}}
validate:
  - {run: [m1, sh, -c, "for i in 2 3 4 5; do ping -c1 -W2 m$i || exit; done"], wait: 10s}
`))
		vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
		if now := pidsOf("run", "pair/a.yaml"); !slices.Equal(now, before) {
			t.Errorf("NIC a is of processes %v, before %v: only its peers have changed", now, before)
		}
	}
	vnic(t, "lab", "up", file(t, pair))
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	if now := pidsOf("run", "pair/a.yaml"); !slices.Equal(now, before) {
		t.Errorf("NIC a is of processes %v, before %v: only its peers have changed", now, before)
	}
	// Somebody took a peer away while the NIC ran.
	vnic(t, "lab", "exec", "a", "vnic", "peer", "remove", "b")
	vnic(t, "lab", "up", file(t, pair))
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	if now := pidsOf("run", "pair/a.yaml"); !slices.Equal(now, before) {
		t.Errorf("NIC a is of processes %v, before %v: only its peers have changed", now, before)
	}
	// Somebody removed a machine's namespace.
	if out, err := exec.Command("ip", "netns", "del", "pair.m2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	vnic(t, "lab", "up", file(t, pair))
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	// The machine m1 goes to the other host.
	vnic(t, "lab", "up", file(t, strings.Replace(pair, "m1: {host: a}", "m1: {host: b}", 1)))
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	if left := pidsOf("pair/new.yaml"); len(left) > 0 {
		t.Errorf("the NIC of a host that the file has not any more runs: %v", left)
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
}

// TestHostsMayHaveEqualNumbers: as in labs of more than 255 hosts. Here the numbers were given out before.
func TestHostsMayHaveEqualNumbers(t *testing.T) { apart(t, "TestInsideHostsMayHaveEqualNumbers") }

func TestInsideHostsMayHaveEqualNumbers(t *testing.T) {
	inside(t)
	if err := os.MkdirAll("/run/vnic/lab/pair", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/run/vnic/lab/pair/state.json", []byte(`{"numbers": {"hosts": {"a": 1, "b": 256}}, "made": {}, "begun": {}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "up", file(t, pair)), "a up 1 10.99.0.1", "b up 1 10.99.1.0", "1 of 1")
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "m2", "vnic", "guest", "info"), "h1.pf0.vf1")
	vnic(t, "lab", "down")
	nothingLeft(t)
}

// TestDownFindsWhatIsLeft: also what a killed command, supervisor or worker left behind.
func TestDownFindsWhatIsLeft(t *testing.T) { apart(t, "TestInsideDownFindsWhatIsLeft") }

func TestInsideDownFindsWhatIsLeft(t *testing.T) {
	inside(t)
	path := file(t, pair)
	kill := func(pids []int) {
		t.Helper()
		if len(pids) == 0 {
			t.Fatalf("nothing to kill among %v", running())
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for name, harm := range map[string]func(){
		"a supervisor": func() { kill(pidsOf("run -c", "a.yaml")[:1]) },
		"the workers":  func() { kill(pidsOf("--worker")) },
		"the state":    func() { _ = os.Remove("/run/vnic/lab/pair/state.json") },
		"the file":     func() { _ = os.Remove("/run/vnic/lab/pair/lab.yaml") },
		"the folder":   func() { _ = os.RemoveAll("/run/vnic") },
	} {
		vnic(t, "lab", "up", path)
		harm()
		vnic(t, "lab", "down", "pair")
		if nothingLeft(t); t.Failed() {
			t.Fatal(name)
		}
	}
	// The command itself, after a time that grows until it is done before.
	for after := 20 * time.Millisecond; ; after += 300 * time.Millisecond {
		cmd := exec.Command(os.Getenv(programVariable), "lab", "up", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		_ = cmd.Process.Kill()
		err := cmd.Wait()
		if len(spaces()) > 0 {
			vnic(t, "lab", "down", "pair")
		}
		if nothingLeft(t); t.Failed() {
			t.Fatalf("vnic lab up, killed after %v", after)
		}
		if err == nil {
			break
		}
	}
	// What was begun and killed can be gone on with, also when its NICs run already.
	for _, after := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, time.Second} {
		cmd := exec.Command(os.Getenv(programVariable), "lab", "up", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		vnic(t, "lab", "up", path)
		vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
		vnic(t, "lab", "down", path)
		nothingLeft(t)
	}
}

func spaces() []string {
	names, _ := filepath.Glob("/run/netns/*")
	return append(names, must(filepath.Glob("/run/vnic/lab/*"))...)
}

func must(names []string, _ error) []string { return names }

// TestUplinksMayDiffer: NICs on a TAP and by the host's UDP reach each other, and the link does the same
// to what either sends.
func TestUplinksMayDiffer(t *testing.T) { apart(t, "TestInsideUplinksMayDiffer") }

func TestInsideUplinksMayDiffer(t *testing.T) {
	inside(t)
	path := file(t, `
name: uplinks
hosts: {a: {uplink: udp}, b: {}, c: {uplink: udp}}
machines: {m1: {host: a}, m2: {host: b}, m3: {host: c}}
validate:
  - {run: [m1, ping, -c1, -W2, m2], wait: 10s}
  - {run: [m1, ping, -c1, -W2, m3], wait: 10s}
`)
	vnic(t, "lab", "up", path)
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS", "PASS")
	vnictest.RequireIn(t, vnic(t, "lab", "config", "a"), "type: udp", "listen: 10.99.0.1:1000")
	vnictest.RequireIn(t, vnic(t, "lab", "link", "all", "--end", "a", "--down"), "all", "a", "cut", "b", "up")
	refused(t, "lab", "exec", "m1", "ping", "-c1", "-W1", "m3")
	vnic(t, "lab", "link", "all", "--clear", "--delay", "30ms")
	if said := vnic(t, "lab", "exec", "m1", "ping", "-c1", "-W60", "m3"); !regexp.MustCompile(`time=([6-9]\d|\d{3,})`).MatchString(said) { // there and back
		t.Error(said)
	}
	// The file's words hold again after up, for NICs that went on.
	before := pidsOf("run", "uplinks/a.yaml")
	vnic(t, "lab", "up", path)
	if said := vnic(t, "lab", "link"); strings.Count(said, "nothing") != 3 {
		t.Error(said)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "a", "vnic", "show", "uplinks"), "none")
	if now := pidsOf("run", "uplinks/a.yaml"); !slices.Equal(now, before) {
		t.Errorf("NIC a is of processes %v, before %v", now, before)
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
}

// TestSeveralLabsDoNotMeet: two labs with equal hosts, machines and addresses.
func TestSeveralLabsDoNotMeet(t *testing.T) { apart(t, "TestInsideSeveralLabsDoNotMeet") }

func TestInsideSeveralLabsDoNotMeet(t *testing.T) {
	inside(t)
	vnic(t, "lab", "up", file(t, pair))
	vnic(t, "lab", "up", file(t, strings.Replace(pair, "name: pair", "name: pair-2", 1)))
	if said := refused(t, "lab", "exec", "m1", "true"); !strings.Contains(said, "name one with --lab: pair, pair-2") {
		t.Error(said)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "validate", "--lab", "pair"), "PASS")
	vnic(t, "lab", "down", "--lab", "pair")
	vnictest.RequireIn(t, vnic(t, "lab", "validate", "--lab", "pair-2"), "PASS")
	vnic(t, "lab", "down", "--all")
	nothingLeft(t)
}

// TestAChecksResultIsTheExitStatus: a check passes or fails as the file says, in rows, in JUnit's
// format and in the exit status; and the lab is gone afterwards.
func TestAChecksResultIsTheExitStatus(t *testing.T) {
	apart(t, "TestInsideAChecksResultIsTheExitStatus")
}

func TestInsideAChecksResultIsTheExitStatus(t *testing.T) {
	inside(t)
	report := filepath.Join(t.TempDir(), "junit.xml")
	said := refused(t, "lab", "test", "--junit", report, file(t, `
name: checks
hosts: {a: {}}
machines: {m: {host: a}}
validate:
  - {name: works, run: [m, echo, "seven 7"], output: "[0-9]$"}
  - {name: must fail, run: [m, "false"], fails: true}
  - {name: fails, run: [m, sh, -c, "echo '<why> &'; exit 3"]}
  - {name: says the wrong thing, run: [m, echo, six], output: seven}
  - {name: succeeds, run: [m, "true"], fails: true}
  - {name: hangs, run: [m, sh, -c, "sleep 1000 & sleep 1000"], timeout: 1s}
  - {name: is not there, run: [m, no-such-command], wait: 1h}
  - {name: nor for a shell, run: [m, sh, -c, no-such-command], wait: 1h}
  - {name: comes later, run: [m, sh, -c, "test -e /run/later || { touch /run/later; false; }"], wait: 10s}
  - {name: has bad company, run: [m, sh, -c, "until test -e /run/gone; do sleep 0.05; done; sleep 1"], with: [a, sh, -c, "touch /run/gone; exit 9"]}
  - {name: has company, run: [m, sh, -c, "until test -e /run/company; do sleep 0.05; done"], with: [a, sh, -c, "touch /run/company; sleep 1000"]}
`))
	vnictest.RequireIn(t, said, "PASS", "works", "PASS", "must fail", "FAIL", "fails", "exit status 3", "<why>", "FAIL", "says the wrong thing", `does not match "seven"`,
		"FAIL", "succeeds", "should fail", "FAIL", "hangs", "not done after 1s", "FAIL", "is not there", `program "no-such-command"`, "runs the lab: install it", "FAIL", "nor for a shell", "exit status 127", "PASS", "comes later", "FAIL", "has bad company", "what runs with it: exit status 9", "PASS", "has company", "7 of 11 checks failed")
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Cases    []struct {
			Name    string `xml:"name,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
			} `xml:"failure"`
			Output string `xml:"system-out"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(b, &suite); err != nil || suite.Tests != 11 || suite.Failures != 7 || suite.Cases[0].Failure != nil || suite.Cases[2].Failure.Message != "exit status 3" || suite.Cases[2].Output != "<why> &\n" {
		t.Errorf("%v\n%s", err, b)
	}
	nothingLeft(t)
}

// TestABadFileMakesNothing: what is wrong with the file, or with what it makes of a NIC's
// configuration, is said before anything is made.
func TestABadFileMakesNothing(t *testing.T) { apart(t, "TestInsideABadFileMakesNothing") }

func TestInsideABadFileMakesNothing(t *testing.T) {
	inside(t)
	for text, want := range map[string]string{
		"name: x\nhosts: {a: {}, b":                                  "not YAML",
		"name: x\nhosts: {a: {}}\nmachines: {m: {host: q}}":          `line 3: machines.m.host: there is no host "q"; write one of a`,
		"name: x\nhosts: {a: {config: {nic: {shards: 99}}}}":         "hosts.a.config.nic.shards: 99 is out of range; use 1 to 16, or leave it out",
		"name: x\nhosts: {a: {}}\ndefaults: {config: {falcn: {}}}":   `hosts.a.config.falcn: unknown key; did you mean "falcon"?`,
		"name: x\nhosts: {a: {}}\nlinks: [{endpoints: [a], mtu: 9}]": "links[0].mtu: 9 is out of range",

		"name: x\nhosts: {a: {}}\nmachines: {m: {host: a, guest: {share: nowhere, qemu: no-qemu}}}":    "machines.m.guest.qemu: there is no program \"no-qemu\"; install it (Debian: qemu-system-x86), or name another\nmachines.m.guest.share: there is no folder /",
		"name: x\nhosts: {a: {}}\nmachines: {m: {host: a, guest: {image: /nowhere, qemu: /bin/true}}}": "machines.m.guest.image: /nowhere is not a guest; make one with vnic image --out, or leave it out",
	} {
		if said := refused(t, "lab", "up", file(t, text)); !strings.Contains(said, want) {
			t.Errorf("%s\n got %s\nwant %s", text, said, want)
		}
		nothingLeft(t)
	}
	if err := exec.Command("ip", "netns", "add", "pair.a").Run(); err != nil {
		t.Fatal(err)
	}
	if said := refused(t, "lab", "up", file(t, pair)); !strings.Contains(said, "network namespaces named pair") {
		t.Error(said)
	}
	if err := exec.Command("ip", "netns", "del", "pair.a").Run(); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t)
}

// TestShippedLabsPass: vnic lab test of each lab that comes with the program.
func TestShippedLabsPass(t *testing.T) { apart(t, "TestInsideShippedLabsPass") }

func TestInsideShippedLabsPass(t *testing.T) {
	shipped(t, "two-hosts", "two-tenants", "sixteen")
}

// TestLongShippedLabsPass has those that take longer.
func TestLongShippedLabsPass(t *testing.T) { apart(t, "TestInsideSlowShippedLabsPass") }

func TestInsideSlowShippedLabsPass(t *testing.T) { shipped(t, "impaired", "key-rotation") }

// TestLongRoCEBesideFalcon: one machine reaches a function over Falcon, another one Linux's Soft-RoCE in a
// guest over RoCEv2.
func TestLongRoCEBesideFalcon(t *testing.T) {
	vnictest.RequireGuests(t)
	apart(t, "TestInsideRoCEBesideFalcon")
}

func TestInsideRoCEBesideFalcon(t *testing.T) { shipped(t, "roce") }

// TestLongADiskOverRDMA: guests with the Linux driver use a disk of each other's kernel.
func TestLongADiskOverRDMA(t *testing.T) {
	vnictest.RequireDriver(t)
	apart(t, "TestInsideADiskOverRDMA")
}

func TestInsideADiskOverRDMA(t *testing.T) {
	t.Chdir("../../..") // its driver is in build/linux
	shipped(t, "nvme")
}

func shipped(t *testing.T, names ...string) {
	t.Helper()
	inside(t)
	for _, name := range names {
		said := vnic(t, "lab", "test", name)
		if strings.Contains(said, "FAIL") || !strings.Contains(said, "PASS") {
			t.Errorf("%s:\n%s", name, said)
		}
		nothingLeft(t)
	}
}
