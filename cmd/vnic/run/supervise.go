package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/record"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
)

// resources holds the sockets, memory and connections that a NIC's supervisor keeps for its workers.
type resources struct {
	o           *options
	text        int           // memfd with the configuration for workers; -1: none yet
	level       slog.Level    // of the log, in the configuration that the worker is to take
	before      int           // memfd with the configuration before an unsettled upgrade; -1: none
	rights      []int         // capabilities of the worker
	limit       time.Duration // limit of the watchdog
	limitBefore time.Duration // limit of the watchdog before an unsettled upgrade
	given       []supervisor.Given
	relays      map[string]supervisor.Relay
	looks       map[uint32]qemu.VfioPCI // PCI look of vfio-user functions, by guest
	attach      []config.Attach         // upgrades do not change it

	log   *slog.Logger
	saves sync.WaitGroup // recordings that are being saved

	mu    sync.Mutex
	close []func() error // called in reverse order
	ring  *os.File       // memory of the worker's recorder; nil: it has none
}

// passed returns the flags of this process that are passed on to workers.
func (o *options) passed() []string {
	args := []string{"-c", o.path}
	if o.format != "" {
		args = append(args, "--log-format", o.format)
	}
	if o.record != "" {
		args = append(args, "--record", o.record, "--record-payload", o.payload)
	}
	return args
}

// supervise runs the NIC in a worker process and keeps that worker running.
func supervise(ctx context.Context, cfg *config.Config, o *options) (err error) {
	log := newLog(cfg.Log)
	if err := asWorker(cfg)(func() error { return device.CheckIdentity(cfg) }); err != nil {
		return err // otherwise the worker would serve but refuse every peer
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	k, err := keep(cfg, o, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.end()) }()
	return supervisor.Run(ctx, supervisor.Config{
		Program:  program,
		Args:     append([]string{"run", "--worker"}, o.passed()...),
		Given:    k.give,
		Relays:   k.relays,
		Prepare:  func(ctx context.Context) error { return k.prepare(ctx, program) },
		Commit:   k.commit,
		Revert:   k.revert,
		Reload:   k.reload,
		Reloaded: k.reloaded,
		Kept: func(name string, fds []int) (supervisor.Relay, error) {
			return k.kept(name, fds, qemu.VhostOptions{Log: log})
		},
		Watchdog: k.watchdog,
		Failed:   k.saveRecording,
		Log:      log,
		Notify: func(state string) {
			if err := notify(state); err != nil {
				log.Warn("service manager not notified", "state", state, "err", err)
			}
		},
	})
}

// keep opens all sockets of the configuration, for guests and for operators.
func keep(cfg *config.Config, o *options, log *slog.Logger) (_ *resources, err error) {
	k := &resources{o: o, log: log, text: -1, before: -1, limit: *cfg.NIC.Watchdog, relays: map[string]supervisor.Relay{}, looks: map[uint32]qemu.VfioPCI{}, attach: cfg.Attach}
	defer func() {
		if err != nil {
			_ = k.end()
		}
	}()
	sockets := []string{cfg.Control}
	for i := range cfg.Attach {
		sockets = append(sockets, cfg.Attach[i].Socket)
	}
	for _, f := range cfg.AllFunctions() {
		if f.Port != nil && f.Port.Listen == config.ListenNIC {
			sockets = append(sockets, f.Port.Socket)
		}
	}
	awaitPredecessor(slices.DeleteFunc(sockets, func(path string) bool { return path == "" }))
	if k.text, err = keepText(o.path); err != nil {
		return nil, err
	}
	if cfg.Control != "" {
		l, err := control.Listen(cfg.Control)
		if err != nil {
			return nil, fmt.Errorf("nic %s: %w", cfg.NIC.Name, err)
		}
		k.close = append(k.close, l.Close)
		if err := k.giveFile(givenControl, l.File); err != nil {
			return nil, err
		}
	}
	for i := range cfg.Attach {
		if err := k.keepAttachment(cfg, &cfg.Attach[i], qemu.VhostOptions{Log: log}); err != nil {
			return nil, fmt.Errorf("attach[%d]: %w", i, err)
		}
	}
	for _, f := range cfg.AllFunctions() {
		if err := k.keepPort(f.Port, qemu.VhostOptions{Log: log}); err != nil {
			return nil, fmt.Errorf("port of %s: %w", f, err)
		}
	}
	return k, nil
}

