package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/qemu"
)

// Options are the flags of `vnic demo`.
type Options struct {
	NoVM    bool
	Fabric  string // "tap": a lab; "udp": without root; "" = tap for root with guests, else udp
	Out     string // folder for logs, captures, configs
	capture string // what each NIC records: "", sealed, clear or both
	kernel  string // kernel package folder to use instead of Debian's current one
	timeout time.Duration
	Windows bool   // guests ring doorbells by ivshmem windows
	iommu   bool   // and get interrupts
	PCI     bool   // guests have PCI functions by vfio-user
	driver  string // folder with the Linux driver built by make driver; "": no verbs programs
	qemu    string // QEMU's program
	count   int    // operations per row; 0 = the workload's own choice
}

func Command() *cobra.Command {
	var o Options
	demo := &cobra.Command{
		Use:   "demo",
		Short: "run RDMA and plain IP between two guests through two NICs in PSP tunnel mode",
		Long: `Makes the lab two-guests (vnic lab): two hosts on a cable, each with a NIC and a QEMU
guest. The guests run SEND, WRITE, READ and atomics from 1 byte to 1 MiB and verify
every byte. At the same time they run iperf3 over the Ethernet interfaces of their
functions' ports. At the end it prints tables and removes everything. The lab is in
namespaces that end with the demo, so other labs do not see it.

With --driver the guests then load the Linux driver and run ib_write_bw and rping,
as Debian has them, on the same functions.

With --pci each function is a PCI device of its own, by vfio-user, and the guests show
it by lspci. It needs QEMU 10.1 or newer (--qemu "$(tools/qemu.sh)").

An ordinary user gets no lab, but two NICs over UDP on the loopback interface, each a
vnic run without rights, and the same guests (--fabric udp).

With --no-vm two bare clients replace the guests, over unix sockets and shared
memory files. Then it needs neither root nor QEMU. With --fabric tap they are in the
lab two-hosts.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	f := demo.Flags()
	f.BoolVar(&o.NoVM, "no-vm", false, "two bare clients instead of QEMU guests")
	f.StringVar(&o.Fabric, "fabric", "", "between the NICs: tap (default for root with guests) or udp")
	f.StringVar(&o.Out, "out", "demo-out", "folder for logs, captures and configs; replaced")
	f.StringVar(&o.capture, "capture", "", "record what each NIC sends and receives in a.pcapng and b.pcapng: sealed, clear or both")
	f.StringVar(&o.kernel, "kernel", "", "another kernel than Debian's current one: the `folder` of an unpacked kernel package, or the one in which you built it")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "give up after this long")
	f.BoolVar(&o.Windows, "windows", false, "give the guests ivshmem devices for their doorbells")
	f.BoolVar(&o.iommu, "iommu", false, "give the guests an IOMMU too, so that those devices interrupt them")
	f.BoolVar(&o.PCI, "pci", false, "give the guests their functions as PCI devices, behind an IOMMU")
	f.StringVar(&o.driver, "driver", "", "`folder` of the Linux driver (make driver: build/linux): the guests run programs that use verbs, too")
	f.StringVar(&o.qemu, "qemu", "qemu-system-x86_64", "QEMU's `program`")
	f.IntVar(&o.count, "count", 0, "operations per row (default: by size)")
	_ = demo.RegisterFlagCompletionFunc("fabric", cli.Words("tap", "udp"))
	_ = demo.RegisterFlagCompletionFunc("capture", cli.Words(config.CaptureSealed, config.CaptureClear, config.CaptureBoth))
	return demo
}

// scene is where the two guests of the demo are.
type scene interface {
	// up makes the hosts and their guests.
	up(ctx context.Context) error

	// workload returns a command that runs vnic guest workload in a guest, with these arguments.
	workload(ctx context.Context, guest int, args ...string) (*exec.Cmd, error)

	// finish says what the scene itself has seen. It returns an error if that must not be.
	finish() error

	// down removes what up made, also if that was not all.
	down() error
}

// Names and addresses of the guests, in the labs too.
var (
	guests    = [2]string{"m1", "m2"}
	addresses = [2]string{"10.0.0.1", "10.0.0.2"}
)

// runDemo checks whether this machine can run the demo, makes the scene, runs the workload and
// reports. It always takes the scene down before it returns.
func runDemo(ctx context.Context, o Options, w io.Writer) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if o.Fabric == "tap" && !isApart() {
		return runApart(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("demo: not done after %v (--timeout)", o.timeout))
	defer cancel()
	if err := replaceFolder(o.Out); err != nil {
		return err
	}
	r := newReport(w)
	var s scene = &rootless{o: o, r: r}
	if o.Fabric == "tap" {
		s = &labScene{o: o, r: r}
	}
	defer func() {
		err = errors.Join(contextCause(ctx, err), s.down())
		if err != nil {
			r.step("logs are in %s", o.Out)
		}
	}()
	if err := s.up(ctx); err != nil {
		return err
	}
	r.step("work: each guest in turn drives every operation, the other serves and checks")
	if err := work(ctx, s, &o, r); err != nil {
		return err
	}
	return errors.Join(r.finish(), s.finish())
}

// work runs the workload in both guests.
func work(ctx context.Context, s scene, o *Options, r *report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, len(guests))
	for i, name := range guests {
		args := []string{[]string{"--first", "--second"}[i], "--peer", addresses[1-i]}
		if o.count > 0 {
			args = append(args, "--count", strconv.Itoa(o.count))
		}
		cmd, err := s.workload(ctx, i, args...)
		if err != nil {
			return err
		}
		cmd.WaitDelay = 5 * time.Second
		lines, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		said, err := os.Create(filepath.Join(o.Out, name+"-workload.log"))
		if err != nil {
			return err
		}
		cmd.Stderr = said
		err = cmd.Start()
		said.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer func() {
			cancel()
			_ = cmd.Wait() // what it says counts, not how it ends
		}()
		go func() { done <- r.follow(name, lines) }()
	}
	for range guests {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
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

// check returns an error if this machine cannot run the demo with these options. It runs before
// anything is created.
func (o *Options) check() error {
	if o.Fabric == "" {
		o.Fabric = "tap"
		if o.NoVM || os.Geteuid() != 0 {
			o.Fabric = "udp"
		}
	}
	switch {
	case o.Fabric != "tap" && o.Fabric != "udp":
		return cli.Usagef("--fabric %q: choose tap or udp", o.Fabric)
	case o.capture != "" && !slices.Contains([]string{config.CaptureSealed, config.CaptureClear, config.CaptureBoth}, o.capture):
		return cli.Usagef("--capture %q: choose sealed, clear or both", o.capture)
	case o.NoVM && o.Windows:
		return cli.Usagef("--windows is for QEMU guests: leave out --no-vm")
	case o.iommu && !o.Windows:
		return cli.Usagef("--iommu is for the interrupts of windows: add --windows")
	case o.PCI && (o.NoVM || o.Windows):
		return cli.Usagef("--pci gives QEMU guests PCI functions, which have windows of their own: leave out --no-vm and --windows")
	case o.PCI && qemu.VersionOf(o.qemu) < qemu.MinVfioUser:
		return cli.Usagef("--pci needs QEMU 10.1 or newer, %s is %s: say --qemu \"$(tools/qemu.sh)\"", o.qemu, qemu.VersionOf(o.qemu))
	case o.Fabric == "udp" && (o.Windows || o.PCI || o.driver != ""):
		return cli.Usagef("--windows, --pci and --driver are for the guests of a lab, which needs root: run with sudo, or leave them out")
	case o.Fabric == "udp" && !o.NoVM && !installed(o.qemu):
		return fmt.Errorf("there is no program %q: install it (Debian: qemu-system-x86), name another by --qemu, or use --no-vm", o.qemu)
	case o.Fabric == "tap" && os.Geteuid() != 0:
		return errors.New("TAPs, a bridge and a network namespace need root: run with sudo, or leave out --fabric tap")
	}
	out, err := filepath.Abs(o.Out)
	o.Out = out
	return err
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// contextCause returns the reason why ctx ended, if it has ended, and err otherwise.
func contextCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, context.Canceled) {
			return errors.New("interrupted; everything was removed")
		}
		return cause
	}
	return err
}
