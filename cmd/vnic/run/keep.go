package run

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
)

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
	uplink := ""
	if cfg.Uplink.Type == config.UplinkTAP {
		uplink = cfg.Uplink.Name
	}
	awaitPredecessor(slices.DeleteFunc(sockets, func(path string) bool { return path == "" }), uplink)
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

const (
	predecessorTime = 10 * time.Second // how long to wait for the end of a worker whose supervisor was killed
	uplinkTime      = time.Second      // and then for the end of its TAP; one that is there longer is another's
)

// awaitPredecessor waits for the end of a worker whose supervisor was killed, if there is one. The
// kernel kills that worker too, but it takes a moment, during which the worker still holds sockets
// and its uplink's TAP. The TAP goes last, since other changes of interfaces may be before it.
func awaitPredecessor(sockets []string, uplink string) {
	await := func(limit time.Duration, is func() bool) {
		for end := time.Now().Add(limit); is() && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
	}
	await(predecessorTime, func() bool { return slices.ContainsFunc(sockets, orphaned) })
	await(uplinkTime, func() bool {
		_, err := net.InterfaceByName(uplink)
		return err == nil
	})
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