// keepPort opens the socket of a vhost-user port and relays its front ends.
func (k *resources) keepPort(p *config.Port, opt qemu.VhostOptions) error {
	if p == nil || p.Type != config.PortVhostUser {
		return nil
	}
	in, _, err := ownAcceptor(p)
	if err != nil {
		return err
	}
	r, err := qemu.NewNetRelay(in, p.Name, p.Queues, p.MTU, opt)
	if err != nil {
		return err
	}
	k.close = append(k.close, r.Close)
	k.relays[givenPort+p.Socket] = r
	k.given = append(k.given, supervisor.Given{Name: givenRings + p.Socket, FDs: []int{int(r.Ledger.Fd())}})
	return nil
}

func (k *resources) keepAttachment(cfg *config.Config, c *config.Attach, opt qemu.VhostOptions) error {
	switch c.Type {
	case config.AttachUnix:
		s, err := qemu.KeepSocket(c.Socket)
		if err != nil {
			return fmt.Errorf("unix attachment: %w", err)
		}
		k.close = append(k.close, s.Close)
		return k.giveFile(givenUnix+c.Socket, s.File)
	case config.AttachVhostUser:
		windows, err := windowsOf(cfg, c)
		if err != nil {
			return err
		}
		r, err := qemu.ListenVhostRelay(c.Socket, c.CID, opt)
		if err != nil {
			return err
		}
		k.close = append(k.close, r.Close)
		k.relays[givenVhost+c.Socket] = r
		k.given = append(k.given, supervisor.Given{Name: givenLedger + c.Socket, FDs: []int{int(r.Ledger.Fd())}})
		for _, w := range windows {
			s, err := qemu.ListenWindow(w.function, w.kind, w.socket, opt)
			if err != nil {
				return err
			}
			k.close = append(k.close, s.Close)
			k.given = append(k.given, supervisor.Given{Name: windowName(givenWindow, w), FDs: s.Window.FDs()})
		}
	case config.AttachVfioUser:
		functions, err := windowsOf(cfg, c)
		if err != nil {
			return err
		}
		for _, w := range functions {
			if err := k.keepFunction(w, lookOf(c), opt); err != nil {
				return err
			}
		}
		k.looks[c.CID] = lookOf(c)
	}
	return nil
}

// keepFunction serves a function to its QEMU.
func (k *resources) keepFunction(w window, look qemu.VfioPCI, opt qemu.VhostOptions) error {
	win, err := ivshmem.NewWindow(w.function, w.kind)
	if err != nil {
		return err
	}
	name := windowName(givenVfio, w)
	given := supervisor.Given{Name: name, FDs: win.FDs()}
	r, err := qemu.ServeVfioRelay(w.function, win, w.socket, look, opt)
	if err != nil {
		return err
	}
	k.close = append(k.close, r.Close)
	k.relays[name] = r
	k.given = append(k.given, given)
	return nil
}

// giveFile gives workers a copy of a listening socket.
func (k *resources) giveFile(name string, file func() (*os.File, error)) error {
	f, err := file()
	if err != nil {
		return err
	}
	k.close = append(k.close, f.Close)
	k.given = append(k.given, supervisor.Given{Name: name, FDs: []int{int(f.Fd())}})
	return nil
}

// give returns what a worker that starts is given. What the recorder of the worker before held is dropped: it
// has been saved, or nobody asks for it.
func (k *resources) give() []supervisor.Given {
	_ = k.takeRing(nil).Close() // nil is allowed
	if cfg, err := k.current(); err == nil {
		k.rights = workerCapabilities(cfg)
	}
	return append([]supervisor.Given{{Name: givenConfig, FDs: []int{k.text}}}, k.given...)
}

