package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
)

// The demo's lab is in namespaces of the demo's own for processes and mounts: other labs on this machine
// do not see it, and when the first process there ends, however it ends, the kernel ends all others and
// removes their networks.

// apartVariable is set in the environment of that process.
const apartVariable = "VNIC_DEMO_APART"

func isApart() bool { return os.Getpid() == 1 && os.Getenv(apartVariable) != "" }

// runApart runs this command again as the first process of such namespaces.
func runApart(ctx context.Context) error {
	runtime.LockOSThread() // the child dies with the thread that started it
	cmd := exec.CommandContext(ctx, labkit.Self(), os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), apartVariable+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
		Setpgid: true, // a terminal's Ctrl-C is for this process, which tells the child
	}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return cli.CommandFailed(exit.ExitCode())
	}
	return err
}

// mountOwn mounts what the lab must not share with the machine: /proc, and /run and /etc, which hold the
// names of network namespaces.
func mountOwn() error {
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""},
		{"tmpfs", "/run", ""},
		{"overlay", "/etc", "lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc.work"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.at, err)
		}
		if m.at == "/run" {
			if err := errors.Join(os.Mkdir("/run/etc", 0o755), os.Mkdir("/run/etc.work", 0o755)); err != nil {
				return err
			}
		}
	}
	return nil
}
