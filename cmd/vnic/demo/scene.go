package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
)

// scene is everything that the demo builds and tears down again:
//
//	   namespace of host 1                              namespace of host 2
//	guest 1 ── vnic run ── vnic-up1 ═ vnic-br0 ══ veth ══ vnic-br0 ═ vnic-up2 ── vnic run ── guest 2
//	   └─ TAP ═ vnic-gbr1 ═ port   └──── mutual TLS on another veth ────┘   port ═ vnic-gbr2 ═ TAP ─┘
//
// Nothing of it outlives this process: the namespaces have no names, so they end with their last
// process; children die with this process (see process); sockets are in a temporary folder.
type scene struct {
	o     Options
	out   string
	run   string // sockets
	r     *report
	hosts [2]*Host

	undo    []func() error // in reverse order
	sniffer *capture.Sniffer
	guests  guests
}

// guests are the demo's two guests: QEMU guests or bare clients.
type guests interface {
	// start prepares both guests. work runs the workload on both and reports rows.
	start(ctx context.Context) error
	work(ctx context.Context) error
	stop() error
}

func newScene(o Options, r *report) (*scene, error) {
	if err := replaceFolder(o.Out); err != nil {
		return nil, err
	}
	run, removeRun, err := labkit.RunDir("vnic-demo-")
	if err != nil {
		return nil, err
	}
	// Children die with the thread that starts them, so this thread must not end.
	runtime.LockOSThread()
	s := &scene{o: o, out: o.Out, run: run, r: r}
	s.later(removeRun)
	return s, nil
}

// mark is a file that marks a folder as made by the demo.
const mark = ".vnic-demo"

// replaceFolder creates the demo's folder again. It removes an old one only if a demo made it.
func replaceFolder(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("--out: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(path, mark)); err != nil && len(entries) > 0 {
		return fmt.Errorf("--out %s: has files that are not from a demo; name another folder", path)
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, mark), nil, 0o644)
}

func (s *scene) later(undo func() error) { s.undo = append(s.undo, undo) }

// build builds the whole scene, until both guests are ready to work.
func (s *scene) build(ctx context.Context) error {
	ports, err := labkit.FreePorts()
	if err != nil {
		return err
	}
	s.hosts = NewHosts(&s.o, s.run, ports)
	if err := s.prepareGuests(ctx); err != nil {
		return err
	}
	if s.o.Fabric == "tap" {
		if err := s.network(); err != nil {
			return err
		}
	}
	if err := cmlink.Init(filepath.Join(s.out, "keys"), "demo", []string{"1", "2"}); err != nil {
		return err
	}
	s.r.step("keys: an identity for each host in %s", filepath.Join(s.out, "keys"))
	for _, h := range s.hosts {
		if err := h.WriteConfig(); err != nil {
			return err
		}
	}
	if s.o.Fabric == "tap" {
		err = s.startHosts(ctx)
	} else {
		err = s.startHostsHere(ctx)
	}
	if err != nil {
		return err
	}
	if err := s.waitForPeers(ctx); err != nil {
		return err
	}
	return s.guests.start(ctx)
}

// startHosts starts one vnic run process per host.
func (s *scene) startHosts(ctx context.Context) error {
	for _, h := range s.hosts {
		var p *labkit.Process
		if err := h.space.Do(func() (err error) {
			p, err = labkit.Start(h.Name(), h.Log, labkit.Self(), "run", "-c", h.Config)
			return err
		}); err != nil {
			return err
		}
		s.later(func() error { p.Stop(5 * time.Second); return nil })
		err := p.Until(ctx, func(ctx context.Context) error {
			_, err := control.NewClient(h.Control).NIC(ctx)
			return err
		})
		if err != nil {
			return fmt.Errorf("%w (see %s)", err, h.Log)
		}
		s.r.step("%s: vnic run, pid %d, uplink %s %s", h.Name(), p.Cmd.Process.Pid, h.Uplink, h.Underlay)
	}
	return nil
}

// waitForPeers waits until both connection managers have found each other.
func (s *scene) waitForPeers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("the hosts' connection managers did not find each other in 20 s"))
	defer cancel()
	for _, h := range s.hosts {
		for {
			nic, err := control.NewClient(h.Control).NIC(ctx)
			if err == nil && len(nic.Peers) == 1 && nic.Peers[0].Up && nic.Peers[0].Functions > 0 {
				break
			}
			select {
			case <-ctx.Done():
				return contextCause(ctx, err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	s.r.step("hosts: connection managers joined by mutual TLS 1.3")
	return nil
}

func (s *scene) work(ctx context.Context) error {
	s.r.step("work: each guest in turn drives every operation, the other serves and checks")
	return s.guests.work(ctx)
}

// finish prints the table and the paths of logs and captures. It returns an error if a row was not
// verified or a foreign frame was on the bridge.
func (s *scene) finish() error {
	bad := s.r.table() + s.r.streams()
	var errs []error
	if bad > 0 {
		errs = append(errs, fmt.Errorf("%d rows were not verified", bad))
	}
	if failed := s.r.programs(); failed > 0 {
		errs = append(errs, fmt.Errorf("%d verbs programs failed", failed))
	}
	if s.sniffer != nil {
		n, err := s.sniffer.Close()
		s.sniffer = nil
		errs = append(errs, err)
		s.r.step("bridge: %d PSP, %d ARP, %d ND frames, %d others", n.PSP, n.ARP, n.ND, n.ICMPv6+n.Other)
		if n.ICMPv6+n.Other > 0 {
			errs = append(errs, fmt.Errorf("%d frames on the bridge were neither PSP nor ARP nor ND", n.ICMPv6+n.Other))
		}
		s.r.step("capture: %s", filepath.Join(s.out, "bridge.pcapng"))
	}
	if s.o.capture != "" {
		s.r.step("captures: %s (docs/troubleshooting.md says how to read them)", filepath.Join(s.out, "host*.pcapng"))
	}
	s.r.step("logs and configs: %s", s.out)
	return errors.Join(errs...)
}

// tearDown undoes everything in reverse order.
func (s *scene) tearDown() error {
	var errs []error
	if s.guests != nil {
		errs = append(errs, s.guests.stop())
	}
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	if s.sniffer != nil {
		_, err := s.sniffer.Close()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
