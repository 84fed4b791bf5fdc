package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/agent"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// A guest is a QEMU in its host's namespace, started by the line that vnic qemu prints for the
// configuration of the host's NIC. The lab keeps the line in MACHINE.qemu, the end of what the console
// and QEMU say in MACHINE.log (watch.go), the console itself behind MACHINE.console, and QEMU's stub for gdb
// behind MACHINE.gdb. What guests with a disk write is in overlaysFolder.

// bootTime is how long a guest may take until its agent answers. Without KVM it takes ten seconds on
// an idle machine, and most of a minute at a load of 30; a whole Debian seven times as long, and a kernel that
// looks for faults longer than a guest of Debian's.
func (m *machine) bootTime() time.Duration {
	if m.Guest.Disk != "" || m.Guest.Kernel != "" {
		return 15 * time.Minute
	}
	return 5 * time.Minute
}

// overlaysFolder has the disks of labs' guests: they are too large for /run, which is in memory.
const overlaysFolder = "/var/tmp/vnic-lab"

// overlay returns the file that keeps what a guest writes to its disk, until vnic lab down.
func (m *machine) overlay() string {
	return filepath.Join(overlaysFolder, m.Lab, m.Name+"-"+hash([]byte(m.Guest.Disk))[:8]+".qcow2")
}

// kernel returns the folder of a guest's own kernel; "": it has Debian's.
func (m *machine) kernel() (string, error) {
	if m.Guest.Kernel != labfile.KernelDebug {
		return m.Guest.Kernel, nil
	}
	cache, err := image.DefaultCache()
	if err != nil {
		return "", err
	}
	built, _ := filepath.Glob(filepath.Join(filepath.Dir(cache), "driver", "debug-kernel-*", "made-with")) // written last
	if len(built) == 0 {
		return "", errors.New("the debug kernel is not built; build it with guestlib/linux/debug-kernel.sh of the project's source, which takes most of an hour")
	}
	return filepath.Dir(built[len(built)-1]), nil
}

// Bridged ports have a bridge with two TAPs on the host, named after the function.

func (m *machine) PortTAP() string    { return fmt.Sprintf("vf%d", m.VF) }
func (m *machine) GuestTAP() string   { return fmt.Sprintf("vf%dg", m.VF) }
func (m *machine) PortBridge() string { return fmt.Sprintf("vf%dbr", m.VF) }

// CID returns the context id of the guest's vsock, which only its host knows.
func (m *machine) CID() int { return 1000 + m.VF }

// AgentCID is that of a guest whose function is a PCI device: it has a vsock for its agent alone.
func (m *machine) AgentCID() int { return 2000 + m.VF }

// Agent returns the socket of that vsock.
func (m *machine) Agent() string { return m.File(".agent") }

// checkGuests returns what this machine lacks of what the file's guests need.
func (p *plan) checkGuests() error {
	var problems []error
	bad := func(m *machine, key, what, remedy string) {
		problems = append(problems, fmt.Errorf("machines.%s.guest.%s: %s; %s", m.Name, key, what, remedy))
	}
	isFolder := func(path string) bool {
		st, err := os.Stat(path)
		return err == nil && st.IsDir()
	}
	for _, m := range p.all() {
		g := m.Guest
		if g == nil {
			continue
		}
		if _, err := exec.LookPath(g.QEMU); err != nil {
			bad(m, "qemu", fmt.Sprintf("there is no program %q", g.QEMU), "install it (Debian: qemu-system-x86), or name another")
		} else if v := qemu.VersionOf(g.QEMU); g.Function == labfile.FunctionPCI && v < qemu.MinVfioUser {
			bad(m, "function", fmt.Sprintf("vfio-user needs QEMU 10.1 or newer, %s is %s", g.QEMU, v), "name a newer one by qemu, or use function: window")
		}
		if g.Image != "" {
			if _, err := os.Stat(filepath.Join(g.Image, "initrd")); err != nil {
				bad(m, "image", g.Image+" is not a guest", "make one with vnic image --out, or leave it out")
			}
		}
		if g.Share != "" && !isFolder(g.Share) {
			bad(m, "share", "there is no folder "+g.Share, "make it first")
		}
		if folder, err := m.kernel(); err != nil {
			problems = append(problems, fmt.Errorf("machines.%s.guest.kernel: %w", m.Name, err))
		} else if folder != "" {
			if _, err := image.OpenKernel(folder); err != nil {
				bad(m, "kernel", err.Error(), "name the folder in which you built it, one with boot/vmlinuz-RELEASE and lib/modules/RELEASE, or the image of one without modules")
			}
		}
		if g.Disk != "" {
			if _, err := os.Stat(g.Disk); err != nil {
				bad(m, "disk", "there is no disk "+g.Disk, "make one with vnic image --disk")
			} else if _, err := exec.LookPath("qemu-img"); err != nil {
				bad(m, "disk", "the program qemu-img is missing", "install it (Debian: qemu-utils)")
			}
		}
		if g.Driver != "" && !isFolder(filepath.Join(g.Driver, "provider")) {
			bad(m, "driver", "there is no Linux driver in "+g.Driver, "make driver builds it, in build/linux")
		}
	}
	return errors.Join(problems...)
}

