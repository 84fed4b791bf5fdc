package guestinit

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// ModuleList is the file with the modules to load: one path on each line, dependencies first.
	// Only a root file system made by package image has it.
	ModuleList = "/lib/modules/order"
	// Environment is set in the child, which therefore does not run as PID 1.
	Environment = "VNIC_GUEST=1"
	// startScript runs before the shell or the command, in images that have it.
	startScript = "/etc/vnic/start"
	// ShareTag is the tag of the host's folder that a guest mounts on shareFolder, if it has one.
	ShareTag    = "share"
	shareFolder = "/share"
	// Started is the line with which a guest that has a start script says that it has booted.
	Started = "vnic-init: started"
	// hostname is the name of every guest; nothing depends on it.
	hostname = "vnic-guest"
)

// Devices and programs of a guest. Tests replace them.
var (
	// outputDevice is the child's standard output. If the machine has no second serial line, the
	// child writes to the console.
	outputDevice = "/dev/ttyS1"
	// consoleDevice is the terminal of a shell.
	consoleDevice = map[string]string{"amd64": "/dev/ttyS0", "arm64": "/dev/ttyAMA0"}[runtime.GOARCH]
	// shell runs on the console if no command is given.
	shell = "/bin/bash"
	// windowDriver is where sysfs has the kernel's driver of functions.
	windowDriver = "/sys/bus/pci/drivers/vnic"
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

// Run prepares the guest, runs the child and powers off. It does not return.
func Run(args []string) {
	// The kernel passes words that it does not know on to init. nokaslr is for the code that
	// unpacks the kernel.
	args = slices.DeleteFunc(args, func(word string) bool { return word == "nokaslr" })
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

// mount is unix.Mount, or a test's.
type mount func(source, target, kind string, flags uintptr, data string) error

// mountPoint is a file system of the kernel and the folder to mount it on.
type mountPoint struct{ kind, at string }

// mountAll mounts file systems on folders on which nothing is mounted yet.
func mountAll(do mount, list []mountPoint) error {
	for _, m := range list {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := do(m.kind, m.at, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.at, err)
		}
	}
	return nil
}

// mountShare mounts the host's folder, if the guest has one.
func mountShare(do mount) error {
	err := do(ShareTag, shareFolder, "9p", 0, "trans=virtio,version=9p2000.L,msize=262144")
	if errors.Is(err, unix.ENOENT) { // the guest has none
		return nil
	}
	return err
}

func prepare() error {
	err := mountAll(unix.Mount, []mountPoint{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}})
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := loadModules(ModuleList); err != nil {
		return err
	}
	if err := OfferWindows(); err != nil && !errors.Is(err, os.ErrNotExist) {
		say("%v", err)
	}
	return prepareSystem(unix.Mount, startScript)
}

// prepareSystem prepares images with a start script, which have a whole system: it mounts more file
// systems and the shared folder, and runs the script.
func prepareSystem(do mount, start string) error {
	if _, err := os.Stat(start); err != nil {
		return nil
	}
	err := mountAll(do, []mountPoint{{"devpts", "/dev/pts"}, {"tmpfs", "/dev/shm"}, {"tmpfs", "/run"}})
	if err != nil {
		return err
	}
	if err := mountShare(do); err != nil {
		say("shared folder: %v", err)
	}
	fmt.Fprintln(os.Stderr, Started)
	argv := []string{start}
	script, err := os.StartProcess(start, argv, &os.ProcAttr{
		Dir: "/", Env: environment(), Files: []*os.File{nil, os.Stderr, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", start, err)
	}
	if err := end(script, os.Stderr, argv); err != nil {
		say("%v", err)
	}
	return nil
}

func environment() []string {
	return []string{Environment, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/", "HOME=/root", "TMPDIR=/tmp"}
}

// loadModules loads the listed modules. It reports a module that fails on the console and goes on:
// the child's own error says what is missing.
func loadModules(list string) error {
	b, err := os.ReadFile(list)
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

// OfferWindows tells the kernel's driver of functions of the id of QEMU's ivshmem-doorbell device,
// which the driver does not have itself, because others use such devices, too. The driver takes
// those whose memory begins as a function's window does. The error is os.ErrNotExist where the
// driver is not loaded.
func OfferWindows() error {
	err := os.WriteFile(windowDriver+"/new_id", []byte("1af4 1110"), 0)
	if errors.Is(err, unix.EEXIST) { // it knows
		return nil
	}
	return err
}

// runChild runs the program's normal command line, or a shell when there is none, and waits for its
// end.
func runChild(args []string) error {
	if len(args) == 0 {
		if _, err := os.Stat(shell); err != nil {
			return errors.New("no command, and this image has no shell: write the command after -- on the kernel's command line, as: console=ttyS0 -- guest info")
		}
		return runShell()
	}
	out, err := openOutput()
	switch {
	case errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTTY): // there is one serial line
		out = os.Stderr
	case err != nil:
		return err
	default:
		defer out.Close()
	}
	program, argv := command(args)
	p, err := os.StartProcess(program, argv, &os.ProcAttr{Dir: "/tmp", Env: environment(), Files: []*os.File{nil, out, os.Stderr}})
	if err != nil {
		return fmt.Errorf("start %q: %w", args, err)
	}
	return end(p, out, args)
}

// runShell runs a shell that has the console as its terminal.
func runShell() error {
	console, err := os.OpenFile(consoleDevice, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	defer console.Close()
	argv := []string{"-bash"} // a login shell
	p, err := os.StartProcess(shell, argv, &os.ProcAttr{
		Dir: "/", Env: environment(), Files: []*os.File{console, console, console},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true},
	})
	if err != nil {
		return fmt.Errorf("start a shell: %w", err)
	}
	if err := end(p, console, argv); err != nil {
		say("%v", err) // exit status of the shell's last command
	}
	return nil
}

// end waits until a process has ended and its output has left.
func end(p *os.Process, out *os.File, args []string) error {
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

// command returns the program that args name: another program of the image if the first is a path,
// otherwise this one.
func command(args []string) (program string, argv []string) {
	if len(args) > 0 && strings.HasPrefix(args[0], "/") {
		return args[0], args
	}
	return "/init", append([]string{"vnic"}, args...)
}

// reapUntil waits for a process. It also reaps the orphans that PID 1 inherits meanwhile.
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
	if err == nil { // fails for a device file without a serial line
		_, err = unix.IoctlGetInt(int(f.Fd()), unix.TIOCMGET)
	}
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
