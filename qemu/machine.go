package qemu

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Machine describes a guest: a q35 PC that boots a kernel directly. Its only devices are two serial
// ports and, optionally, a vhost-user vsock, windows, vfio-user functions, Ethernet interfaces,
// free root ports and a disk.
type Machine struct {
	Binary     string   // QEMU's program, default qemu-system-x86_64
	Name       string   // shown in process lists
	Memory     int      // MiB, default 256
	CPUs       int      // default 1
	Accel      Accel    // default: DetectAccel
	Kernel     string   // file
	Initrd     string   // file
	KernelArgs []string // appended to the kernel's command line; Linux passes words it does not know to init
	InitArgs   []string // arguments of init, without white space or quotes
	Vsock      string   // socket of a VhostUser; empty: no vsock device
	Windows    []Window // of its functions
	Vfio       []Vfio   // vfio-user functions
	IOMMU      bool     // as CommandLine.IOMMU
	NICs       []NIC    // Ethernet interfaces
	HotPlug    int      // as CommandLine.HotPlug
	Disk       string   // raw image; QEMU discards what the guest writes
	Console    Chardev  // ttyS0, required
	Output     Chardev  // ttyS1
	Monitor    Chardev  // QMP
}

// Chardev says where a character device of QEMU leads. The zero value discards the output.
type Chardev struct {
	kind  string
	value string
}

// FileChardev returns a Chardev that writes to a file, which QEMU creates or truncates.
func FileChardev(path string) Chardev { return Chardev{"file", path} }

// SocketChardev returns a Chardev that listens on a unix socket and does not wait for a client.
func SocketChardev(path string) Chardev { return Chardev{"socket", path} }

// fdChardev returns a Chardev that uses a connected socket inherited by QEMU.
func fdChardev(fd int) Chardev { return Chardev{"fd", strconv.Itoa(fd)} }

func (c Chardev) arg(id string) string {
	switch c.kind {
	case "file":
		return "file,id=" + id + ",path=" + escape(c.value)
	case "socket":
		return "socket,id=" + id + ",path=" + escape(c.value) + ",server=on,wait=off"
	case "fd":
		return "socket,id=" + id + ",fd=" + c.value
	}
	return "null,id=" + id
}

// maxCommandLine is COMMAND_LINE_SIZE of Linux on x86; it includes the terminating zero.
const maxCommandLine = 2048

// maxInitArgs is CONFIG_INIT_ENV_ARG_LIMIT of Linux.
const maxInitArgs = 32

// baseKernelArgs make the guest print to ttyS0, exit instead of rebooting after a panic, and run
// fast. norandmaps loads programs at the same addresses in each run: at other addresses TCG would
// translate them again, which took more than a third of the time of a test that runs many programs.
// notests leaves out the tests of the kernel's own ciphers.
var baseKernelArgs = []string{
	"console=ttyS0", "panic=-1", "loglevel=4", "random.trust_cpu=on", "mitigations=off", "no_timer_check", "norandmaps", "cryptomgr.notests",
}

// Args returns QEMU's arguments, without the program. Memory is a shared memfd,
// which a vhost-user device needs.
func (m *Machine) Args() ([]string, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	append1, err := m.commandLine()
	if err != nil {
		return nil, err
	}
	accel := m.Accel
	if accel == "" {
		accel = DetectAccel()
	}
	memory := m.memory()
	args := []string{
		"-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
		"-machine", machineType(m.IOMMU), "-accel", string(accel), "-cpu", cpuModel(accel),
		"-smp", smp(m.CPUs, accel), "-m", fmt.Sprintf("%dM", memory),
		"-object", fmt.Sprintf("memory-backend-memfd,id=m0,size=%dM,share=on", memory),
		"-kernel", m.Kernel, "-append", append1,
		"-chardev", m.Console.arg("console"), "-serial", "chardev:console",
		"-chardev", m.Output.arg("output"), "-serial", "chardev:output",
	}
	if m.Name != "" {
		args = append(args, "-name", escape(m.Name))
	}
	if m.Initrd != "" {
		args = append(args, "-initrd", m.Initrd)
	}
	if m.IOMMU {
		args = append(args, iommuArgs(len(m.Vfio) > 0)...)
	}
	if m.Vsock != "" {
		args = append(args, vsockArgs(m.Vsock)...)
	}
	for i, w := range m.Windows {
		args = append(args, slices.Concat(windowArgs(w, windowAddress(i, len(m.Windows), m.IOMMU))...)...)
	}
	for i, f := range m.Vfio {
		args = append(args, f.args(windowAddress(len(m.Windows)+i, len(m.Windows)+len(m.Vfio), m.IOMMU))...)
	}
	for i := range m.HotPlug {
		args = append(args, "-device", rootPort(i))
	}
	if m.Disk != "" {
		args = append(args, "-drive", "file="+escape(m.Disk)+",if=virtio,format=raw,snapshot=on")
	}
	taps, version := 0, sync.OnceValue(func() Version { return VersionOf(m.binary()) })
	for _, n := range m.NICs {
		args = append(args, n.args(taps, version, accel)...)
		if n.TAP != nil {
			taps++
		}
	}
	if m.Monitor != (Chardev{}) {
		args = append(args, "-chardev", m.Monitor.arg("monitor"), "-mon", "chardev=monitor,mode=control")
	}
	return args, nil
}

func (m *Machine) memory() int {
	if m.Memory == 0 {
		return 256
	}
	return m.Memory
}

func (m *Machine) binary() string {
	if m.Binary == "" {
		return "qemu-system-x86_64"
	}
	return m.Binary
}

func (m *Machine) name() string {
	if m.Name == "" {
		return filepath.Base(m.binary())
	}
	return m.Name
}

func (m *Machine) check() error {
	switch {
	case m.Kernel == "":
		return errors.New("machine without a kernel")
	case m.Console == (Chardev{}):
		return errors.New("machine without a console: say where its ttyS0 goes")
	case m.memory() < 64:
		return fmt.Errorf("machine with %d MiB of memory, a Linux guest needs 64 or more", m.Memory)
	case m.CPUs < 0 || m.CPUs > 255:
		return fmt.Errorf("machine with %d CPUs, want 1 to 255", m.CPUs)
	}
	for _, n := range m.NICs {
		if err := n.check(); err != nil {
			return err
		}
	}
	return nil
}

// commandLine returns the kernel's command line. Linux passes the words after "--" to init.
func (m *Machine) commandLine() (string, error) {
	words := append(append([]string{}, baseKernelArgs...), m.KernelArgs...)
	if len(m.InitArgs) > maxInitArgs {
		return "", fmt.Errorf("%d arguments for init, Linux passes at most %d", len(m.InitArgs), maxInitArgs)
	}
	if len(m.InitArgs) > 0 {
		words = append(append(words, "--"), m.InitArgs...)
	}
	for _, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\r\n\"") {
			return "", fmt.Errorf("kernel argument %q: empty words, white space and quotes do not survive the kernel's command line", w)
		}
	}
	line := strings.Join(words, " ")
	if len(line) >= maxCommandLine {
		return "", fmt.Errorf("kernel command line of %d bytes, the limit is %d", len(line), maxCommandLine-1)
	}
	return line, nil
}
