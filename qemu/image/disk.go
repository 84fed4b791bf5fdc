package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// DiskPackages are the Debian packages of a disk, besides those of priority required: systemd and
// what one expects of an installed system, and programs for trying out a NIC.
var DiskPackages = []string{
	"systemd-sysv", "systemd-resolved", "libpam-systemd", "dbus", "udev", "linux-image-amd64", "initramfs-tools", "zstd",
	"openssh-server", "qemu-guest-agent", "iproute2", "iputils-ping", "ethtool", "tcpdump", "pciutils", "kmod", "procps", "less", "nano",
	"rdma-core", "ibverbs-utils", "rdmacm-utils", "perftest", "iperf3", "fio",
}

// Suites are the releases of Debian that a disk can have, with their versions.
var Suites = map[string]string{"bookworm": "12", "trixie": "13"}

// Disk describes a whole Debian with systemd, on a disk from which a PC's BIOS boots.
type Disk struct {
	Suite    string   // one of Suites
	Mirror   string   // of Debian; "": those of this machine's apt
	Packages []string // besides DiskPackages; a file with a package if there is a slash in the name
	Modules  []string // that the kernel loads at boot, by name
	Program  string   // becomes /usr/local/bin/vnic
	SSHKeys  []byte   // that root accepts, as in authorized_keys; none: no login by ssh
	Put      []Put    // further files
}

// diskSize is the size of a disk's file system, as the guest sees it. The image file is as long as
// what is used of it.
const diskSize = 8 << 30

// Write builds the disk and writes it to path, in format qcow2. The file appears complete or not at
// all. Packages of Debian's come from the cache (FetchDebian). Without root it takes user namespaces;
// owners of files are kept by fakeroot then.
//
//	FetchDebian ──► tar ─┐
//	files of this machine┴► mmdebstrap (in the new Debian: setup) ──► tar ──► mke2fs -d ─┐
//	                                                       MBR, GRUB with its own modules ┴► qemu-img ──► qcow2
func (d Disk) Write(ctx context.Context, cache, to string, progress io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("disk %s: %w", to, err)
		}
	}()
	names, files := d.packages()
	for _, f := range append([]string{d.Program, filepath.Dir(to)}, files...) {
		if _, err := os.Stat(f); err != nil {
			return err
		}
	}
	if err := needTools("mmdebstrap", "fakeroot", "mke2fs", "grub-mkimage", "qemu-img"); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(grubFolder, "boot.img")); err != nil {
		return fmt.Errorf("%w; install grub-pc-bin", err)
	}
	unlock, folder, err := debianFolder(ctx, cache)
	if err != nil {
		return err
	}
	defer unlock()
	base, err := fetchDebian(ctx, folder, d.Suite, d.Mirror, names, progress)
	if err != nil {
		return err
	}
	dir, err := TempDir(folder)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := d.archive(filepath.Join(dir, addedFiles), files); err != nil {
		return err
	}
	fmt.Fprintln(progress, "installing this machine's files and packing the disk")
	raw := filepath.Join(dir, "raw")
	if err := pack(ctx, base, dir, raw); err != nil {
		return err
	}
	if err := writeLoader(ctx, dir, raw); err != nil {
		return err
	}
	made := filepath.Join(filepath.Dir(to), "."+filepath.Base(to)+".new")
	defer os.Remove(made) // fails after the rename, as intended
	if _, err := run(ctx, "", "qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, made); err != nil {
		return err
	}
	return os.Rename(made, to)
}

// packages tells packages of Debian's from files.
func (d Disk) packages() (names, files []string) {
	for _, p := range d.Packages {
		if strings.Contains(p, "/") {
			files = append(files, p)
		} else {
			names = append(names, p)
		}
	}
	return names, files
}

// toolPackages are the packages of the programs that build a disk.
var toolPackages = map[string]string{
	"mmdebstrap": "mmdebstrap", "mmtarfilter": "mmdebstrap", "fakeroot": "fakeroot", "mke2fs": "e2fsprogs",
	"grub-mkimage": "grub-common grub-pc-bin", "qemu-img": "qemu-utils", "newuidmap": "uidmap",
}