// kept serves the windows and functions that a worker created while it ran. It returns a relay for
// a function, which needs connections to the worker.
func (k *resources) kept(name string, fds []int, opt qemu.VhostOptions) (supervisor.Relay, error) {
	switch {
	case name == keptRing && len(fds) == 1:
		return nil, k.keepRing(fds[0])
	case strings.HasPrefix(name, givenWindow):
		win, w, err := k.adoptKept(givenWindow, config.AttachVhostUser, name, fds)
		if err != nil {
			return nil, err
		}
		s, err := qemu.ServeWindow(win, w.socket, opt)
		if err != nil {
			return nil, err
		}
		k.closeLater(s.Close)
	case strings.HasPrefix(name, givenVfio):
		win, w, err := k.adoptKept(givenVfio, config.AttachVfioUser, name, fds)
		if err != nil {
			return nil, err
		}
		r, err := qemu.ServeVfioRelay(w.function, win, w.socket, k.looks[w.cid], opt)
		if err != nil {
			return nil, err
		}
		k.closeLater(r.Close)
		return r, nil
	}
	return nil, nil
}

// keepRing keeps the memory of the worker's recorder.
func (k *resources) keepRing(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = k.takeRing(os.NewFile(uintptr(own), keptRing)).Close() // nil is allowed
	return nil
}

// takeRing returns the memory of the worker's recorder, and keeps another in its place.
func (k *resources) takeRing(is *os.File) (was *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, k.ring = k.ring, is
	return was
}

// saveRecording saves what the recorder of a worker that has ended by itself holds.
func (k *resources) saveRecording(generation int) {
	ring := k.takeRing(nil)
	cfg, err := k.current()
	if err != nil || ring == nil || cfg.NIC.Recorder == nil || cfg.NIC.Recorder.Folder == "" {
		_ = ring.Close() // nil is allowed
		return
	}
	k.saves.Go(func() {
		defer ring.Close()
		r := cfg.NIC.Recorder
		path, err := record.SaveIn(r.Folder, cfg.CM.Name, fmt.Sprintf("worker_%d", generation), func(path string) (int64, error) {
			return record.Rescue(ring, int64(r.Size), path)
		})
		if err != nil {
			k.log.Error("recording not saved", "err", err)
			return
		}
		k.log.Warn("recording saved", "file", path, "why", "the worker ended by itself", "generation", generation)
	})
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

func (k *resources) closeLater(f func() error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.close = append(k.close, f)
}

// adoptKept returns a window made of the descriptors that a worker keeps here. It takes the path of
// the window's socket from the configuration: a worker handles input from guests, so it must not
// choose where this process creates files.
func (k *resources) adoptKept(kind, attachment, name string, fds []int) (*ivshmem.Window, window, error) {
	w, err := parseWindow(kind, name)
	if err != nil {
		return nil, w, err
	}
	i := slices.IndexFunc(k.attach, func(c config.Attach) bool { return c.Type == attachment && c.CID == w.cid })
	if i < 0 {
		return nil, w, fmt.Errorf("window %q: no attachment of type %s is for guest %d", name, attachment, w.cid)
	}
	if own := windowOf(pfvf.ID(w.function), &k.attach[i]); own != w {
		return nil, w, fmt.Errorf("window %q: the configuration has it at %s", name, own.socket)
	}
	own := make([]int, 0, len(fds))
	for _, fd := range fds {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, w, err
		}
		own = append(own, d)
	}
	win, err := ivshmem.Adopt(own)
	return win, w, err
}

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

func closeText(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
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

func (k *resources) watchdog() time.Duration { return k.limit }

func (k *resources) end() error {
	k.saves.Wait()
	_ = k.takeRing(nil).Close() // nil is allowed
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, f := range slices.Backward(k.close) {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	k.close = nil
	closeText(&k.text)
	closeText(&k.before)
	return errors.Join(errs...)
}

// predecessorTime is how long to wait for the end of a worker whose supervisor was killed.
const predecessorTime = 10 * time.Second

// awaitPredecessor waits for the end of a worker whose supervisor was killed, if there is one. The
// kernel kills that worker too, but it takes a moment, during which the worker still holds sockets
// and TAPs.
func awaitPredecessor(sockets []string) {
	end := time.Now().Add(predecessorTime)
	for _, path := range sockets {
		for orphaned(path) && time.Now().Before(end) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// orphaned reports whether a socket listens although the process that created it is gone.
func orphaned(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	err = raw.Control(func(fd uintptr) { cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || cred == nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cred.Pid))
	return err != nil || bytes.Contains(stat, []byte(") Z ")) // a zombie: it has ended, but its parent has not waited for it
}
