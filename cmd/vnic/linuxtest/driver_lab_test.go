package linuxtest_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// driverPackages are the Debian packages of a guest with the Linux driver: programs that use verbs,
// and what they need.
var driverPackages = []string{"bash", "coreutils", "grep", "sed", "procps", "util-linux", "kmod", "iproute2", "mount", "ibverbs-utils", "rdmacm-utils", "perftest"}

// driverModules are the kernel modules that vnic.ko and those programs need.
var driverModules = []string{"virtio_pci", "vmw_vsock_virtio_transport", "virtio_net", "ib_uverbs", "rdma_ucm", "9p", "9pnet_virtio"}

// loadDriver loads the driver in a guest, and gives it the PCI id of windows, as docs/linux.md
// does.
const loadDriver = "insmod /root/vnic.ko && echo 1af4 1110 >/sys/bus/pci/drivers/vnic/new_id"

// driverLab has two hosts whose guests have the Linux driver and a shell.
type driverLab struct {
	*vnictest.Lab
	guests  [2]*shell
	vms     [2]*qemu.Process
	lossy   bool // packets between them are lost
	foreign bool // their devices are not vnic's
}

// driverExtras lists what a test needs in its guests besides driverPackages and driverModules.
type driverExtras struct {
	packages, modules []string
	put               []image.Put
	kernel            string // as driverKernel takes it
}

// compiled builds a program of testdata that uses verbs and puts it into a guest's /root.
func compiled(tb testing.TB, ctx context.Context, name string) image.Put {
	tb.Helper()
	at := filepath.Join(tb.TempDir(), name)
	out, err := exec.CommandContext(ctx, "gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", at, "testdata/"+name+".c", "-l:libibverbs.so.1").CombinedOutput()
	vnictest.Require(tb, err == nil, fmt.Sprintf("gcc: %v\n%s", err, out))
	return image.Put{From: at, To: "/root/" + name}
}

// quietBoot keeps the kernel from reporting a stall during boot. On a busy machine it measures the
// speed of its clock wrongly, and its time jumps when it corrects that.
var quietBoot = []string{"rcupdate.rcu_cpu_stall_suppress_at_boot=1"}

// driverImage builds the guests' kernel and RAM disk.
func driverImage(tb testing.TB, ctx context.Context, extra driverExtras) qemu.Machine {
	tb.Helper()
	cache, err := image.DefaultCache()
	if err != nil {
		tb.Fatal(err)
	}
	k, err := driverKernel(ctx, cache, extra.kernel)
	vnictest.Require(tb, err == nil, fmt.Sprint("no guest kernel: ", err))
	driver := vnictest.MakeDriver(tb, ctx, k.Release)
	ps, err := image.FetchPackages(ctx, filepath.Dir(cache), slices.Concat(extra.packages, driverPackages))
	vnictest.Require(tb, err == nil, fmt.Sprint("no packages: ", err))
	initrd := filepath.Join(tb.TempDir(), "initrd")
	if err := (image.Initramfs{
		Kernel: k, Init: vnictest.Program(tb), Modules: slices.Concat([]string{driver.Module}, driverModules, extra.modules), Packages: ps,
		Put: append([]image.Put{
			{From: driver.Provider, To: "/usr/lib/x86_64-linux-gnu/libibverbs/" + filepath.Base(driver.Provider)},
			{From: "../../../guestlib/linux/provider/vnic.driver", To: "/etc/libibverbs.d/vnic.driver"},
			{From: driver.Module, To: "/root/vnic.ko"},
			{From: "testdata/bounded.sh", To: "/root/bounded"},
		}, extra.put...),
	}).Write(initrd); err != nil {
		tb.Fatal(err)
	}
	return qemu.Machine{Memory: driverMemory(), Kernel: k.Boot(), KernelArgs: quietBoot, Initrd: initrd}
}