// line returns the command line of a guest's QEMU, as words and for a shell.
func (m *machine) line(ctx context.Context, folder string) (argv []string, shell []byte, err error) {
	g := m.Guest
	args := []string{
		"qemu", "-c", m.host.Config(), "--guest", fmt.Sprint(m.CID()), "--name", m.Lab + "." + m.Name,
		"--memory", g.Memory.String(), "--cpus", fmt.Sprint(g.CPUs), "--accel", g.Accel, "--qemu", g.QEMU, "--hotplug", "0",
	}
	if g.Disk != "" {
		if err := os.MkdirAll(filepath.Dir(m.overlay()), 0o700); err != nil {
			return nil, nil, err
		}
		args = append(args, "--disk", g.Disk, "--overlay", m.overlay())
	} else { // a fault of the kernel ends it, and it starts again; gdb finds it where vmlinux says
		args = append(args, "--image", folder, "--reboot", "--append", "oops=panic nokaslr")
	}
	if g.Share != "" {
		args = append(args, "--share", g.Share)
	}
	if g.IOMMU || g.Function == labfile.FunctionPCI {
		args = append(args, "--iommu")
	}
	args = append(args, "--", "-monitor", "none", "-serial", "chardev:console",
		"-chardev", "socket,id=console,path="+m.File(".console")+",server=on,wait=off,logfile=/dev/stdout,logappend=on",
		"-gdb", "unix:"+m.File(".gdb")+",server=on,wait=off")
	if g.Function == labfile.FunctionPCI {
		args = append(args, "-chardev", "socket,id=agent,path="+m.Agent(), "-device", "vhost-user-vsock-pci,chardev=agent")
	}
	if shell, err = output(exec.CommandContext(ctx, program, args...)); err == nil {
		var asJSON []byte
		asJSON, err = output(exec.CommandContext(ctx, program, slices.Insert(args, 1, "--json")...))
		var start struct{ Argv []string }
		if err == nil {
			err = json.Unmarshal(asJSON, &start)
		}
		argv = start.Argv
	}
	if err != nil {
		err = fmt.Errorf("machines.%s.guest: %w", m.Name, err)
	}
	return argv, shell, err
}

// output returns what a command prints. An error quotes its standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out, err
}

// boot starts a guest, which keeps its image (images.go). The process that follows a paused guest tells it its
// names when it has booted.
func (m *machine) boot(argv []string, shell []byte, inUse *os.File, paused bool) (*daemon, error) {
	if err := os.WriteFile(m.File(".qemu"), shell, 0o644); err != nil {
		return nil, err
	}
	out, log, err := logTo(m.host.Space(), "--lab", m.Lab, "watch", m.File(".log"), m.Name, fmt.Sprintf("--first=%t", paused))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	_ = os.Remove(m.File(".gdb")) // of a QEMU that was killed
	d, err := start(m.host.Space(), nil, out, inUse, argv...)
	if err != nil {
		return nil, err
	}
	d.log = log
	return d, nil
}

// waitUntilUp waits until a guest's agent answers, and tells the guest its name and the others'.
func (p *plan) waitUntilUp(ctx context.Context, m *machine, d *daemon) error {
	return m.until(ctx, d, func(ctx context.Context) error { return p.setNames(ctx, m) })
}

// waitForGDB waits until gdb can connect to a guest's QEMU.
func (m *machine) waitForGDB(ctx context.Context, d *daemon) error {
	return m.until(ctx, d, func(context.Context) error {
		if _, err := os.Stat(m.File(".gdb")); err != nil {
			return fmt.Errorf("guest %s: %w", m.Name, err)
		}
		return nil
	})
}

// until waits until ready returns nil, or a guest's QEMU has ended.
func (m *machine) until(ctx context.Context, d *daemon, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.bootTime())
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-d.ended:
			<-d.log.ended
			return fmt.Errorf("guest %s: QEMU ended: %w\n%s", m.Name, d.err, lastLines(m.File(".log")))
		case <-ctx.Done():
			return fmt.Errorf("%w\n%s", err, lastLines(m.File(".log")))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// setNames gives a guest its name and the names of its tenant's machines.
func (p *plan) setNames(ctx context.Context, m *machine) error {
	_, err := m.ask(ctx, p.names(m.TenantNumber), "/bin/sh", "-c", `cat > /etc/hosts && echo "$0" > /proc/sys/kernel/hostname`, m.Name)
	return err
}

