package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// fakeQEMU makes the test binary behave like a QEMU that got its descriptors:
// the variable's value says how.
const fakeQEMU = "VNIC_FAKE_QEMU"

func TestMain(m *testing.M) {
	if os.Getenv(fuseProgram) != "" {
		runFUSEProgram()
	}
	if guestinit.Active() { // TestKernelVsockInGuest
		guestinit.Run(os.Args[1:])
	}
	if mode := os.Getenv(fakeQEMU); mode != "" {
		os.Exit(playQEMU(mode))
	}
	leak.Main(m)
}

func playQEMU(mode string) int {
	monitor, output := os.NewFile(3, "monitor"), os.NewFile(4, "output")
	switch mode {
	case "refuse":
		fmt.Fprintln(os.Stderr, "qemu: -device foo: no such device")
		return 1
	case "heir": // says what the first TAP is like
		if os.Args[1] == "--version" {
			return 1
		}
		b, _ := os.ReadFile("/proc/self/fd/5")
		at := slices.IndexFunc(os.Args, func(s string) bool { return strings.HasPrefix(s, "tap,") })
		fmt.Fprintf(os.Stderr, "%s %s: %s\n", os.Args[at-1], os.Args[at], b)
		return 1
	case "obedient":
		fmt.Fprintln(os.Stderr, "qemu: warning: it is said, and no error")
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
	case "family": // has a child, as QEMU's -netdev may
		signal.Ignore(syscall.SIGTERM)
		child := exec.Command("sleep", "1000")
		if child.Start() != nil {
			return 5
		}
		fmt.Fprintln(output, child.Process.Pid)
	case "parent": // starts one itself and waits to be killed
		return playParent()
	}
	fmt.Fprintln(monitor, `{"QMP": {"version": {}, "capabilities": []}}`)
	fmt.Fprintln(output, `{"line":1}`)
	sc := bufio.NewScanner(monitor)
	for sc.Scan() {
		var c struct {
			Execute string `json:"execute"`
			ID      uint64 `json:"id"`
		}
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			return 2
		}
		switch {
		case c.Execute == "quit" && mode == "obedient":
			fmt.Fprintf(monitor, `{"return": {}, "id": %d}`+"\n", c.ID)
			return 0
		case c.Execute == "quit":
		case c.Execute == "fail":
			fmt.Fprintf(monitor, `{"error": {"class": "GenericError", "desc": "no"}, "id": %d}`+"\n", c.ID)
		case c.Execute == "flood":
			for i := range 10 * maxEvents {
				fmt.Fprintf(monitor, `{"event": "E%d", "data": {}, "timestamp": {"seconds": 1}}`+"\n", i)
			}
			fallthrough
		default:
			fmt.Fprintf(monitor, `{"return": {"name": %q}, "id": %d}`+"\n", c.Execute, c.ID)
		}
	}
	select {}
}

func playParent() int {
	os.Setenv(fakeQEMU, "deaf")
	exe, err := os.Executable()
	if err != nil {
		return 3
	}
	p, err := Start(context.Background(), Machine{Binary: exe, Kernel: "k", Console: FileChardev("c")})
	if err != nil {
		return 4
	}
	fmt.Println(p.PID())
	select {}
}

// TestQEMUDiesWithItsParent kills a process that runs a QEMU.
func TestQEMUDiesWithItsParent(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(exe)
	parent.Env = append(os.Environ(), fakeQEMU+"=parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	isGone(t, pid)
}

// isGone waits until a process is dead, which nobody may reap here: then it is a zombie.
func isGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d lives: %s", pid, stat)
		}
	}
}

// TestQEMUIsKilledWithItsChildren: killing a QEMU also kills the processes that it has started.
func TestQEMUIsKilledWithItsChildren(t *testing.T) {
	p, err := startFake(t, "family")
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(p.Output(), &pid); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	isGone(t, pid)
}

// TestStartCanBeGivenUp: a QEMU that does not greet before the context ends is killed, and the
// error is that of the context.
func TestStartCanBeGivenUp(t *testing.T) {
	t.Setenv(fakeQEMU, "deaf")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Machine{Binary: exe, Kernel: "k", Console: FileChardev("c")}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func startFake(t *testing.T, mode string) (*Process, error) {
	t.Helper()
	t.Setenv(fakeQEMU, mode)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return Start(ctx, Machine{Binary: exe, Name: "fake", Kernel: "k", Console: FileChardev("c")})
}

func TestProcessRunsAndEnds(t *testing.T) {
	p, err := startFake(t, "obedient")
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(p.Output()).ReadString('\n')
	if err != nil || line != "{\"line\":1}\n" {
		t.Errorf("%q, %v", line, err)
	}
	var r struct{ Name string }
	if err := p.QMP().Execute(t.Context(), "query-name", nil, &r); err != nil || r.Name != "query-name" {
		t.Errorf("%+v, %v", r, err)
	}
	var refused *QMPError
	if err := p.QMP().Execute(t.Context(), "fail", nil, nil); !errors.As(err, &refused) || refused.Desc != "no" {
		t.Errorf("%v", err)
	}
	if err := p.QMP().Execute(t.Context(), "flood", nil, nil); err != nil { // nobody reads events
		t.Error(err)
	}
	if e := <-p.QMP().Events(); e.Name != "E0" {
		t.Errorf("%+v", e)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.QMP().Execute(t.Context(), "query-name", nil, nil); err == nil {
		t.Error("a command after the end")
	}
	if err := p.Stop(); err != nil { // again
		t.Error(err)
	}
}

func TestStopEndsAQEMUThatDoesNotListen(t *testing.T) {
	p, err := startFake(t, "deaf")
	if err != nil {
		t.Fatal(err)
	}
	pid := p.PID()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
}

func TestKillEndsOutput(t *testing.T) {
	p, err := startFake(t, "obedient")
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, p.Output())
		read <- err
	}()
	if err := unix.Kill(p.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	if err := <-read; err != nil {
		t.Errorf("output ended with %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
}

func TestRefusedStartHasQEMUsMessage(t *testing.T) {
	if _, err := startFake(t, "refuse"); err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("%v", err)
	}
	if _, err := Start(t.Context(), Machine{Binary: "/nonexistent/qemu", Kernel: "k", Console: FileChardev("c")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var s tail
	for i := range 1000 {
		fmt.Fprintf(&s, "line %d\n", i)
	}
	if got := s.String(); len(got) > tailSize || !strings.HasSuffix(got, "line 999") {
		t.Errorf("%d bytes, ends with %q", len(got), got[len(got)-20:])
	}
}

// TestQEMUInheritsTheTAP: QEMU has a TAP where its arguments say.
func TestQEMUInheritsTheTAP(t *testing.T) {
	fd := memfd(t, 0, unix.F_SEAL_SHRINK)
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tap := os.NewFile(uintptr(own), "tap")
	defer tap.Close()
	if _, err := tap.WriteAt([]byte("here it is"), 0); err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakeQEMU, "heir")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := Machine{Binary: exe, Kernel: "k", Console: FileChardev("c"), NICs: []NIC{{Port: &Port{}}, {TAP: tap, MAC: "02::1"}}}
	if _, err := Start(t.Context(), m); err == nil || !strings.Contains(err.Error(), "-netdev tap,id=net0,fd=5: here it is") {
		t.Errorf("%v", err)
	}
}
