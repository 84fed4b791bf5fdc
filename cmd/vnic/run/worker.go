package run

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/run/sandbox"
	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Names under which supervisor and worker pass descriptors. Sockets go by their
// path, TAPs by their own name, windows by windowName.
const (
	givenConfig  = "config"
	givenControl = "control"
	givenUnix    = "unix:"
	givenVhost   = "vhost-user:"
	givenLedger  = "flows:"
	givenWindow  = "window:"
	givenPort    = "port:"
	givenRings   = "rings:"
	givenVfio    = "vfio-user:" // functions, named as windows
	keptTAP      = "tap:"
	keptSet      = "settings"
	keptPeers    = "peers"
	keptRing     = "recorder"   // its memory
	keptFile     = "recording:" // a file that the next worker is to record to: what it keeps of payload, a colon, and the path
)

// runWorker runs a NIC for a supervisor, which started this process.
func runWorker(o *options) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGUSR2) // only the supervisor handles them, even if the whole process group gets them
	// It may have been started through a descriptor, whose number is no useful name in process
	// lists.
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
	w, err := supervisor.Join(os.NewFile(supervisor.ChannelFD, "supervisor"))
	if err != nil {
		return err
	}
	if err := workFor(w, o); err != nil {
		w.Failed(err)
		return err
	}
	return nil
}

func workFor(w *supervisor.Worker, o *options) error {
	ctx, cancel := w.Context()
	defer cancel()
	cfg, text, err := givenConfiguration(w, o.path)
	if err != nil {
		return err
	}
	cfg.Log.Format = cmp.Or(o.format, cfg.Log.Format)
	log := newLog(cfg.Log)
	memory := newMemoryBudgets(cfg)
	deps := device.Deps{
		Log: log, TAPs: keptTAPs{w}, Guests: guestPorts{givenPorts{w, map[string][]byte{}}.acceptor, memory, log}, GuestMemory: memory.count, Settings: kept{w, keptSet}, Peers: kept{w, keptPeers}, Pulses: pulses(w.Pulses),
		Supervisor: &controller.Supervisor{PID: w.PID, Starts: w.Generation, Stuck: w.Stuck, Upgraded: func() (int, string) {
			u := w.Upgraded()
			return u.Asked, u.Refused
		}},
		LogLevel: level.Set, Reload: w.Reload, Record: givenRecording(w, recordTo(o, w.Generation, text)),
		StartRecording: func(file string, keep tape.Payload) error { return startRecording(w, file, keep) },
		KeepRing: func(memory *os.File) error {
			for _, fd := range w.Take(keptRing) { // of the worker before
				_ = unix.Close(fd)
			}
			return w.Keep(keptRing, int(memory.Fd()))
		},
	}
	if w.Reloads {
		deps.Supervisor.Reloaded = func() (int, string) {
			r := w.Reloaded()
			return r.Asked, r.Refused
		}
	}
	if cfg.Control != "" {
		if deps.Control, err = givenListener(w, givenControl); err != nil {
			return err
		}
	}
	if deps.Attachments, err = attach(cfg, givenSockets{w, qemu.VhostOptions{Log: log}, map[string]*ivshmem.Window{}}, memory, log); err != nil {
		return err
	}
	return serve(ctx, cfg, deps, func(state string) error {
		if state == stateReady {
			w.Discard() // devices of an earlier configuration
			restrict(cfg, log)
			return w.Ready()
		}
		return nil // the supervisor tells the service manager
	}, func(nic *device.NIC) {
		w.OnReload(func(text *os.File) error {
			is, _, err := parseGiven(text, o.path)
			if err != nil {
				return err
			}
			is.Log.Format = cmp.Or(o.format, is.Log.Format)
			return nic.Reconfigure(is)
		})
	})
}