// inDriverLab boots a guest on each of two hosts, whose functions have windows, and waits for the
// guests' verbs devices.
func inDriverLab(t testing.TB, m qemu.Machine, f func(l *driverLab)) {
	t.Helper()
	makeDriverLab(t, vnictest.Options{Windows: true}, [2]qemu.Machine{m, m}, func(*vnictest.Lab) {}, f)
}

// makeDriverLab is inDriverLab with more options: a changed configuration (change), and a machine
// for each host. At the end it fails the test if a guest's kernel has complained.
func makeDriverLab(t testing.TB, o vnictest.Options, ms [2]qemu.Machine, change func(l *vnictest.Lab), f func(l *driverLab)) {
	t.Helper()
	bootDriverLab(t, o, ms, change, func(l *driverLab) {
		for i := range l.guests {
			l.ready(i)
		}
		f(l)
	})
}

// bootDriverLab is makeDriverLab without waiting for verbs devices.
func bootDriverLab(t testing.TB, o vnictest.Options, ms [2]qemu.Machine, change func(l *vnictest.Lab), f func(l *driverLab)) {
	t.Helper()
	vnictest.MakeLab(t, o, true, func(base *vnictest.Lab) {
		l := &driverLab{Lab: base}
		change(base)
		for i := range l.Hosts {
			l.Start(i)
		}
		l.Joined()
		defer func() {
			for _, vm := range l.vms {
				if vm != nil {
					vm.Stop()
				}
			}
		}()
		for i := range l.Hosts {
			l.boot(i, ms[i])
		}
		for _, g := range l.guests {
			g.begin()
		}
		for i, g := range l.guests {
			ip := l.Hosts[i].TenantIP // DHCP has set it, unless the machine was so busy that it gave up
			g.must(fmt.Sprintf("ip -4 addr show dev eth0 | grep -q %s || ip addr add %s/24 dev eth0", ip, ip))
		}
		defer l.sane(t)
		f(l)
	})
}

// ready waits until a guest has the verbs device of its function, with its address.
func (l *driverLab) ready(i int) {
	l.T.Helper()
	l.guests[i].eventually(fmt.Sprintf("grep -qi %q /sys/class/infiniband/*/ports/1/gids/*", gidText(l.Hosts[i].TenantIP)))
}

// prompt is the prompt of a guest's shell.
const prompt = "vnic-guest:~# "

// boot boots the guest of host i with its console on a socket. If the machine has free root ports,
// its functions are plugged in.
func (l *driverLab) boot(i int, m qemu.Machine) {
	l.T.Helper()
	h := l.Hosts[i]
	if err := h.Attach(&m); err != nil {
		l.T.Fatal(err)
	}
	var err error
	if h.PortSocket == "" {
		if h.GuestTAPFile, err = tap.OpenGuest(h.GuestTAP, h.PortBridge, h.PortMTU); err != nil {
			l.T.Fatal(err)
		}
		defer h.GuestTAPFile.Close()
	}
	console := filepath.Join(filepath.Dir(h.Socket), fmt.Sprintf("console%d", i))
	m.Console = qemu.SocketChardev(console)
	m.NICs = append([]qemu.NIC{h.GuestNIC()}, m.NICs...)
	if l.Plain {
		m.NICs = append(m.NICs, plainNIC(l.T, i))
		defer m.NICs[1].TAP.Close()
	}
	var plugged []qemu.Vfio
	if m.HotPlug > 0 {
		plugged, m.Vfio = m.Vfio, nil
	}
	if l.vms[i], err = qemu.Start(context.Background(), m); err != nil {
		l.T.Fatal(err)
	}
	for _, f := range plugged {
		if err := qemu.PlugVfio(context.Background(), l.vms[i].QMP(), f); err != nil {
			l.T.Fatal(err)
		}
	}
	conn, err := net.Dial("unix", console)
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { conn.Close() })
	l.guests[i] = &shell{t: l.T, conn: conn, name: h.Guest()}
}

// gidText returns the GID of an IPv4 address in the kernel's form.
func gidText(ip string) string {
	b := net.ParseIP(ip).To4()
	return fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3])
}

