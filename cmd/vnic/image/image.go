package image

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// Files in the folder that `vnic image` creates.
const (
	kernelFile   = "vmlinuz"
	unpackedFile = "vmlinux" // not for every kernel
	initrdFile   = "initrd"
)

// options are the flags of `vnic image`.
type options struct {
	out, kernel              string
	packages, modules, files []string
	json                     bool

	arch, program string

	disk, suite, mirror, sshKey string
}

// madeDisk is what `vnic image --disk --json` prints.
type madeDisk struct {
	Disk  string `json:"disk"`
	Suite string `json:"suite"`
	Bytes int64  `json:"bytes"`
}

// madeImage is what `vnic image --json` prints.
type madeImage struct {
	Folder   string          `json:"folder"`
	Release  string          `json:"kernel"`
	Bytes    int64           `json:"initrd_bytes"`
	Packages []image.Package `json:"packages"`
}

func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "image",
		Short: "make a bootable guest: Debian's kernel and packages, and this program",
		Long: `Makes a folder with Debian's stock kernel and an initial RAM disk that is the
guest's whole system: a shell, tools for networks and NICs (iproute2, ping, tcpdump,
iperf3, perftest, Soft-RoCE's modules), the packages you add, and this program as
vnic. "vnic qemu --image FOLDER --run" boots it.

Packages come from the apt sources of this machine, which must run Debian. They and
the kernel are kept in ~/.cache/vnic and not installed here, so root is not needed.
In the guest, packages are unpacked but not configured: programs work, services are
not set up. The whole guest is in memory, and each start begins from the same state.
Put files that must survive in a shared folder ("vnic qemu --share").

With --disk it makes a whole Debian with systemd instead, on a disk in format qcow2
that boots by itself: "vnic qemu --disk FILE --overlay GUEST.qcow2 --run". Its packages
are configured, and what a guest writes survives in its overlay. This needs mmdebstrap,
fakeroot, qemu-utils, grub-common and grub-pc-bin; without root also uidmap.`,
		Example: `  vnic image --out guest
  vnic image --out guest --package python3 --package strace --file test.py:/root/test.py
  vnic image --out guest --module ./driver.ko
  vnic image --disk debian.qcow2 --ssh-key ~/.ssh/id_ed25519.pub --package ./ibverbs-provider-vnic.deb`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.disk != "" {
				return o.makeDisk(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			made, err := o.make(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.json {
				return cli.PrintJSON(cmd.OutOrStdout(), made)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: kernel %s, %d packages, %d MiB; boot it with vnic qemu --image %[1]s --run\n", made.Folder, made.Release, len(made.Packages), made.Bytes>>20)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.out, "out", "o", "guest-image", "`folder` to make the guest in; its kernel and RAM disk are replaced")
	f.StringSliceVarP(&o.packages, "package", "p", nil, "one more Debian `package`, with its dependencies; with --disk also a file, as ./NAME.deb")
	f.StringSliceVar(&o.modules, "module", nil, "one more module of the kernel, by name, or your own as FILE.ko; loaded at boot")
	f.StringSliceVar(&o.files, "file", nil, "a `FILE[:PATH]` of this machine, or a folder with its content; without PATH it goes to /root")
	f.StringVar(&o.kernel, "kernel", "", "another kernel than Debian's current one: the `folder` of an unpacked kernel package, the one in which you built it, or its image")
	f.StringVar(&o.arch, "arch", string(image.AMD64), "the guest's architecture: amd64 or arm64")
	f.StringVar(&o.program, "program", "", "`file` with this program for the guest's architecture (default: this one)")
	f.StringVar(&o.disk, "disk", "", "make a whole Debian on a disk, in this `file` (qcow2), which is replaced")
	f.StringVar(&o.suite, "suite", "bookworm", "Debian's release on the disk: bookworm (12) or trixie (13)")
	f.StringVar(&o.mirror, "mirror", "", "`URL` of a mirror of Debian for the disk (default: that of this machine's apt)")
	f.StringVar(&o.sshKey, "ssh-key", "", "`file` with the public keys by which one logs in as root on the disk's Debian")
	cli.JSONFlag(f, &o.json)
	for _, other := range []string{"out", "kernel", "arch", "program"} {
		cmd.MarkFlagsMutuallyExclusive("disk", other)
	}
	_ = cmd.RegisterFlagCompletionFunc("arch", cli.Words(string(image.AMD64), string(image.ARM64)))
	_ = cmd.RegisterFlagCompletionFunc("suite", cli.Words(slices.Sorted(maps.Keys(image.Suites))...))
	return cmd
}

func (o *options) makeDisk(ctx context.Context, out, progress io.Writer) error {
	cache, err := image.DefaultCache()
	if err != nil {
		return err
	}
	d := image.Disk{Suite: o.suite, Mirror: o.mirror, Packages: o.packages, Modules: o.modules, Program: labkit.Self()}
	if d.Put, err = o.put(); err != nil {
		return err
	}
	if o.sshKey != "" {
		if d.SSHKeys, err = os.ReadFile(o.sshKey); err != nil {
			return fmt.Errorf("--ssh-key: %w", err)
		}
		if bytes.Contains(d.SSHKeys, []byte("PRIVATE KEY")) {
			return cli.Usagef("--ssh-key %s: this is the private key; the public one is most likely %[1]s.pub", o.sshKey)
		}
	}
	if err := d.Write(ctx, filepath.Dir(cache), o.disk, progress); err != nil {
		return err
	}
	st, err := os.Stat(o.disk)
	if err != nil {
		return err
	}
	if o.json {
		return cli.PrintJSON(out, madeDisk{o.disk, o.suite, st.Size()})
	}
	_, err = fmt.Fprintf(out, "%s: Debian %s, %d MiB; boot it with vnic qemu --disk %[1]s --overlay GUEST.qcow2 --run\n", o.disk, image.Suites[o.suite], st.Size()>>20)
	return err
}

func (o *options) make(ctx context.Context, progress io.Writer) (m madeImage, err error) {
	for flag, value := range map[string]string{"mirror": o.mirror, "ssh-key": o.sshKey} {
		if value != "" {
			return m, cli.Usagef("--%s needs --disk", flag)
		}
	}
	for _, p := range o.packages {
		if strings.Contains(p, "/") {
			return m, cli.Usagef("--package %s: files with packages are for --disk, where they are installed", p)
		}
	}
	cache, err := image.DefaultCache()
	if err != nil {
		return m, err
	}
	arch, program := image.Arch(o.arch), cmp.Or(o.program, labkit.Self())
	if arch != image.AMD64 && arch != image.ARM64 {
		return m, cli.Usagef("--arch %s: want amd64 or arm64", o.arch)
	}
	if string(arch) != runtime.GOARCH && o.program == "" {
		return m, cli.Usagef("--arch %s: this program is for %s; name the one for the guest by --program (make cross builds build/vnic-arm64)", arch, runtime.GOARCH)
	}
	r := image.Initramfs{Init: program, Modules: append(append([]string{}, image.GuestModules...), o.modules...)}
	if r.Put, err = o.put(); err != nil {
		return m, err
	}
	fmt.Fprintln(progress, "Debian's kernel and packages, downloaded what is missing in", filepath.Dir(cache))
	if o.kernel != "" {
		r.Kernel, err = image.OpenKernel(o.kernel)
	} else {
		r.Kernel, err = image.FetchRelease(ctx, cache, o.arch)
	}
	if err != nil {
		return m, err
	}
	if o.kernel != "" { // it need not have all that Debian's has
		usual, err := r.Kernel.With(image.GuestModules)
		if err != nil {
			return m, err
		}
		r.Modules = append(usual, o.modules...)
	}
	if r.Packages, err = arch.FetchPackages(ctx, filepath.Dir(cache), append(append([]string{}, image.Packages...), o.packages...)); err != nil {
		return m, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return m, err
	}
	if err := copyKernel(r.Kernel, o.out); err != nil {
		return m, err
	}
	initrd := filepath.Join(o.out, initrdFile)
	if err := r.Write(initrd); err != nil {
		return m, err
	}
	st, err := os.Stat(initrd)
	if err != nil {
		return m, err
	}
	return madeImage{o.out, r.Kernel.Release, st.Size(), r.Packages}, nil
}

// put parses the values of --file.
func (o *options) put() (files []image.Put, err error) {
	for _, f := range o.files {
		from, to, _ := strings.Cut(f, ":")
		if _, err := os.Stat(from); err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		if to == "" {
			to = "/root/" + filepath.Base(from)
		}
		if !strings.HasPrefix(to, "/") {
			return nil, cli.Usagef("--file %s: write the path in the guest with a leading /", f)
		}
		files = append(files, image.Put{From: filepath.Clean(from), To: to})
	}
	return files, nil
}

// Files returns the kernel and the initial RAM disk in a folder that vnic image made, and the size of
// the RAM disk.
func Files(folder string) (kernel, initrd string, size int64, err error) {
	kernel, initrd = filepath.Join(folder, unpackedFile), filepath.Join(folder, initrdFile)
	if _, err := os.Stat(kernel); err != nil {
		kernel = filepath.Join(folder, kernelFile)
	}
	st, err := os.Stat(initrd)
	if err != nil {
		return "", "", 0, err
	}
	return kernel, initrd, st.Size(), nil
}

// IsARM64 reports whether a kernel that Files returned is for arm64. An unpacked one is x86's.
func IsARM64(kernel string) (bool, error) {
	if filepath.Base(kernel) == unpackedFile {
		return false, nil
	}
	arch, err := image.KernelArch(kernel)
	return arch == image.ARM64, err
}

// copyKernel copies a kernel into a guest's folder and replaces the one there.
func copyKernel(k image.Kernel, dir string) error {
	if err := copyFile(k.Image, filepath.Join(dir, kernelFile)); err != nil {
		return err
	}
	unpacked := filepath.Join(dir, unpackedFile)
	if k.Unpacked != "" {
		return copyFile(k.Unpacked, unpacked)
	}
	if err := os.Remove(unpacked); !errors.Is(err, os.ErrNotExist) { // of another kernel
		return err
	}
	return nil
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
