package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mode is the environment variable that makes the test binary a process that enters the
// sandbox.
const mode = "VNIC_SANDBOX_TEST"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(mode) {
	case "":
		os.Exit(m.Run())
	case "enter":
		err = tryOut()
	case "none":
		err = tryWithoutSeccomp()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// cgo reports whether err says that everyThread cannot work in this program.
func cgo(err error) bool { return err != nil && strings.Contains(err.Error(), "built with cgo") }

// tryOut checks what a process can do in the sandbox, and what it cannot.
func tryOut() error {
	var threads sync.WaitGroup
	enter, stop := make(chan struct{}), make(chan struct{})
	errs := make(chan error, 8)
	for range 4 { // threads that are there before
		threads.Go(func() {
			runtime.LockOSThread()
			<-enter
			errs <- attack()
			<-stop
		})
	}
	err := Enter(unix.CAP_NET_ADMIN)
	if err != nil && (!cgo(err) || strings.Contains(err.Error(), "restricted")) {
		return fmt.Errorf("enter: %w", err)
	}
	close(enter)
	for range 4 {
		if err := <-errs; err != nil {
			return err
		}
	}
	close(stop)
	threads.Wait()
	if err := live(); err != nil {
		return err
	}
	return statusOfAll(!cgo(err))
}

// attack tries what must fail.
func attack() error {
	for name, try := range map[string]func() error{
		"execve":  func() error { return syscall.Exec("/bin/true", []string{"true"}, nil) },
		"fork":    func() error { return exec.Command("/bin/true").Run() },
		"mount":   func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") },
		"ptrace":  func() error { return unix.PtraceAttach(os.Getppid()) },
		"unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"bpf": func() error {
			_, _, errno := unix.Syscall(unix.SYS_BPF, 0, 0, 0)
			return errno
		},
		"io_uring_setup": func() error {
			_, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
			return errno
		},
		"setuid": func() error {
			_, _, errno := unix.RawSyscall(unix.SYS_SETUID, 0, 0, 0)
			return errno
		},
	} {
		if err := try(); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s: %v, want EPERM", name, err)
		}
	}
	return nil
}

// live does what a NIC does.
func live() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	var many sync.WaitGroup
	for range 20 { // new threads
		many.Go(func() {
			runtime.LockOSThread()
			time.Sleep(time.Millisecond)
		})
	}
	many.Wait()
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// statusOfAll checks the kernel's status of every thread.
func statusOfAll(dropped bool) error {
	all, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(all) < 4 {
		return fmt.Errorf("%d threads, %w", len(all), err)
	}
	want := []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n"}
	if dropped && os.Getuid() == 0 {
		net := fmt.Sprintf("%016x\n", 1<<unix.CAP_NET_ADMIN)
		want = append(want, "CapInh:\t"+strings.Repeat("0", 16), "CapAmb:\t"+strings.Repeat("0", 16), "CapPrm:\t"+net, "CapEff:\t"+net, "CapBnd:\t"+net)
	}
	for _, path := range all {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		for _, w := range want {
			if !strings.Contains(string(b), w) {
				return fmt.Errorf("%s: no %q in\n%s", path, w, b)
			}
		}
	}
	return nil
}

// tryWithoutSeccomp enters the sandbox on a kernel without seccomp, which a filter simulates.
func tryWithoutSeccomp() error {
	was := denied
	denied = []uint32{unix.SYS_SECCOMP}
	if err := install(filter()); err != nil {
		return err
	}
	denied = was
	err := Enter()
	if err == nil || !strings.Contains(err.Error(), "system calls are not restricted") {
		return fmt.Errorf("entered with %v", err)
	}
	return live()
}

func TestTheSandboxDeniesWhatNoNICNeeds(t *testing.T) {
	for _, m := range []string{"enter", "none"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), mode+"="+m)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", m, err, out)
		}
	}
}