// console is a socket or a terminal.
type console interface {
	io.ReadWriter
	SetReadDeadline(time.Time) error
}

// shell is a guest's shell, on its console.
type shell struct {
	t    testing.TB
	name string
	conn console
	all  bytes.Buffer
	from int // where the output begins that until has not returned yet
	n    int
}

// begin waits for the shell and makes it print only the output of commands. Kernel messages remain
// in dmesg.
func (s *shell) begin() {
	s.t.Helper()
	s.beginAt(vnictest.Limit, prompt)
}

// beginAt is begin, for a shell with another prompt.
func (s *shell) beginAt(limit time.Duration, prompt string) {
	s.t.Helper()
	s.untilAt(time.Now().Add(slowly(limit)), prompt)
	s.must("dmesg -n 1; stty -echo; PS1=; bind 'set enable-bracketed-paste off'")
}

// until reads up to a text and returns the output before it.
func (s *shell) until(what string) string {
	s.t.Helper()
	return s.untilAt(time.Now().Add(slowly(vnictest.Limit)), what)
}

// untilAt is until with a deadline.
func (s *shell) untilAt(deadline time.Time, what string) string {
	s.t.Helper()
	_ = s.conn.SetReadDeadline(deadline)
	buf := make([]byte, 4096)
	for {
		if at := bytes.Index(s.all.Bytes()[s.from:], []byte(what)); at >= 0 {
			said := string(s.all.Bytes()[s.from : s.from+at])
			s.from += at + len(what)
			return strings.ReplaceAll(said, "\r", "")
		}
		n, err := s.conn.Read(buf)
		s.all.Write(buf[:n])
		if err != nil {
			s.t.Fatalf("%s: %v before %q:\n%s", s.name, err, what, s.all.Bytes()[s.from:])
		}
	}
}

// run runs a command and returns its output and its exit status.
func (s *shell) run(command string) (string, int) {
	s.t.Helper()
	return s.runFor(0, command)
}

// runFor is run for a command whose time limit is longer by d.
func (s *shell) runFor(d time.Duration, command string) (string, int) {
	s.t.Helper()
	s.n++
	fmt.Fprintf(s.conn, "%s\necho \"@\"@%d:$?:\n", command, s.n)
	said := s.untilAt(time.Now().Add(d+slowly(vnictest.Limit)), fmt.Sprintf("@@%d:", s.n))
	status, err := strconv.Atoi(s.until(":"))
	if err != nil {
		s.t.Fatalf("%s: exit status of %s: %v", s.name, command, err)
	}
	return strings.TrimSpace(said), status
}

// must runs a command that must succeed, and returns its output.
func (s *shell) must(command string) string {
	s.t.Helper()
	said, status := s.run(command)
	if status != 0 {
		s.t.Fatalf("%s: exit status %d of %s:\n%s\n%s", s.name, status, command, said, s.kernel())
	}
	return said
}

// eventually repeats a command until it succeeds.
func (s *shell) eventually(command string) {
	s.t.Helper()
	limit := slowly(vnictest.Limit)
	said, status := s.runFor(limit, fmt.Sprintf("end=$((SECONDS+%d)); until { %s; } || [ $SECONDS -ge $end ]; do sleep 0.1; done >/dev/null 2>&1; %s", int(limit.Seconds()), command, command))
	if status != 0 {
		s.t.Fatalf("%s: exit status %d of %s, for %v:\n%s\n%s", s.name, status, command, limit, said, s.kernel())
	}
}

func (s *shell) kernel() string {
	said, _ := s.run("dmesg | tail -n 30")
	return said
}

// expand replaces the names in a command: {dev} is the host's verbs device, {gid} and {local} are
// the indexes of its address and of its link-local address, {ip} is its address and {peer} the
// other's.
func (l *driverLab) expand(i int, command string) string {
	h := l.Hosts[i]
	return strings.NewReplacer("{dev}", "-d "+l.device(i), "{gid}", l.gid(i), "{local}", l.gidLike(i, "^fe80:"), "{ip}", h.TenantIP, "{peer}", h.PeerGI).Replace(command)
}

