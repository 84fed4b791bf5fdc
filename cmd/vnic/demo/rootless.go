package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// rootless is two NICs with uplinks over UDP on the loopback interface, and a QEMU guest or a bare client
// at each. It needs no rights: each NIC is a vnic run of this user, and each guest a QEMU.
type rootless struct {
	o    Options
	r    *report
	run  string // folder of sockets
	nics [2]*config.Config
	undo []func() error // in reverse order

	kernel, initrd string // of the guests
	iperf          bool   // they have it
}

// guestMemory is a guest's RAM in MiB: for a stock kernel, one static binary and the workload's buffers.
const guestMemory = 512

const rootlessConfig = `# Written by vnic demo.
nic: {host: %[1]d}
control: %[3]s/host%[1]d.ctl
uplink: {type: udp, listen: "127.0.0.1:%[4]d", mtu: 9000}
cm: {listen: "127.0.0.1:%[4]d", identity: %[6]s}
peers:
  - {host: %[2]d, underlay: "127.0.0.1:%[5]d", cm: "127.0.0.1:%[5]d", identity: vnic://demo/host/%[2]d, tenants: [100]}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 10.0.0.%[1]d, %[7]s}
attach:
  - {%[8]s, socket: %[3]s/guest%[1]d.sock}
`

func (s *rootless) later(undo func() error) { s.undo = append(s.undo, undo) }

func (s *rootless) up(ctx context.Context) (err error) {
	runtime.LockOSThread() // NICs and guests die with the thread that starts them
	if !s.o.NoVM {
		if err := s.makeGuest(ctx); err != nil {
			return err
		}
	}
	var removeRun func() error
	if s.run, removeRun, err = labkit.RunDir("vnic-demo-"); err != nil {
		return err
	}
	s.later(removeRun)
	ports, err := labkit.FreePorts() // connection managers speak TCP there, and uplinks UDP
	if err != nil {
		return err
	}
	keys := filepath.Join(s.o.Out, "keys")
	if err := cmlink.Init(keys, "demo", []string{"1", "2"}); err != nil {
		return err
	}
	s.r.step("keys: an identity for each host in %s", keys)
	for i := range s.nics {
		me, peer := i+1, 2-i
		name := filepath.Join(s.o.Out, fmt.Sprintf("host%d", me))
		function, attach := "guest: {unix: guest}", "type: unix, name: guest"
		if !s.o.NoVM {
			function = fmt.Sprintf("guest: {cid: %d}", 1000+me)
			attach = fmt.Sprintf("type: vhost-user, cid: %d", 1000+me)
		}
		if s.iperf {
			function += fmt.Sprintf(", port: {type: vhost-user, socket: %s/port%d.sock}", s.run, me)
		}
		text := fmt.Sprintf(rootlessConfig, me, peer, s.run, ports[i], ports[1-i], keys, function, attach)
		if s.o.capture != "" {
			text += fmt.Sprintf("capture: {file: %s.pcapng, mode: %s}\n", name, s.o.capture)
		}
		if err := os.WriteFile(name+".yaml", []byte(text), 0o644); err != nil {
			return err
		}
		if s.nics[i], err = config.Load(name + ".yaml"); err != nil {
			return err
		}
		nic, err := labkit.Start(fmt.Sprintf("host %d", me), name+".log", labkit.Self(), "run", "-c", name+".yaml")
		if err != nil {
			return err
		}
		s.later(func() error {
			nic.Stop(10 * time.Second)
			return nil
		})
		s.r.step("host %d: vnic run, pid %d, user %d, uplink over UDP at 127.0.0.1:%d", me, nic.Cmd.Process.Pid, os.Geteuid(), ports[i])
		if err := nic.Until(ctx, func(ctx context.Context) error {
			_, err := control.NewClient(s.nics[i].Control).NIC(ctx)
			return err
		}); err != nil {
			return fmt.Errorf("%w; its log is %s.log", err, name)
		}
	}
	for _, cfg := range s.nics {
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

// makeGuest makes what both guests boot: Debian's stock kernel, and an initramfs with this program.
func (s *rootless) makeGuest(ctx context.Context) error {
	var k image.Kernel
	if s.o.kernel != "" {
		var err error
		if k, err = image.OpenKernel(s.o.kernel); err != nil {
			return err
		}
	} else {
		cache, err := image.DefaultCache()
		if err != nil {
			return err
		}
		s.r.step("kernel: Debian's linux-image-amd64, unpacked (not installed) in %s", cache)
		if k, err = image.FetchKernel(ctx, cache); err != nil {
			return err
		}
	}
	i := image.Initramfs{Kernel: k, Init: labkit.Self(), Modules: image.VsockModules}
	if program, err := exec.LookPath("iperf3"); err == nil {
		i.Modules, i.Programs, s.iperf = append(slices.Clone(i.Modules), "virtio_net"), []string{program}, true
	} else {
		s.r.step("guests: iperf3 is not installed, so there will be no plain IP")
	}
	s.kernel, s.initrd = k.Boot(), filepath.Join(s.o.Out, "initramfs.cpio")
	if err := i.Write(s.initrd); err != nil {
		return err
	}
	s.r.step("guests: Debian kernel %s, initramfs with this program as /init", k.Release)
	return nil
}

// workload returns QEMU itself for a guest: what the guest's program says comes out of it.
func (s *rootless) workload(ctx context.Context, guest int, args ...string) (*exec.Cmd, error) {
	attach := s.nics[guest].Attach[0]
	program, argv := labkit.Self(), append([]string{"guest", "workload", "--device", "unix://" + attach.Socket}, args...)
	if !s.o.NoVM {
		argv = append([]string{"guest", "workload", "--device", fmt.Sprintf("vsock://2:%d", abi.Port)}, args...)
		if s.iperf {
			argv = append(argv, "--ip", addresses[guest]+"/24")
		}
		m := qemu.Machine{
			Binary: s.o.qemu, Name: "vnic-" + guests[guest], Memory: guestMemory, Kernel: s.kernel, Initrd: s.initrd, InitArgs: argv, Vsock: attach.Socket,
			Console: qemu.FileChardev(filepath.Join(s.o.Out, guests[guest]+".log")), Output: qemu.FileChardev("/dev/stdout"),
		}
		if s.iperf {
			f := s.nics[guest].FunctionsOf(uint32(1001 + guest))[0]
			m.NICs = []qemu.NIC{{Port: &qemu.Port{
				Function: f.String(), Socket: f.Port.Socket, Queues: 1, MAC: f.MAC.String(), MTU: f.Port.MTU, Speed: int(config.DefaultUplinkSpeed / 1e6),
			}}}
		}
		var err error
		if argv, err = m.Args(); err != nil {
			return nil, err
		}
		program = s.o.qemu
		s.r.step("%s: QEMU boots, console %s", guests[guest], filepath.Join(s.o.Out, guests[guest]+".log"))
	}
	cmd := exec.CommandContext(ctx, program, argv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func (s *rootless) finish() error {
	s.r.step("logs and configurations: %s", s.o.Out)
	return nil
}

func (s *rootless) down() error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