// needTools returns an error that names the missing programs and the packages that have them.
func needTools(tools ...string) error {
	if os.Geteuid() != 0 {
		tools = append(tools, "newuidmap")
	}
	var missing, packages []string
	for _, t := range tools {
		if _, err := exec.LookPath(t); err != nil {
			missing, packages = append(missing, t), append(packages, toolPackages[t])
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this machine lacks %s; apt-get install %s", strings.Join(missing, ", "), strings.Join(packages, " "))
	}
	return nil
}

// FetchDebian returns a Debian as a tar archive: DiskPackages, more packages, and all that they depend
// on, configured. It makes it where the cache has none for the same packages, mirror and kernel.
func FetchDebian(ctx context.Context, cache, suite, mirror string, more []string, progress io.Writer) (string, error) {
	unlock, folder, err := debianFolder(ctx, cache)
	if err != nil {
		return "", err
	}
	defer unlock()
	return fetchDebian(ctx, folder, suite, mirror, more, progress)
}

// debianFolder locks the folder of Debians in the cache: one at a time is made, and one disk.
func debianFolder(ctx context.Context, cache string) (unlock func(), folder string, err error) {
	folder = filepath.Join(cache, "debian")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, "", err
	}
	unlock, err = LockDir(ctx, folder)
	return unlock, folder, err
}

func fetchDebian(ctx context.Context, folder, suite, mirror string, more []string, progress io.Writer) (string, error) {
	packages := slices.Sorted(slices.Values(slices.Concat(DiskPackages, more)))
	if Suites[suite] == "" {
		return "", fmt.Errorf("suite %q: want bookworm (Debian 12) or trixie (Debian 13)", suite)
	}
	sources, err := debianSources(ctx, suite, mirror)
	if err != nil {
		return "", err
	}
	if err := needTools("mmdebstrap", "mmtarfilter"); err != nil {
		return "", err
	}
	_, kernel, _ := kernelVersion(ctx, nil, "linux-image-"+string(AMD64)) // of this machine's suite: reason enough to make it anew
	key := sha256.Sum256([]byte(strings.Join([]string{sources, strings.Join(packages, " "), kernel, initramfsModules}, "\n")))
	at := filepath.Join(folder, fmt.Sprintf("%s-%x.tar", suite, key[:6]))
	if _, err := os.Stat(at); err == nil {
		return at, nil
	}
	old, err := filepath.Glob(filepath.Join(folder, suite+"-*.tar*")) // one is enough
	if err != nil {
		return "", err
	}
	for _, o := range old {
		if err := os.Remove(o); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(progress, "making Debian %s (%s) of %d packages and what they depend on, which takes some minutes\n", Suites[suite], suite, len(packages))
	if err := bootstrap(ctx, suite, sources, packages, at+".new"); err != nil {
		return "", err
	}
	return at, os.Rename(at+".new", at)
}

// debianKeys are Debian's keys, in every Debian and in Debian's package of that name elsewhere.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// debianSources returns sources for apt: a suite with its updates, from a mirror; or from those of
// this machine's apt, with its security updates.
func debianSources(ctx context.Context, suite, mirror string) (string, error) {
	if _, err := os.Stat(debianKeys); err != nil {
		return "", fmt.Errorf("%w; install debian-archive-keyring", err)
	}
	main, security := mirror, ""
	if mirror == "" {
		main, security = "http://deb.debian.org/debian/", "http://deb.debian.org/debian-security/"
		out, err := run(ctx, "", "apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(out)) {
			switch f := strings.Fields(line); {
			case len(f) != 4 || f[0] != "Debian" || f[2] != "main":
			case f[1] == "Debian":
				main = f[3]
			case f[1] == "Debian-Security":
				security = f[3]
			}
		}
	}
	var b strings.Builder
	for _, s := range [][2]string{{main, suite}, {main, suite + "-updates"}, {security, suite + "-security"}} {
		if s[0] != "" {
			fmt.Fprintf(&b, "deb [signed-by=%s] %s %s main\n", debianKeys, s[0], s[1])
		}
	}
	return b.String(), nil
}

// initramfsModules are what a guest needs to find its disk, by whichever bus. A RAM disk with all of
// Debian's modules takes a guest under emulation many times as long to unpack.
const initramfsModules = "virtio_pci virtio_blk virtio_scsi ahci nvme sd_mod ext4"

// bootstrap has mmdebstrap make a Debian. /dev is left out: whoever unpacks the archive without root
// could not make its devices.
func bootstrap(ctx context.Context, suite, sources string, packages []string, to string) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(to)
		}
	}()
	policy := fmt.Sprintf(`d=$1/etc/initramfs-tools; mkdir -p $d/conf.d; echo MODULES=list >$d/conf.d/modules; printf '%%s\n' %s >$d/modules`, initramfsModules)
	args := []string{
		"--variant=minbase", "--format=tar", "--skip=check/signed-by", "--include=" + strings.Join(packages, ","), "--essential-hook=" + policy,
	}
	for _, u := range unwanted {
		args = append(args, "--dpkgopt=path-exclude=/"+u+"*")
	}
	filter := exec.CommandContext(ctx, "mmtarfilter", "--path-exclude=/dev/*")
	filter.Stdout = f
	return piped(ctx, "", filter, strings.NewReader(sources), append(args, suite, "-", "-"))
}