func (l *driverLab) device(i int) string {
	return l.guests[i].must("ls /sys/class/infiniband")
}

// gid returns the index of the function's address in the GID table.
func (l *driverLab) gid(i int) string {
	return l.gidLike(i, gidText(l.Hosts[i].TenantIP))
}

// gidLike returns the index of the first GID that a pattern matches.
func (l *driverLab) gidLike(i int, pattern string) string {
	return filepath.Base(l.guests[i].must(fmt.Sprintf("grep -li %q /sys/class/infiniband/*/ports/1/gids/* | sort -V | head -n 1", pattern)))
}

// keepConsoles writes the guests' consoles to the folder in VNIC_DRIVER_LOG.
func (l *driverLab) keepConsoles() {
	if dir := os.Getenv("VNIC_DRIVER_LOG"); dir != "" {
		for i, g := range l.guests {
			_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("guest%d.log", i+1)), g.all.Bytes(), 0o600)
		}
	}
}

// driverKernel returns the kernel of the guests: the wanted one, or that of VNIC_DRIVER_KERNEL, or
// Debian's current one. wanted is the release of a Debian kernel (uname -r), "newest" for the
// newest in this Debian, or the folder of an unpacked kernel.
func driverKernel(ctx context.Context, cache, wanted string) (image.Kernel, error) {
	wanted = cmp.Or(wanted, os.Getenv("VNIC_DRIVER_KERNEL"))
	switch {
	case wanted == "":
		return image.FetchKernel(ctx, cache)
	case strings.Contains(wanted, "/"):
		return image.OpenKernel(wanted)
	case wanted == "newest":
		out, err := exec.CommandContext(ctx, "../../../guestlib/linux/fetch.sh", wanted).Output()
		if err != nil {
			return image.Kernel{}, fmt.Errorf("fetch.sh %s: %w", wanted, err)
		}
		wanted = strings.TrimSpace(string(out))
	}
	return image.FetchRelease(ctx, cache, wanted)
}

// debugged reports whether the guests have the kernel of guestlib/linux/debug-kernel.sh (make
// driver-debug).
var debugged = strings.Contains(os.Getenv("VNIC_DRIVER_KERNEL"), "/debug-kernel-")

// driverMemory returns the memory of the driver's guests in MiB.
func driverMemory() int {
	if debugged {
		return 1536 // KASAN needs shadow memory, and keeps freed memory for a while
	}
	return 1024 // half of it is for what the initramfs holds: packages and this program
}

// slowly returns the time limit, in the guests, of something that may take d with Debian's kernel.
func slowly(d time.Duration) time.Duration {
	if debugged {
		return 4 * d
	}
	return d
}

// complaints matches the messages of a kernel that found a fault in itself or in a driver, or that
// stopped looking for faults.
var complaints = regexp.MustCompile(`(?m)^.*(` + strings.Join([]string{
	"BUG:", "WARNING:", "Oops", "general protection", "Call Trace", "hung_task", "blocked for more", "refcount_t",
	"KASAN:", "UBSAN:", "ODEBUG:", "possible .*lock", "suspicious RCU", "sleeping function called", `list_\w+ corruption`,
	"DMA-API:.* (out of memory|disabl)", "turning off the locking", "lockdep is turned off",
}, "|") + `).*$`)

// sane fails the test if a guest's kernel has complained.
func (l *driverLab) sane(t testing.TB) {
	t.Helper()
	for _, g := range l.guests {
		if g == nil {
			continue
		}
		g.t = t
		said, _ := g.run("dmesg")
		said = perftestCrash.ReplaceAllString(said, "")
		if at := complaints.FindStringIndex(said); at != nil {
			t.Errorf("%s: its kernel complains: %s\n%s", g.name, said[at[0]:at[1]], said[at[0]:])
		}
	}
}
