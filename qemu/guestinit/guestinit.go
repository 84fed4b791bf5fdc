package guestinit

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// ModuleList names the modules to load, one path a line, dependencies first.
	// It also marks a root file system made by package image.
	ModuleList = "/lib/modules/order"
	// Environment is set in the child, so that it knows it is not PID 1's logic
	// that is asked for.
	Environment = "VNIC_GUEST=1"
	// outputDevice is the child's stdout.
	outputDevice = "/dev/ttyS1"
	// hostname of every guest; nothing depends on it.
	hostname = "vnic-guest"
)

// Active reports whether this process is PID 1 of a guest made by package image,
// and not PID 1 of a container.
func Active() bool {
	if os.Getpid() != 1 || os.Getenv("VNIC_GUEST") != "" {
		return false
	}
	_, err := os.Stat(ModuleList)
	return err == nil
}

// Run does everything and powers off; it does not return.
func Run(args []string) {
	err := prepare()
	if err == nil {
		err = runChild(args)
	}
	if err != nil {
		say("%v", err)
	}
	unix.Sync()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	say("power off: %v", err)
	select {} // PID 1 must not exit
}

// say writes a line to the console.
func say(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "vnic-init: "+format+"\n", a...)
}

func prepare() error {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.at, err)
		}
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return loadModules()
}

// loadModules loads what the list names. A module that fails is said on the
// console and the rest goes on: the child's own error tells what is missing.
func loadModules() error {
	b, err := os.ReadFile(ModuleList)
	if err != nil {
		return fmt.Errorf("list of modules: %w", err)
	}
	for _, path := range strings.Fields(string(b)) {
		if err := loadModule(path); err != nil {
			say("module %s: %v", path, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// runChild runs the program's normal command line and waits for its end.
func runChild(args []string) error {
	out, err := openOutput()
	if err != nil {
		return err
	}
	defer out.Close()
	program, argv := command(args)
	p, err := os.StartProcess(program, argv, &os.ProcAttr{
		Dir:   "/tmp",
		Env:   []string{Environment, "PATH=/:/bin", "HOME=/tmp", "TMPDIR=/tmp"},
		Files: []*os.File{nil, out, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start %q: %w", args, err)
	}
	status, err := reapUntil(p.Pid)
	if err != nil {
		return err
	}
	_ = unix.IoctlSetInt(int(out.Fd()), unix.TCSBRK, 1) // tcdrain
	switch {
	case status.Exited() && status.ExitStatus() == 0:
		return nil
	case status.Exited():
		return fmt.Errorf("%s: exit status %d", strings.Join(args, " "), status.ExitStatus())
	}
	return fmt.Errorf("%s: killed by %v", strings.Join(args, " "), status.Signal())
}

// command is what args ask for: another program of the image if the first is its
// path, else this one.
func command(args []string) (program string, argv []string) {
	if len(args) > 0 && strings.HasPrefix(args[0], "/") {
		return args[0], args
	}
	return "/init", append([]string{"vnic"}, args...)
}

// reapUntil waits for a process and for every orphan that PID 1 inherits
// meanwhile.
func reapUntil(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return status, fmt.Errorf("wait for process %d: %w", pid, err)
		case got == pid && (status.Exited() || status.Signaled()):
			return status, nil
		}
	}
}

// openOutput opens the serial line to the host as a raw byte stream.
func openOutput() (*os.File, error) {
	f, err := os.OpenFile(outputDevice, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
		t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("output %s: %w", outputDevice, err), f.Close())
	}
	return f, nil
}