// startRecording makes a file that the next worker records to, and has this one replaced. So nobody but this
// process, which has few rights, opens what an operator names.
func startRecording(w *supervisor.Worker, file string, keep tape.Payload) error {
	f, err := record.Make(file)
	if err != nil {
		return err
	}
	if err = w.Keep(keptFile+keep.String()+":"+file, int(f.Fd())); err == nil {
		err = w.Replace()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// givenRecording returns what this worker records: to the file that the one before made for it, if it did. The worker
// after this one has no part in it.
func givenRecording(w *supervisor.Worker, c record.Config) record.Config {
	for _, name := range w.Names(keptFile) {
		payload, path, _ := strings.Cut(strings.TrimPrefix(name, keptFile), ":")
		for _, fd := range w.Take(name) {
			_ = c.Made.Close() // nil is allowed
			c.Made = os.NewFile(uintptr(fd), path)
		}
		c.File, c.Later = "", true
		c.Keep, _ = tape.ParsePayload(payload)
		_ = w.Drop(name)
	}
	return c
}

// restrict drops the privileges that a worker does not need once it serves.
func restrict(cfg *config.Config, log *slog.Logger) {
	if err := sandbox.Enter(workerCapabilities(cfg)...); err != nil {
		log.Warn("the worker keeps more privileges than it needs", "reason", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// workerCapabilities returns the capabilities that a worker needs for changes at run time.
// CAP_NET_ADMIN is for creating ports, and CAP_SYS_ADMIN for creating them in network namespaces,
// if the configuration names some. Another one is for memory files of guests on the kernel's vsock,
// which belong to QEMU's user.
func workerCapabilities(cfg *config.Config) []int {
	keep := []int{unix.CAP_NET_ADMIN}
	for _, f := range cfg.AllFunctions() {
		if f.Port != nil && f.Port.Netns != "" {
			keep = append(keep, unix.CAP_SYS_ADMIN)
			break
		}
	}
	for i := range cfg.Attach {
		if len(cfg.Attach[i].RAM) > 0 {
			keep = append(keep, unix.CAP_DAC_OVERRIDE)
			break
		}
	}
	return keep
}

// CheckMachine finds what a valid configuration needs and this machine does not have.
func CheckMachine(cfg *config.Config) error { return device.CheckMachine(cfg, asWorker(cfg)) }

// asWorker returns a function that runs a check with the capabilities of a serving worker, because
// without its other capabilities root may not open files of other users.
func asWorker(cfg *config.Config) func(func() error) error {
	return func(check func() error) error { return sandbox.With(workerCapabilities(cfg), check) }
}

// givenConfiguration returns the configuration that the supervisor has checked. It does not read
// the file, which may have changed since.
func givenConfiguration(w *supervisor.Worker, path string) (*config.Config, string, error) {
	fds := w.Take(givenConfig)
	if len(fds) != 1 {
		return nil, "", errors.New("the supervisor gave no configuration")
	}
	return parseGiven(os.NewFile(uintptr(fds[0]), path), path)
}

// parseGiven reads a configuration that the supervisor gave. It returns its text, too.
func parseGiven(given *os.File, path string) (cfg *config.Config, text string, err error) {
	b, err := readAll(given)
	if err != nil {
		return nil, "", fmt.Errorf("configuration %s: %w", path, err)
	}
	if cfg, err = config.Parse(b); err != nil {
		return nil, "", fmt.Errorf("configuration %s:\n%w", path, err)
	}
	return cfg, string(b), nil
}

func givenFile(w *supervisor.Worker, name string) (*os.File, error) {
	fds := w.Take(name)
	if len(fds) != 1 {
		return nil, fmt.Errorf("the supervisor gave %d descriptors for %s, want 1", len(fds), name)
	}
	return os.NewFile(uintptr(fds[0]), name), nil
}

func givenListener(w *supervisor.Worker, name string) (net.Listener, error) {
	f, err := givenFile(w, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileListener(f)
}

// givenSockets opens attachments on the supervisor's sockets.
type givenSockets struct {
	w        *supervisor.Worker
	opt      qemu.VhostOptions
	unserved map[string]*ivshmem.Window // created while the NIC runs, and not served by the supervisor yet
}

func (s givenSockets) unix(path string, memory *guestmem.Budget) (queues.Attachment, error) {
	f, err := givenFile(s.w, givenUnix+path)
	if err != nil {
		return nil, err
	}
	return qemu.ServeUnix(f, path, memory)
}

func (s givenSockets) vhostUser(path string, cid uint32, memory *guestmem.Budget) (*qemu.VhostUser, error) {
	f, err := givenFile(s.w, givenLedger+path)
	if err != nil {
		return nil, err
	}
	opt := s.opt
	opt.Memory, opt.Known = memory, s.w.Joined(givenVhost+path)
	if opt.Ledger, err = qemu.MapLedger(f); err != nil {
		return nil, err
	}
	dev, err := qemu.NewVhostUser(s.w.Acceptor(givenVhost+path), path, cid, opt)
	if err != nil {
		return nil, err
	}
	// Use all windows, also those of functions that are not enabled: they are mapped in the guest's
	// address space but are not guest memory, so the device must recognize them.
	for _, name := range s.w.Names(givenWindow) {
		w, err := parseWindow(givenWindow, name)
		if err == nil && w.cid == cid {
			var win *ivshmem.Window
			if win, err = ivshmem.Adopt(s.w.Take(name)); err == nil {
				err = dev.UseWindow(w.function, win)
			}
		}
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
	}
	return dev, nil
}

// window creates a window while the NIC runs. The supervisor serves it to QEMU.
func (s givenSockets) window(dev *qemu.VhostUser, w window) error {
	name := windowName(givenWindow, w)
	if !dev.HasWindow(w.function) {
		win, err := ivshmem.NewWindow(w.function, w.kind)
		if err != nil {
			return err
		}
		if err := dev.UseWindow(w.function, win); err != nil {
			return err
		}
		s.unserved[name] = win
	}
	return s.serve(name, w)
}

// serve makes the supervisor serve a window that was created while the NIC runs. If the supervisor could
// not, as with another file in the window's place, the next call tries again.
func (s givenSockets) serve(name string, w window) error {
	win := s.unserved[name]
	if win == nil {
		return nil
	}
	if err := s.w.Keep(name, win.FDs()...); err != nil {
		return err
	}
	// The supervisor acts on one message after the other: it has tried once it answers the next, which drops nothing.
	if err := s.w.Drop("after " + name); err != nil {
		return err
	}
	if !listens(w.socket) {
		return fmt.Errorf("the supervisor does not serve the window at %s; its log says why", w.socket)
	}
	delete(s.unserved, name)
	return nil
}

// listens reports whether the file at path is a socket that listens, as the kernel lists it. Without a list any socket
// does. To connect would tell, but the supervisor would take that for QEMU.
func listens(path string) bool {
	const listening = "00010000" // __SO_ACCEPTCON
	if st, err := os.Stat(path); err != nil || st.Mode()&os.ModeSocket == 0 {
		return false
	}
	list, err := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) > 7 && f[3] == listening && strings.HasSuffix(line, " "+path+"\n") {
			return true
		}
	}
	return err != nil
}

// vfioUser returns a guest with its functions, whose QEMU is connected to the supervisor.
func (s givenSockets) vfioUser(c *config.Attach, memory *guestmem.Budget) (*qemu.VfioUser, error) {
	opt := s.opt
	opt.Memory = memory
	guest := qemu.NewVfioUser(c.Socket, c.CID, opt)
	for _, name := range s.w.Names(givenVfio) {
		w, err := parseWindow(givenVfio, name)
		if err == nil && w.cid == c.CID {
			err = s.use(guest, w, s.w.Take(name))
		}
		if err != nil {
			return nil, errors.Join(err, guest.Close())
		}
	}
	return guest, nil
}

func (s givenSockets) use(guest *qemu.VfioUser, w window, fds []int) error {
	win, err := ivshmem.Adopt(fds)
	if err != nil {
		return err
	}
	name := windowName(givenVfio, w)
	return guest.UseFunction(w.function, win, s.w.Acceptor(name), s.w.Joined(name))
}

// function creates a function while the NIC runs. The supervisor serves it to QEMU.
func (s givenSockets) function(guest *qemu.VfioUser, w window, _ qemu.VfioPCI) error {
	name := windowName(givenVfio, w)
	if !guest.HasFunction(w.function) {
		win, err := ivshmem.NewWindow(w.function, w.kind)
		if err != nil {
			return err
		}
		if err := guest.UseFunction(w.function, win, s.w.Acceptor(name), s.w.Joined(name)); err != nil {
			return err
		}
		s.unserved[name] = win
	}
	return s.serve(name, w)
}

// windowName returns the name under which a window is passed. It encodes all fields of the window.
func windowName(kind string, w window) string {
	return fmt.Sprintf("%s%d:%d:%d:%s", kind, w.cid, w.function, w.kind, w.socket)
}

func parseWindow(kind, name string) (w window, err error) {
	parts := strings.SplitN(strings.TrimPrefix(name, kind), ":", 4)
	if len(parts) != 4 {
		return w, fmt.Errorf("window %q: want guest:function:kind:socket", name)
	}
	var numbers [3]uint64
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(parts[i], 10, 32); err != nil {
			return w, fmt.Errorf("window %q: %w", name, err)
		}
	}
	return window{uint32(numbers[0]), uint32(numbers[1]), abi.FunctionType(numbers[2]), parts[3]}, nil
}

// keptTAPs is the tap.Keeper of a worker. It keeps TAPs with the supervisor.
type keptTAPs struct{ w *supervisor.Worker }

func (k keptTAPs) Take(name string) (fds []int) { return k.w.Take(keptTAP + name) }

func (k keptTAPs) PutBack(name string, fds ...int) { k.w.PutBack(keptTAP+name, fds...) }

func (k keptTAPs) Keep(name string, fds ...int) error { return k.w.Keep(keptTAP+name, fds...) }

func (k keptTAPs) Forget(name string) error { return k.w.Drop(keptTAP + name) }

// kept keeps what was set at run time, of functions or of peers, in a file that the supervisor holds.
type kept struct {
	w    *supervisor.Worker
	name string
}

func (k kept) Load() ([]byte, error) {
	fds := k.w.Take(k.name)
	if len(fds) == 0 {
		return nil, nil
	}
	return readAll(os.NewFile(uintptr(fds[0]), k.name))
}

func (k kept) Store(b []byte) error {
	fd, err := unix.MemfdCreate("vnic-"+k.name, unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), k.name)
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	return k.w.Keep(k.name, fd)
}

// readAll reads a file whose descriptor other processes may share, and closes it.
func readAll(f *os.File) ([]byte, error) {
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) { // not Read: the file offset is shared
		return nil, err
	}
	return b, nil
}

// pulses returns the pulses for the NIC's threads.
func pulses(p *supervisor.Pulses) (list []thread.Pulse) {
	for i := range p {
		list = append(list, &p[i].Pulse)
	}
	return list
}
