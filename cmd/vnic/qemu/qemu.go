package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/image"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/qemu"
)

// options are the flags of `vnic qemu`.
type options struct {
	config string
	cid    uint32
	run    bool
	memory string
	accel  string
	only   []string          // functions to attach; empty: all functions of the guest
	taps   map[string]string // TAPs of ports, by function
	qmp    string
	line   qemu.CommandLine
	image  string
	over   string // overlay of the disk
	exec   string
	reboot bool
	json   bool

	libvirt bool
}

// defaultGuestMemory is enough for a small distribution and a driver's buffers.
const defaultGuestMemory = "1G"

func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "qemu -c FILE --guest CID [flags] [-- QEMU arguments]",
		Short: "print or run the QEMU command line of a guest",
		Long: `Prints the QEMU command line of a guest with the functions that a NIC's
configuration assigns to it. It has memory that the NIC can map, the vsock device
that the NIC serves, the windows and Ethernet ports of the functions, a monitor
socket, and free root ports for devices that are plugged in later. It needs stock
QEMU 7.2 or newer. With --run it becomes that QEMU.

It uses KVM if the CPU has virtualization and /dev/kvm can be opened, otherwise
TCG. Arguments after -- are passed to QEMU unchanged.

With --libvirt it prints the guest as a domain of libvirt instead. libvirt runs QEMU
as another user (libvirt-qemu), who has to be able to open the NIC's sockets.`,
		Example: `  vnic qemu -c nic.yaml --guest 1001 --disk debian-12.qcow2 -- -snapshot
  vnic image --out guest && vnic qemu -c nic.yaml --guest 1001 --image guest --share work --run
  vnic qemu -c nic.yaml --guest 1001 --run --kernel vmlinuz --initrd initrd.img --append console=ttyS0
  vnic qemu -c nic.yaml --guest 1001 --disk debian-12.qcow2 --libvirt >guest.xml && virsh define guest.xml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) == 0 || dash == 0 {
				return nil
			}
			if cli.Nearest(args[0], cli.Subcommands(cmd)) != "" {
				return cli.UnknownCommand(cmd, args[0])
			}
			return cli.Usagef("%sunexpected argument %q: QEMU's own arguments come after --", cli.Place(cmd), args[0])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.line.Extra = args
			return guestLine(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	p := cmd.PersistentFlags()
	p.StringVarP(&o.config, "config", "c", "", "the NIC's configuration")
	p.Uint32Var(&o.cid, "guest", 0, "vsock context id of the guest, as in the configuration")
	p.StringVar(&o.qmp, "qmp", "", "socket of QEMU's monitor (default: beside that of the guest)")
	p.StringToStringVar(&o.taps, "tap", nil, "TAPs of the guest's ports, as pf0.vf1=gtap1 (default: the port's name with g appended)")
	f := cmd.Flags()
	f.StringSliceVar(&o.only, "functions", nil, "windows and ports of these functions only (default: all of the guest's)")
	f.IntVar(&o.line.HotPlug, "hotplug", 2, "root ports for windows and ports that are plugged in later, 0 to 8")
	cli.JSONFlag(f, &o.json)
	f.BoolVar(&o.run, "run", false, "run it instead of printing it")
	f.BoolVar(&o.libvirt, "libvirt", false, "print a domain for libvirt 9 or newer, in XML, for virsh define")
	f.StringVar(&o.memory, "memory", "", "the guest's memory, as 512M or 4G (default "+defaultGuestMemory+")")
	f.IntVar(&o.line.CPUs, "cpus", 1, "the guest's CPUs")
	f.StringVar(&o.accel, "accel", "auto", "auto, kvm or tcg")
	f.StringVar(&o.line.Binary, "qemu", "", "QEMU's program (default qemu-system-x86_64, or that for the architecture of --image)")
	f.StringVar(&o.line.Name, "name", "", "name in process lists (default vnic-guestCID)")
	f.StringVar(&o.image, "image", "", "`folder` that vnic image made: boot it, with a shell on the console")
	f.StringVar(&o.exec, "exec", "", "with --image: run this instead of the shell, as \"guest info\" or \"/usr/bin/iperf3 -s\", and power off")
	f.BoolVar(&o.reboot, "reboot", false, "with --image: start again when the guest reboots or crashes, instead of ending")
	f.StringVar(&o.line.Share, "share", "", "`folder` of the host for the guest: /share with --image, else 9p with the tag share")
	f.StringVar(&o.line.Kernel, "kernel", "", "kernel to boot directly")
	f.StringVar(&o.line.Initrd, "initrd", "", "initial RAM disk of that kernel")
	f.StringVar(&o.line.Append, "append", "", "command line of that kernel")
	f.BoolVar(&o.line.IOMMU, "iommu", false, "give the guest an IOMMU, so that its programs can use interrupts of windows through vfio-pci")
	f.StringVar(&o.line.Disk, "disk", "", "disk image to boot")
	f.StringVar(&o.line.DiskFormat, "disk-format", "", "of that image, raw or qcow2 (default qcow2 if its name ends so, else raw)")
	f.StringVar(&o.over, "overlay", "", "with --disk: `file` (qcow2) that keeps what this guest writes, made if there is none; the disk stays as it is")
	_ = cmd.MarkPersistentFlagRequired("config")
	_ = cmd.MarkPersistentFlagRequired("guest")
	cmd.MarkFlagsMutuallyExclusive("libvirt", "run")
	cmd.MarkFlagsMutuallyExclusive("libvirt", "json")
	cmd.MarkFlagsMutuallyExclusive("libvirt", "hotplug") // libvirt has root ports of its own
	_ = cmd.RegisterFlagCompletionFunc("guest", completeGuests)
	_ = cmd.RegisterFlagCompletionFunc("disk-format", cli.Words(qemu.DiskRaw, qemu.DiskQcow2))
	_ = cmd.RegisterFlagCompletionFunc("accel", cli.Words("auto", "kvm", "tcg"))
	cmd.AddCommand(statusCommand(&o), plugCommand(&o), unplugCommand(&o))
	return cmd
}

// load reads the configuration and finds out how the guest reaches the NIC.
func (o *options) load() (cfg *config.Config, own []config.NamedFunction, err error) {
	if cfg, err = config.Load(o.config); err != nil {
		return nil, nil, err
	}
	if own = cfg.FunctionsOf(o.cid); len(own) == 0 && len(o.only) == 0 {
		return nil, nil, fmt.Errorf("%s: no function is assigned to guest %d; give one `guest: {cid: %d}`", o.config, o.cid, o.cid)
	}
	if own, err = o.choose(cfg, own); err == nil {
		err = errors.Join(o.checkTAPs(own), o.attach(cfg, own))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", o.config, err)
	}
	return cfg, own, nil
}

// checkTAPs returns an error if --tap names a function without a TAP, because that TAP would be
// ignored.
func (o *options) checkTAPs(own []config.NamedFunction) error {
	for _, name := range slices.Sorted(maps.Keys(o.taps)) {
		i := slices.IndexFunc(own, func(f config.NamedFunction) bool { return f.String() == name })
		if i < 0 {
			return fmt.Errorf("--tap %s: guest %d has no such function; it has %s", name, o.cid, functionNames(own))
		}
		if p := own[i].Port; p == nil || p.Mode != config.PortBridged {
			return fmt.Errorf("--tap %s: that function has no port with mode bridged, which is what a TAP of the guest plugs into", name)
		}
	}
	return nil
}

// choose returns the functions named on the command line. It asks the NIC for functions that were
// assigned to the guest while the NIC runs.
func (o *options) choose(cfg *config.Config, own []config.NamedFunction) (chosen []config.NamedFunction, err error) {
	if len(o.only) == 0 {
		return own, nil
	}
	for _, name := range o.only {
		i := slices.IndexFunc(own, func(f config.NamedFunction) bool { return f.String() == name })
		if i >= 0 {
			chosen = append(chosen, own[i])
			continue
		}
		f, ok := o.ask(cfg, name)
		if !ok {
			return nil, fmt.Errorf("guest %d has no function %s; it has %s", o.cid, name, cmp.Or(functionNames(own), "none"))
		}
		chosen = append(chosen, f)
	}
	return chosen, nil
}

// ask looks up a function of the guest that exists in the running NIC but not in the configuration.
func (o *options) ask(cfg *config.Config, name string) (f config.NamedFunction, ok bool) {
	if cfg.Control == "" {
		return f, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), monitorTimeout)
	defer cancel()
	fs, err := control.NewClient(cfg.Control).Functions(ctx)
	if err != nil {
		return f, false
	}
	for _, v := range cli.Named(fs, name) {
		id, err := pfvf.ParseID(v.ID)
		if err != nil || v.Guest != fmt.Sprintf("cid %d", o.cid) {
			continue
		}
		made := cfg.DefaultVF(id.PF(), id.VF())
		made.Tenant = v.Tenant
		made.Address, _ = netip.ParseAddr(v.Addr)
		if p := v.Port; p != nil {
			made.Port = &config.Port{Type: p.Type, Socket: p.Socket, Listen: p.Listen, Queues: p.Queues, Name: p.Name, Mode: p.Mode, Bridge: p.Bridge, MTU: p.MTU}
		}
		_ = made.MAC.UnmarshalText([]byte(v.MAC))
		return config.NamedFunction{PF: id.PF(), VF: id.VF(), Function: &made}, true
	}
	return f, false
}

func functionNames(fs []config.NamedFunction) string {
	var names []string
	for _, f := range fs {
		names = append(names, f.String())
	}
	return strings.Join(names, ", ")
}

// guestStart is what `vnic qemu --json` prints.
type guestStart struct {
	Guest uint32      `json:"guest"`
	Argv  []string    `json:"argv"`
	Ports []qemu.Port `json:"ports"` // their TAPs must exist
}

func guestLine(ctx context.Context, o *options, w io.Writer) error {
	cfg, own, err := o.load()
	if err != nil {
		return err
	}
	if err := o.boot(ctx); err != nil {
		return err
	}
	o.line.Version = qemu.VersionOf(o.line.Program())
	if o.line.Name == "" {
		o.line.Name = fmt.Sprintf("vnic-guest%d", o.cid)
	}
	switch o.accel {
	case "auto":
	case string(qemu.KVM), string(qemu.TCG):
		o.line.Accel = qemu.Accel(o.accel)
	default:
		return cli.Usagef("--accel %q: choose auto, kvm or tcg", o.accel)
	}
	if o.run {
		return o.become()
	}
	if o.libvirt {
		domain, err := o.line.Domain()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, domain)
		return err
	}
	if o.json {
		argv, err := o.line.Argv()
		if err != nil {
			return err
		}
		return cli.PrintJSON(w, guestStart{o.cid, argv, o.line.Ports})
	}
	text, err := o.line.Shell()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "# Guest %d of NIC %s. Start `vnic run` first: QEMU needs its socket.\n", o.cid, cfg.NIC.Name)
	for _, f := range own {
		fmt.Fprintf(w, "#   %s: tenant %d, address %s\n", f, f.Tenant, f.Address)
		if p := o.port(f); p != nil && p.Socket != "" {
			fmt.Fprintf(w, "#     its port: the NIC's, at %s\n", p.Socket)
		} else if p != nil {
			fmt.Fprintf(w, "#     its port: %s\n", p.MakeTAP())
		}
	}
	_, err = io.WriteString(w, text)
	return err
}

// attach sets the devices by which the guest reaches the NIC, and the size of the guest's memory,
// which the configuration defines for the kernel's vsock.
func (o *options) attach(cfg *config.Config, own []config.NamedFunction) error {
	var wanted config.Size
	memory := o.memory
	if memory == "" {
		memory = defaultGuestMemory
	}
	if err := wanted.UnmarshalText([]byte(memory)); err != nil {
		return cli.Usagef("--memory: %w", err)
	}
	o.line.Memory = int64(wanted)
	for _, f := range own {
		if p := o.port(f); p != nil {
			p.Speed = portSpeed(cfg, f)
			o.line.Ports = append(o.line.Ports, *p)
		}
	}
	for i := range cfg.Attach {
		a := &cfg.Attach[i]
		switch a.Type {
		case config.AttachVhostUser:
			if a.CID == o.cid {
				o.line.Vsock, o.line.Monitor = a.Socket, o.monitor(strings.TrimSuffix(a.Socket, ".sock"))
				if a.Windows {
					for _, f := range own {
						o.line.Windows = append(o.line.Windows, qemu.Window{Function: f.String(), Socket: a.WindowSocket(f)})
					}
				}
				return nil
			}
		case config.AttachVfioUser:
			if a.CID == o.cid {
				o.line.Monitor = o.monitor(strings.TrimSuffix(a.Socket, ".sock"))
				for _, f := range own {
					o.line.Vfio = append(o.line.Vfio, qemu.Vfio{Function: f.String(), Socket: a.WindowSocket(f), MSI: a.PCI.Interrupts == config.PCIMSI})
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
				o.line.Memory, o.line.Monitor = int64(size), o.monitor(ram.File)
				o.line.KernelVsock = &qemu.KernelVsock{CID: o.cid, RAMFile: ram.File}
				return nil
			}
		}
	}
	return fmt.Errorf("nothing under attach serves guest %d with memory; add {type: vhost-user, cid: %d, socket: …}", o.cid, o.cid)
}

// monitor returns the path of QEMU's monitor socket: the one given by a flag, or else a path beside
// another file of the guest.
func (o *options) monitor(beside string) string {
	if o.qmp != "" {
		return o.qmp
	}
	return beside + ".qmp"
}

// port returns the guest's side of a function's port, or nil if the guest has none. A direct port
// has none, because its device is an interface of the host.
func (o *options) port(f config.NamedFunction) *qemu.Port {
	if p := f.Port; p != nil && p.Type == config.PortVhostUser {
		return &qemu.Port{Function: f.String(), Socket: p.Socket, Server: p.Listen == config.ListenGuest, Queues: p.Queues, MAC: f.MAC.String(), MTU: p.MTU}
	}
	if f.Port == nil || f.Port.Mode != config.PortBridged {
		return nil
	}
	tap := o.taps[f.String()]
	if tap == "" {
		tap = f.Port.Name[:min(len(f.Port.Name), maxIfName-1)] + "g"
	}
	return &qemu.Port{Function: f.String(), TAP: tap, Bridge: f.Port.Bridge, MAC: f.MAC.String(), MTU: f.Port.MTU}
}

// portSpeed returns the speed of a function's port in Mbit/s; the function's driver reads the same
// value. QEMU keeps the speed with which it is started, even if the function's rate changes later.
func portSpeed(cfg *config.Config, f config.NamedFunction) int {
	speed := uint64(cfg.Uplink.Speed / 1e6)
	if f.MaxTxRate != 0 {
		speed = min(speed, f.MaxTxRate)
	}
	return int(speed)
}

const maxIfName = 15

// become replaces this process by QEMU.
func (o *options) become() error {
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
			return fmt.Errorf("%s is not a socket, so the attachment of guest %d cannot use it; remove it, or choose another path", s, o.cid)
		}
	}
	for _, p := range o.line.Ports {
		if p.Socket != "" {
			continue
		}
		device, err := net.InterfaceByName(p.TAP)
		if err != nil {
			return fmt.Errorf("port of %s: there is no TAP %s; make it (%s) or name another with --tap", p.Function, p.TAP, p.MakeTAP())
		}
		if device.MTU < p.MTU {
			return fmt.Errorf("port of %s: TAP %s has MTU %d and the port %d: longer packets would be lost; ip link set %[2]s mtu %[4]d", p.Function, p.TAP, device.MTU, p.MTU)
		}
	}
	if !slices.Contains(o.line.Extra, "-serial") {
		fmt.Fprintln(os.Stderr, "The guest's console: Ctrl-A X ends the guest, Ctrl-A H lists the other keys.")
	}
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, argv, os.Environ()))
}

// imageArgs are kernel arguments that make the kernel fast and make QEMU exit when the guest ends. norandmaps
// spares TCG from translating programs again at other addresses, each time that they are started.
const imageArgs = "panic=-1 loglevel=4 random.trust_cpu=on mitigations=off norandmaps cryptomgr.notests"

// boot checks --disk, makes its overlay, and sets the options that --image and --share imply.
func (o *options) boot(ctx context.Context) error {
	if o.line.Share != "" {
		st, err := os.Stat(o.line.Share)
		if err != nil || !st.IsDir() {
			return fmt.Errorf("--share %s: no folder of that name; make it first", o.line.Share)
		}
	}
	switch f := o.line.DiskFormat; {
	case f != "" && f != qemu.DiskRaw && f != qemu.DiskQcow2:
		return cli.Usagef("--disk-format %s: want %s or %s", f, qemu.DiskRaw, qemu.DiskQcow2)
	case f != "" && o.line.Disk == "":
		return cli.Usagef("--disk-format needs --disk")
	case o.over != "" && o.line.Disk == "":
		return cli.Usagef("--overlay needs --disk")
	case o.over != "" && f != "":
		return cli.Usagef("--overlay takes the format of the disk from its name; leave --disk-format out")
	}
	if o.over != "" {
		if err := qemu.Overlay(ctx, o.line.Disk, o.over); err != nil {
			return err
		}
		o.line.Disk, o.line.DiskFormat = o.over, qemu.DiskQcow2
	}
	if o.image == "" {
		if o.reboot {
			return cli.Usagef("--reboot needs --image; without it, guests restart anyway")
		}
		if o.exec != "" {
			return cli.Usagef("--exec needs --image; for a kernel of your own write the command after -- in --append")
		}
		return nil
	}
	if o.line.Kernel != "" || o.line.Initrd != "" || o.line.Disk != "" {
		return cli.Usagef("--image has a kernel and a RAM disk: leave out --kernel, --initrd and --disk")
	}
	kernel, initrd, size, err := image.Files(o.image)
	if err != nil {
		return fmt.Errorf("--image %s: no guest there: make one with vnic image --out %[1]s", o.image)
	}
	if o.line.ARM64, err = image.IsARM64(kernel); err != nil {
		return fmt.Errorf("--image %s: %w", o.image, err)
	}
	own := "console=ttyS0 no_timer_check"
	if o.line.ARM64 {
		own = "console=ttyAMA0" // Linux hands words that it does not know to init
	}
	o.line.Kernel, o.line.Initrd = kernel, initrd
	if least := 4 * size; o.line.Memory < least { // the kernel gives the root file system half of what is left
		return cli.Usagef("--memory: %d MiB are too little for an image of %d MiB, which is unpacked in memory; give it %d MiB or more", o.line.Memory>>20, size>>20, least>>20)
	}
	words := append([]string{own, imageArgs}, strings.Fields(o.line.Append)...)
	if o.exec != "" {
		if strings.ContainsAny(o.exec, "\"'") {
			return cli.Usagef("--exec %q: quotes do not survive the kernel's command line; put the command into a script in the shared folder, and write /bin/sh /share/SCRIPT", o.exec)
		}
		words = append(append(words, "--"), strings.Fields(o.exec)...)
	}
	o.line.Append = strings.Join(words, " ")
	o.line.NoReboot = !o.reboot
	return nil
}

// completeGuests offers the context ids of the guests in a configuration.
func completeGuests(cmd *cobra.Command, _ []string, _ string) (cids []string, _ cobra.ShellCompDirective) {
	path, _ := cmd.Flags().GetString("config")
	if cfg, err := config.Load(path); err == nil {
		for _, a := range cfg.Attach {
			if a.CID != 0 {
				cids = append(cids, strconv.FormatUint(uint64(a.CID), 10))
			}
		}
	}
	return cids, cobra.ShellCompDirectiveNoFileComp
}