// piped runs mmdebstrap in dir and pipes its archive to another program. An error quotes what either of
// them printed last.
func piped(ctx context.Context, dir string, to *exec.Cmd, sources io.Reader, args []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	made := exec.CommandContext(ctx, "mmdebstrap", args...)
	made.Cancel = func() error { return made.Process.Signal(os.Interrupt) } // it then unmounts and removes its folder
	made.Dir, made.Env = dir, append(os.Environ(), "LC_ALL=C")
	archive, err := made.StdoutPipe()
	if err != nil {
		return err
	}
	var said [2]bytes.Buffer
	made.Stdin, made.Stderr, to.Stdin, to.Stderr = sources, &said[0], archive, &said[1]
	if err := to.Start(); err != nil {
		return err
	}
	if err := made.Start(); err != nil {
		return errors.Join(err, to.Process.Kill(), to.Wait())
	}
	packed := to.Wait()
	if packed != nil {
		cancel() // nobody reads what it makes
	}
	fail := func(name string, err error, said *bytes.Buffer) error {
		if err == nil {
			return nil
		}
		words := strings.TrimSpace(said.String())
		return fmt.Errorf("%s: %w: %s", name, err, words[max(0, len(words)-1500):])
	}
	return errors.Join(fail("mmdebstrap", made.Wait(), &said[0]), fail(filepath.Base(to.Path), packed, &said[1]))
}

//go:embed debian
var debianFiles embed.FS