// addressTime is how long vnic lab up waits for the address of a guest whose agent answers, which it does before
// the guest's interfaces have asked for theirs.
const addressTime = 30 * time.Second

// waitForAddress waits until a guest has its address, and reports whether it has. A guest without an address is
// of use to somebody who looks for the fault in its driver.
func (m *machine) waitForAddress(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, addressTime)
	defer cancel()
	for !m.hasAddress(ctx) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
	return true
}

// hasAddress reports whether a guest has its address: an IPv4 address is assigned by DHCP, an IPv6 address here,
// since NICs have no DHCPv6.
func (m *machine) hasAddress(ctx context.Context) bool {
	if m.Address.Is6() {
		_, err := m.ask(ctx, "", "/bin/sh", "-c", setAddress6, m.Prefix())
		return err == nil
	}
	said, err := m.ask(ctx, "", "ip", "-o", "address", "show", "to", m.Address.String())
	return err == nil && said != ""
}

// setAddress6 gives a guest's Ethernet interface, the only one that has a device, the address $0.
const setAddress6 = `for path in /sys/class/net/*/device; do
	path=${path%/device}
	exec ip address replace "$0" dev "${path##*/}" nodad
done`

// ask runs a command in a guest, and returns what it prints.
func (m *machine) ask(ctx context.Context, input string, argv ...string) (string, error) {
	var said bytes.Buffer
	err := m.withAgent(ctx, func(c net.Conn) error {
		status, err := agent.Run(c, argv, strings.NewReader(input), &said, &said)
		if err == nil && status != 0 {
			err = errors.New(said.String())
		}
		if err != nil {
			err = fmt.Errorf("guest %s: %w", m.Name, err)
		}
		return err
	})
	return said.String(), err
}

// qemus returns the processes of the guest with a name in a host's namespace; "": of all of the lab.
func qemus(h *host, name string) (ps []process) {
	for _, p := range processes([]string{h.Space()})[h.Space()] {
		i := slices.Index(p.argv, "-name")
		if i < 0 || i+1 == len(p.argv) {
			continue
		}
		if of := p.argv[i+1]; of == space(h.Lab, name) || name == "" && strings.HasPrefix(of, space(h.Lab, "")) {
			ps = append(ps, p)
		}
	}
	return ps
}

// endGuest ends a guest.
func endGuest(m *machine) error {
	return end(func() []process { return qemus(m.host, m.Name) })
}

// guests boots the guests that do not run, or whose QEMU is to be another one, and waits for them.
func (b *builder) guests(ctx context.Context) error {
	booted := map[*machine]*daemon{}
	for _, m := range b.all() {
		if m.Guest == nil {
			continue
		}
		d, err := b.bootChanged(ctx, m)
		if err != nil {
			return err
		}
		switch {
		case d == nil:
		case m.Name == b.paused:
			if err := m.waitForGDB(ctx, d); err != nil {
				return err
			}
			b.out.step("guest %s: paused before its first instruction", m.Name)
		default:
			booted[m] = d
		}
	}
	if len(booted) > 0 {
		b.out.step("guests: %d boot", len(booted))
	}
	n := 0
	for _, m := range b.all() {
		if d := booted[m]; d != nil {
			b.out.now("guests: %d of %d are up", n, len(booted))
			if err := b.waitUntilUp(ctx, m, d); err != nil {
				return err
			}
			if !m.waitForAddress(ctx) {
				b.out.step("guest %s: no address %s; see %s", m.Name, m.Address, m.File(".log"))
			}
			if err := m.runExec(ctx); err != nil {
				return err
			}
			n++
		} else if m.Guest != nil && m.Name != b.paused { // there may be new names
			if err := b.setNames(ctx, m); err != nil {
				return err
			}
		}
	}
	if n > 0 {
		b.out.step("guests: %d started", n)
	}
	return nil
}

// bootChanged starts a guest that does not run, or whose QEMU is to be another one. It returns nil if it runs.
func (b *builder) bootChanged(ctx context.Context, m *machine) (*daemon, error) {
	folder, inUse, err := b.image(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("machines.%s.guest: %w", m.Name, err)
	}
	if inUse != nil {
		defer inUse.Close()
	}
	argv, shell, err := m.line(ctx, folder)
	if err != nil {
		return nil, err
	}
	had, _ := os.ReadFile(m.File(".qemu"))
	if bytes.Equal(had, shell) && len(qemus(m.host, m.Name)) > 0 {
		return nil, nil
	}
	if err := endGuest(m); err != nil {
		return nil, err
	}
	paused := m.Name == b.paused
	if paused {
		argv = append(argv, "-S")
	}
	return m.boot(argv, shell, inUse, paused)
}
