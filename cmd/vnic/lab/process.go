package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
)

// A lab's processes are those in its network namespaces, whoever started them, and whether or not
// the starter still runs. So none is forgotten when a command or a NIC's supervisor is killed.

// process is a process in a namespace.
type process struct {
	pid  int
	argv []string
}

// inode identifies a namespace.
type inode struct{ dev, ino uint64 }

func inodeOf(path string) (inode, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return inode{}, false
	}
	return inode{st.Dev, st.Ino}, true
}

// processes returns the processes in namespaces, by the namespace's name.
func processes(spaces []string) map[string][]process {
	in := map[inode]string{}
	for _, name := range spaces {
		if id, ok := inodeOf(filepath.Join(netnsFolder, name)); ok {
			in[id] = name
		}
	}
	found := map[string][]process{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		id, ok := inodeOf(filepath.Join(dir, "ns/net"))
		if !ok || in[id] == "" {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		found[in[id]] = append(found[in[id]], process{pid, strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")})
	}
	return found
}

// Time that processes have to end after SIGTERM, and after SIGKILL.
const (
	politeTime = 3 * time.Second
	forceTime  = 10 * time.Second
)

// end ends the processes that list returns, first by SIGTERM, and waits until it returns none: others
// may be started meanwhile.
func end(list func() []process) error {
	signal, deadline := unix.SIGTERM, time.Now().Add(politeTime)
	told := map[int]bool{}
	for {
		left := list()
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			if signal == unix.SIGKILL {
				return fmt.Errorf("process %d (%s) does not end", left[0].pid, strings.Join(left[0].argv, " "))
			}
			signal, deadline, told = unix.SIGKILL, time.Now().Add(forceTime), map[int]bool{}
		}
		for _, p := range left {
			if !told[p.pid] {
				_ = unix.Kill(p.pid, signal)
				told[p.pid] = true
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// endAll ends all processes in namespaces.
func endAll(spaces ...string) error {
	return end(func() (all []process) {
		for _, ps := range processes(spaces) {
			all = append(all, ps...)
		}
		return all
	})
}

// nic returns the processes of a host's NIC: those with its configuration on their command line.
func nic(h *host) (ps []process) {
	for _, p := range processes([]string{h.Space()})[h.Space()] {
		for i, word := range p.argv {
			if i > 0 && p.argv[i-1] == "-c" && word == h.Config() {
				ps = append(ps, p)
			}
		}
	}
	return ps
}

// daemon is a process that this one started and that outlives it.
type daemon struct {
	ended chan struct{}
	err   error   // set before ended is closed
	log   *daemon // keeps what it says, and ends when it has ended
}

// start starts a program in a namespace. A nil file is /dev/null. The program inherits kept, if it is not nil.
func start(space string, in, out, kept *os.File, argv ...string) (*daemon, error) {
	cmd := netnsCommand(context.Background(), space, argv...)
	if in != nil {
		cmd.Stdin = in
	}
	if out != nil {
		cmd.Stdout, cmd.Stderr = out, out
	}
	if kept != nil {
		cmd.ExtraFiles = []*os.File{kept}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d := &daemon{ended: make(chan struct{})}
	go func() {
		d.err = cmd.Wait()
		close(d.ended)
	}()
	return d, nil
}

// netnsCommand returns a command that runs in a namespace. ip shows it the namespace's files in /etc/netns,
// as it does for everybody.
func netnsCommand(ctx context.Context, space string, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", space}, argv...)...)
}

// ip runs lines of iproute2 in a namespace; "": in this one.
func ip(space string, lines ...string) error {
	args := []string{"-batch", "-"}
	if space != "" {
		args = append([]string{"-n", space}, args...)
	}
	cmd := exec.Command("ip", args...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// program is this program's path, for other processes.
var program = labkit.Self()

// openLog opens a log to append to it.
func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

// lastLines returns the end of a log.
func lastLines(path string) string {
	const most = 5
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > 64<<10 {
		_, _ = f.Seek(-64<<10, io.SeekEnd)
	}
	b, _ := io.ReadAll(io.LimitReader(f, 64<<10))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// removeSpace ends the processes in a namespace, and removes it with its files.
func removeSpace(name string) error {
	if err := endAll(name); err != nil {
		return err
	}
	path := filepath.Join(netnsFolder, name)
	// Not by ip netns del, which fails where nothing is mounted on the file, as when ip netns add was
	// killed in between.
	for unix.Unmount(path, unix.MNT_DETACH) == nil {
	}
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(netnsEtc, name)))
}
