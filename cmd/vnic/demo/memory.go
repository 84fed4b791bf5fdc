package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/run"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fabric"
)

// memoryScene is two NICs in this process, on an Ethernet segment in memory, and two bare clients. It
// needs nothing of the machine.
type memoryScene struct {
	o    Options
	r    *report
	run  string         // folder of sockets
	undo []func() error // in reverse order
}

// memoryMTU carries RDMA MTU 4096 sealed.
const memoryMTU = 4500

const memoryConfig = `# Written by vnic demo.
nic: {host: %[1]d}
control: %[3]s/host%[1]d.ctl
uplink: {backend: memory, name: up%[1]d, mtu: 4500, address: 10.99.0.%[1]d/24}
rdma: {mtu: 4096}
cm: {listen: 127.0.0.1:%[4]d, identity: %[6]s}
peers:
  - {host: %[2]d, underlay: 10.99.0.%[2]d, cm: 127.0.0.1:%[5]d, identity: vnic://demo/host/%[2]d, tenants: [100]}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 10.0.0.%[1]d, guest: {unix: guest}}
attach:
  - {type: unix, name: guest, socket: %[3]s/guest%[1]d.sock}
%[7]s`

func (s *memoryScene) later(undo func() error) { s.undo = append(s.undo, undo) }

func (s *memoryScene) up(ctx context.Context) (err error) {
	runtime.LockOSThread() // the clients die with the thread that starts them
	var removeRun func() error
	if s.run, removeRun, err = labkit.RunDir("vnic-demo-"); err != nil {
		return err
	}
	s.later(removeRun)
	ports, err := labkit.FreePorts()
	if err != nil {
		return err
	}
	keys := filepath.Join(s.o.Out, "keys")
	if err := cmlink.Init(keys, "demo", []string{"1", "2"}); err != nil {
		return err
	}
	s.r.step("keys: an identity for each host in %s", keys)
	segment := fabric.New(memoryMTU)
	var cfgs [2]*config.Config
	for i := range cfgs {
		me, peer := i+1, 2-i
		name, more := filepath.Join(s.o.Out, fmt.Sprintf("host%d", me)), ""
		if s.o.capture != "" {
			more = fmt.Sprintf("capture: {file: %s.pcapng, mode: %s}\n", name, s.o.capture)
		}
		text := fmt.Sprintf(memoryConfig, me, peer, s.run, ports[i], ports[1-i], keys, more)
		if err := os.WriteFile(name+".yaml", []byte(text), 0o644); err != nil {
			return err
		}
		if cfgs[i], err = config.Load(name + ".yaml"); err != nil {
			return err
		}
		if err := s.start(ctx, segment, cfgs[i], name+".log"); err != nil {
			return fmt.Errorf("host %d: %w", me, err)
		}
		s.r.step("host %d: in this process, on a network in memory", me)
	}
	for _, cfg := range cfgs {
		if _, err := control.NewClient(cfg.Control).Wait(ctx, func(n control.NIC) error {
			if !n.Peers[0].Up || n.Peers[0].Functions == 0 {
				return errors.New("the peer is down")
			}
			return nil
		}, nil); err != nil {
			return err
		}
	}
	s.r.step("hosts: connection managers joined by mutual TLS 1.3")
	return nil
}

// start runs a NIC in a goroutine and returns when it serves.
func (s *memoryScene) start(ctx context.Context, segment *fabric.Switch, cfg *config.Config, log string) error {
	logFile, err := os.Create(log)
	if err != nil {
		return err
	}
	s.later(logFile.Close)
	uplink, err := segment.Port(cfg.Uplink.Name)
	if err != nil {
		return err
	}
	deps := device.Deps{Uplink: uplink, Log: slog.New(slog.NewTextHandler(logFile, nil))}
	if err := run.OpenGuests(cfg, &deps); err != nil {
		return errors.Join(err, uplink.Close())
	}
	nic, err := device.NewNIC(cfg, deps)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- nic.Run(ctx) }()
	select {
	case <-nic.Ready():
		s.later(func() error {
			cancel()
			return <-ended
		})
		return nil
	case err := <-ended:
		cancel()
		return err
	}
}

func (s *memoryScene) workload(ctx context.Context, guest int, args ...string) (*exec.Cmd, error) {
	args = append([]string{"guest", "workload", "--device", fmt.Sprintf("unix://%s/guest%d.sock", s.run, guest+1)}, args...)
	cmd := exec.CommandContext(ctx, labkit.Self(), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func (s *memoryScene) finish() error {
	s.r.step("logs and configurations: %s", s.o.Out)
	return nil
}

func (s *memoryScene) down() error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
