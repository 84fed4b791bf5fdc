package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// keepText copies the configuration file into a memfd, so that a worker which is started again does
// not read a file that somebody is editing.
func keepText(path string) (fd int, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return -1, err
	}
	fd, err = unix.MemfdCreate("vnic-config", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	if n, err := unix.Pwrite(fd, b, 0); err != nil || n != len(b) {
		return -1, errors.Join(fmt.Errorf("configuration: %d of %d bytes kept: %w", n, len(b), err), unix.Close(fd))
	}
	return fd, nil
}

func closeText(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}

// current returns the configuration that the worker has.
func (k *resources) current() (*config.Config, error) {
	fd, err := unix.FcntlInt(uintptr(k.text), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	cfg, _, err := parseGiven(os.NewFile(uintptr(fd), k.o.path), k.o.path)
	return cfg, err
}

// prepare checks whether the program on disk can take over with the configuration on disk.
func (k *resources) prepare(ctx context.Context, program string) error {
	if err := k.tryProgram(ctx, program); err != nil {
		return err
	}
	cfg, err := k.next()
	if err != nil {
		return err
	}
	text, err := keepText(k.o.path)
	if err != nil {
		return err
	}
	k.before, k.text = k.text, text
	k.limitBefore, k.limit = k.limit, *cfg.NIC.Watchdog
	return nil
}

// next reads the configuration on disk, unless it has something that the supervisor has otherwise.
func (k *resources) next() (*config.Config, error) {
	cfg, err := config.Load(k.o.path)
	if err != nil {
		return nil, err
	}
	was, err := k.current()
	if err != nil {
		return nil, err
	}
	has, err := shapeOf(was)
	if err != nil {
		return nil, err
	}
	is, err := shapeOf(cfg)
	if err != nil {
		return nil, err
	}
	if list := has.changes(is); len(list) > 0 {
		return nil, fmt.Errorf("%s: %s: this takes effect when vnic run is stopped and started", k.o.path, strings.Join(list, ", "))
	}
	return cfg, nil
}

// commit is called when the worker of an upgrade works. It forgets the configuration before the
// upgrade.
func (k *resources) commit() { closeText(&k.before) }

// revert is called when the worker of an upgrade has failed. The next worker gets the configuration
// before the upgrade.
func (k *resources) revert() {
	closeText(&k.text)
	k.text, k.before = k.before, -1
	k.limit = k.limitBefore
}

// reload checks the configuration on disk, and returns a descriptor of it for the worker.
func (k *resources) reload() (text int, err error) {
	cfg, err := k.next()
	if err != nil {
		return -1, err
	}
	if slices.Contains(workerCapabilities(cfg), unix.CAP_SYS_ADMIN) && !slices.Contains(k.rights, unix.CAP_SYS_ADMIN) {
		return -1, fmt.Errorf("%s: a port has netns, and the worker gave up the right to enter namespaces, since it began without such a port: this takes effect with vnic upgrade", k.o.path)
	}
	if err := device.CheckMachine(cfg, asWorker(cfg)); err != nil {
		return -1, err
	}
	k.level = cfg.Log.SlogLevel()
	return keepText(k.o.path)
}

// reloaded keeps a configuration that the worker has taken for the next one.
func (k *resources) reloaded(text int) {
	closeText(&k.text)
	k.text = text
	level.Set(k.level)
}

// shape describes everything that a supervisor creates and keeps for a configuration, and that a reload
// and an upgrade therefore cannot change. It maps the name of each part, for messages, to its settings.
type shape map[string]string

// tapPort begins the names of ports with TAPs. Workers make these and end them; the supervisor has only
// copies of their descriptors. So they come and go, and only one that stays has to be in its namespace.
const tapPort = "the port with TAP "

func shapeOf(cfg *config.Config) (shape, error) {
	u := &cfg.Uplink
	s := shape{"control": cfg.Control, "uplink.name": u.Name, "uplink.backend": u.Backend, "uplink.queues": strconv.Itoa(u.Queues)}
	for _, f := range cfg.AllFunctions() {
		switch p := f.Port; {
		case p == nil:
		case p.Type == config.PortVhostUser:
			s["the port with socket "+p.Socket] = fmt.Sprintf("name %s, listen %s, queues %d, mtu %d", p.Name, p.Listen, p.Queues, p.MTU)
		default:
			s[tapPort+p.Name] = "netns " + strconv.Quote(p.Netns)
		}
	}
	for i := range cfg.Attach {
		c := &cfg.Attach[i]
		if c.Type == config.AttachVsock {
			continue // opened by the worker
		}
		name := "the attachment with socket " + c.Socket
		s[name] = "type " + c.Type
		if c.CID != 0 {
			s[name] += fmt.Sprintf(", cid %d", c.CID)
		}
		if c.Type == config.AttachVfioUser {
			s[name] += fmt.Sprintf(", pci %s:%s subsystem %s:%s %s", c.PCI.Vendor, c.PCI.Device, c.PCI.SubsystemVendor, c.PCI.SubsystemDevice, c.PCI.Interrupts)
		}
		windows, err := windowsOf(cfg, c)
		if err != nil {
			return nil, err
		}
		for _, w := range windows {
			s[fmt.Sprintf("%s of the guest with cid %d", pfvf.ID(w.function), w.cid)] = "socket " + w.socket
		}
	}
	return s, nil
}

// changes describes the differences to another shape.
func (s shape) changes(is shape) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		switch now, there := is[name]; {
		case !there && strings.HasPrefix(name, tapPort):
		case !there:
			list = append(list, fmt.Sprintf("%s (%s) is gone", name, s[name]))
		case now != s[name]:
			list = append(list, fmt.Sprintf("%s was %q and is %q", name, s[name], now))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if _, there := s[name]; !there && !strings.HasPrefix(name, tapPort) {
			list = append(list, fmt.Sprintf("%s (%s) is new", name, is[name]))
		}
	}
	return list
}

// tryProgram runs a program to check the configuration and this machine. It requires an answer
// about this configuration, not just exit status 0, so that a program which is not vnic fails too.
func (k *resources) tryProgram(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	check := exec.CommandContext(ctx, program, append([]string{"run", "--check", "--json", "--protocol", strconv.Itoa(supervisor.Protocol)}, k.o.passed()...)...)
	var answer, said bytes.Buffer
	check.Stdout, check.Stderr = &limitedBuffer{&answer, maxAnswer}, &limitedBuffer{&said, maxAnswer}
	check.WaitDelay = time.Second // in case it has started other processes, which keep its output open
	err := check.Run()
	var good checked
	switch why := strings.TrimPrefix(strings.TrimSpace(said.String()), "vnic: "); {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: `run --check` has not ended after %v: is it a vnic program?", program, tryLimit)
	case err != nil && why != "":
		return errors.New(why) // the exit status adds nothing
	case err != nil:
		return fmt.Errorf("%s: `run --check`: %w", program, err)
	case json.Unmarshal(answer.Bytes(), &good) != nil || good.File != k.o.path:
		return fmt.Errorf("%s is not a vnic program: its `run --check` does not say that %s is good; put a vnic program in its place", program, k.o.path)
	}
	return nil
}

const (
	tryLimit  = 30 * time.Second
	maxAnswer = 16 << 10 // bytes kept of a tried program's output
)

// limitedBuffer is a writer that keeps the first room bytes and drops the rest.
type limitedBuffer struct {
	to   *bytes.Buffer
	room int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	keep := p[:min(len(p), b.room)]
	b.room -= len(keep)
	_, _ = b.to.Write(keep)
	return len(p), nil
}