// archive writes the files that are added to Debian's: this package's own, the program, packages, and
// those of the user.
func (d Disk) archive(to string, packages []string) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, mode int64, body []byte) error {
		if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: int64(len(body))}); err != nil {
			return err
		}
		_, err := w.Write(body)
		return err
	}
	addFile := func(name, from string) error {
		fi, err := os.Stat(from)
		if err != nil {
			return err
		}
		body, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return add(name, int64(fi.Mode().Perm()), body)
	}
	err := fs.WalkDir(debianFiles, "debian", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		body, err := debianFiles.ReadFile(name)
		return errors.Join(err, add(strings.TrimPrefix(name, "debian/"), 0o644, body))
	})
	errs := []error{err, addFile("usr/local/bin/vnic", d.Program)}
	if len(d.SSHKeys) > 0 {
		errs = append(errs, add("root/.ssh/authorized_keys", 0o600, d.SSHKeys))
	}
	if len(d.Modules) > 0 {
		errs = append(errs, add("etc/modules-load.d/vnic.conf", 0o644, []byte(strings.Join(d.Modules, "\n")+"\n")))
	}
	for _, p := range packages {
		errs = append(errs, addFile("var/tmp/packages/"+filepath.Base(p), p))
	}
	for _, p := range d.Put {
		errs = append(errs, filepath.WalkDir(p.From, func(at string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			return addFile(path.Join(p.To, strings.TrimPrefix(at, p.From)), at)
		}))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		return err
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// partition is where the only partition of a disk begins. GRUB is in front of it.
const partition = 1 << 20

// packScript unpacks an archive from stdin and makes a file system of it. GRUB of Debian 12 does not
// know the newest features.
const packScript = `mkdir "$1/root" && tar -xpf - -C "$1/root" &&
	mke2fs -q -t ext4 -L debian -O ^metadata_csum_seed,^orphan_file -E offset=$3 -d "$1/root" "$2" $4k`

// addedFiles is the archive of what is added to Debian's files.
const addedFiles = "added.tar"

// pack adds the archive of this machine's files to Debian's, runs setup in there, and makes a file
// system of the result, at its place in a raw disk. mmdebstrap is given paths without white space,
// relative to dir, which is beside the base.
func pack(ctx context.Context, base, dir, raw string) error {
	sh := []string{"sh", "-c", packScript, "pack", dir, raw, fmt.Sprint(partition), fmt.Sprint((diskSize - partition) >> 10)}
	if os.Geteuid() != 0 {
		sh = append([]string{"fakeroot", "--"}, sh...)
	}
	return piped(ctx, dir, exec.CommandContext(ctx, sh[0], sh[1:]...), nil, []string{
		"--variant=custom", "--format=tar", "--skip=update,check/signed-by",
		"--setup-hook=tar-in ../" + filepath.Base(base) + " /", "--customize-hook=tar-in " + addedFiles + " /", `--customize-hook=chroot "$1" sh /setup`,
		"", "-",
	})
}

// grubFolder has GRUB's modules for a PC's BIOS. It is another one in tests.
var grubFolder = "/usr/lib/grub/i386-pc"

// loaderConfig is what GRUB does first: it finds the partition and reads its configuration there.
const loaderConfig = "search.fs_label debian root\nset prefix=($root)/boot/grub\nnormal\n"

// loaderModules are GRUB's modules that this takes, and that configurations ask for.
var loaderModules = []string{"biosdisk", "part_msdos", "ext2", "search_label", "search", "normal", "linux", "configfile", "echo", "test", "serial", "terminal", "reboot", "halt", "minicmd", "ls", "cat"}

// writeLoader writes GRUB and the partition table in front of the partition. GRUB's boot sector loads
// what follows it on the disk, and grub-mkimage has put the length there (GRUB, grub-core/boot/i386/pc).
func writeLoader(ctx context.Context, dir, raw string) error {
	config, core := filepath.Join(dir, "loader.cfg"), filepath.Join(dir, "core.img")
	if err := os.WriteFile(config, []byte(loaderConfig), 0o644); err != nil {
		return err
	}
	args := []string{"--format", "i386-pc", "--directory", grubFolder, "--prefix", "/boot/grub", "--config", config, "--output", core}
	if _, err := run(ctx, "", "grub-mkimage", append(args, loaderModules...)...); err != nil {
		return err
	}
	loader, err := os.ReadFile(core)
	if err != nil {
		return err
	}
	boot, err := os.ReadFile(filepath.Join(grubFolder, "boot.img"))
	if err != nil {
		return err
	}
	if len(boot) != sector || sector+len(loader) > partition {
		return fmt.Errorf("GRUB has %d and %d bytes, room is for %d and %d", len(boot), len(loader), sector, partition-sector)
	}
	writePartition(boot, partition/sector, (diskSize-partition)/sector)
	f, err := os.OpenFile(raw, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append(boot, loader...), 0)
	return errors.Join(err, f.Truncate(diskSize), f.Close())
}

// sector is the size of a disk's sector.
const sector = 512

// writePartition writes the partition table of a boot sector: one partition, from which one boots.
func writePartition(boot []byte, start, sectors uint32) {
	clear(boot[440:510]) // signature and table
	entry := boot[446:462]
	entry[0], entry[4] = 0x80, 0x83 // active; Linux
	copy(entry[1:4], "\xfe\xff\xff")
	copy(entry[5:8], "\xfe\xff\xff") // no cylinders
	binary.LittleEndian.PutUint32(entry[8:], start)
	binary.LittleEndian.PutUint32(entry[12:], sectors)
	binary.LittleEndian.PutUint16(boot[510:], 0xaa55)
}
