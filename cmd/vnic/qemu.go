package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/qemu"
)

// qemuOptions are the flags of `vnic qemu`.
type qemuOptions struct {
	config string
	cid    uint32
	run    bool
	memory string
	accel  string
	line   qemu.Line
}

// defaultGuestMemory is enough for a small distribution and a driver's buffers.
const defaultGuestMemory = "1G"

func qemuCommand() *cobra.Command {
	var o qemuOptions
	cmd := &cobra.Command{
		Use:   "qemu -c FILE --guest CID [flags] [-- QEMU arguments]",
		Short: "print or run the QEMU command line of a guest",
		Long: `Prints the command line that gives a guest the functions assigned to it in a
NIC's configuration: stock QEMU 7.2 or newer, memory that the NIC can map, and
the vsock device that the NIC serves. With --run it becomes that QEMU.

KVM is used where the CPU offers virtualization and /dev/kvm can be opened,
else TCG. Arguments after -- are passed to QEMU as they are.`,
		Example: `  vnic qemu -c nic.yaml --guest 1001 --disk debian-12.qcow2 -- -snapshot
  vnic wait -s /run/vnic/nic1.sock && vnic qemu -c nic.yaml --guest 1001 --run --kernel vmlinuz --initrd initrd.img --append console=ttyS0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
				return fmt.Errorf("unexpected argument %q: QEMU's own arguments come after --", args[0])
			}
			o.line.Extra = args
			return guestLine(&o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.config, "config", "c", "", "the NIC's configuration")
	f.Uint32Var(&o.cid, "guest", 0, "vsock context id of the guest, as in the configuration")
	f.BoolVar(&o.run, "run", false, "run it instead of printing it")
	f.StringVar(&o.memory, "memory", "", "the guest's memory, as 512M or 4G (default "+defaultGuestMemory+")")
	f.IntVar(&o.line.CPUs, "cpus", 1, "the guest's CPUs")
	f.StringVar(&o.accel, "accel", "auto", "auto, kvm or tcg")
	f.StringVar(&o.line.Binary, "qemu", "qemu-system-x86_64", "QEMU's program")
	f.StringVar(&o.line.Name, "name", "", "name in process lists (default vnic-guestCID)")
	f.StringVar(&o.line.Kernel, "kernel", "", "kernel to boot directly")
	f.StringVar(&o.line.Initrd, "initrd", "", "initial RAM disk of that kernel")
	f.StringVar(&o.line.Append, "append", "", "command line of that kernel")
	f.StringVar(&o.line.Disk, "disk", "", "disk image to boot, qcow2 or raw")
	_ = cmd.MarkFlagRequired("config")
	_ = cmd.MarkFlagRequired("guest")
	return cmd
}

func guestLine(o *qemuOptions, w io.Writer) error {
	cfg, err := config.Load(o.config)
	if err != nil {
		return err
	}
	own := cfg.FunctionsOf(o.cid)
	if len(own) == 0 {
		return fmt.Errorf("%s: no function is assigned to guest %d; give one `guest: {cid: %d}`", o.config, o.cid, o.cid)
	}
	if err := o.attach(cfg); err != nil {
		return fmt.Errorf("%s: %w", o.config, err)
	}
	if o.line.Name == "" {
		o.line.Name = fmt.Sprintf("vnic-guest%d", o.cid)
	}
	switch o.accel {
	case "auto":
	case string(qemu.KVM), string(qemu.TCG):
		o.line.Accel = qemu.Accel(o.accel)
	default:
		return fmt.Errorf("--accel %q: choose auto, kvm or tcg", o.accel)
	}
	if o.run {
		return o.exec()
	}
	text, err := o.line.Shell()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "# Guest %d of NIC %s. Start `vnic run` first: QEMU needs its socket.\n", o.cid, cfg.NIC.Name)
	for _, f := range own {
		fmt.Fprintf(w, "#   %s: tenant %d, address %s\n", f, f.Tenant, f.Address)
	}
	_, err = io.WriteString(w, text)
	return err
}

// attach fills in how the guest reaches the NIC, and its memory: with the
// kernel's vsock the configuration says how much that is.
func (o *qemuOptions) attach(cfg *config.Config) error {
	var wanted config.Size
	memory := o.memory
	if memory == "" {
		memory = defaultGuestMemory
	}
	if err := wanted.UnmarshalText([]byte(memory)); err != nil {
		return fmt.Errorf("--memory: %w", err)
	}
	o.line.Memory = int64(wanted)
	for i := range cfg.Attach {
		a := &cfg.Attach[i]
		switch a.Type {
		case config.AttachVhostUser:
			if a.CID == o.cid {
				o.line.Vsock = a.Socket
				if a.Windows {
					for _, f := range cfg.FunctionsOf(o.cid) {
						o.line.Windows = append(o.line.Windows, a.WindowSocket(f))
					}
				}
				return nil
			}
		case config.AttachVsock:
			for _, ram := range a.RAM {
				if ram.CID != o.cid {
					continue
				}
				size := ram.Extent()
				if o.memory != "" && wanted != size {
					return fmt.Errorf("--memory %s: attach[%d].ram gives guest %d a layout of %s; leave --memory out or change the layout", o.memory, i, o.cid, size)
				}
				o.line.Memory = int64(size)
				o.line.KernelVsock = &qemu.KernelVsock{CID: o.cid, RAMFile: ram.File}
				return nil
			}
		}
	}
	return fmt.Errorf("nothing under attach serves guest %d with memory; add {type: vhost-user, cid: %d, socket: …}", o.cid, o.cid)
}

// exec makes this process QEMU.
func (o *qemuOptions) exec() error {
	argv, err := o.line.Argv()
	if err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("%w; install it (Debian: qemu-system-x86) or name it with --qemu", err)
	}
	if s := o.line.Vsock; s != "" {
		fi, err := os.Stat(s)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("socket %s does not exist: start `vnic run -c %s` first and wait for it (vnic wait)", s, o.config)
		case err != nil:
			return err
		case fi.Mode()&fs.ModeSocket == 0:
			return fmt.Errorf("%s is no socket: something else is in the way of the attachment of guest %d", s, o.cid)
		}
	}
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, argv, os.Environ()))
}
