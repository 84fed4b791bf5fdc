package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kernel is an unpacked kernel package.
type Kernel struct {
	Release string // as printed by uname -r in the guest
	Image   string // vmlinuz
	Modules string // folder of this release's modules; "": it has none
	Arch    Arch

	// Unpacked is vmlinux, the kernel that Image unpacks when it starts. It is empty if the folder
	// has none.
	Unpacked string
}

// Boot returns the file to boot: the unpacked kernel if there is one, else Image. If QEMU emulates
// the processor, unpacking the kernel takes two thirds of a guest's boot (4 s of 6).
func (k Kernel) Boot() string {
	if k.Unpacked != "" {
		return k.Unpacked
	}
	return k.Image
}

// unpacked reports whether there is nothing more to unpack: only x86's image unpacks itself.
func (k Kernel) unpacked() bool { return k.Unpacked != "" || k.Arch != AMD64 }

// DefaultCache returns this user's cache folder for unpacked kernels and packages.
func DefaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("folder for guest kernels: %w; set XDG_CACHE_HOME", err)
	}
	return filepath.Join(dir, "vnic", "kernels"), nil
}

// OpenKernel returns the kernel in a folder: one with the content of a Debian kernel package, or one in
// which a kernel was built. A file is the image of a kernel without modules.
func OpenKernel(dir string) (Kernel, error) {
	if k, err := builtKernel(dir); k.Image != "" || err != nil {
		return k, err
	}
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return Kernel{}, err
	}
	if len(images) != 1 {
		return Kernel{}, fmt.Errorf("kernel folder %s: %d files boot/vmlinuz-*, want one", dir, len(images))
	}
	k := Kernel{Image: images[0], Release: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")}
	if k.Arch, err = KernelArch(k.Image); err != nil {
		return Kernel{}, err
	}
	unpacked := filepath.Join(dir, "boot", "vmlinux-"+k.Release)
	if _, err := os.Stat(unpacked); err == nil {
		k.Unpacked = unpacked
	}
	for _, lib := range []string{"lib/modules", "usr/lib/modules"} {
		k.Modules = filepath.Join(dir, lib, k.Release)
		if fi, err := os.Stat(k.Modules); err == nil && fi.IsDir() {
			return k, nil
		}
	}
	return Kernel{}, fmt.Errorf("kernel folder %s: no modules for %s", dir, k.Release)
}

// builtKernel returns the kernel that was built in a folder, or whose image a file is, if there is one.
func builtKernel(path string) (k Kernel, err error) {
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		k.Image, k.Release = path, filepath.Base(path)
	} else if release, err := os.ReadFile(filepath.Join(path, "include/config/kernel.release")); err == nil {
		k.Image, k.Release, k.Modules = filepath.Join(path, "arch/x86/boot/bzImage"), strings.TrimSpace(string(release)), path
	} else {
		return k, nil
	}
	k.Arch, err = KernelArch(k.Image)
	return k, err
}

// KernelArch returns the architecture for which a kernel image is, by the magic number of its header
// (Linux Documentation/arch/x86/boot.rst, Documentation/arch/arm64/booting.rst).
func KernelArch(path string) (Arch, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for arch, h := range map[Arch]struct {
		at    int64
		magic string
	}{AMD64: {headerMagic, "HdrS"}, ARM64: {56, "ARM\x64"}} {
		magic := make([]byte, len(h.magic))
		if _, err := f.ReadAt(magic, h.at); err == nil && string(magic) == h.magic {
			return arch, nil
		}
	}
	return "", fmt.Errorf("%s is not a bootable kernel image", path)
}

var kernelPackage = regexp.MustCompile(`^linux-image-[0-9][0-9a-z.+~-]*-(amd64|arm64)$`)

// FetchKernel returns Debian's current kernel from the cache folder, downloading
// its package there first if needed. It uses apt's sources and checks (apt-get
// verifies what it downloads) and dpkg-deb, and installs nothing.
func FetchKernel(ctx context.Context, cache string) (Kernel, error) {
	return FetchRelease(ctx, cache, string(AMD64))
}

// FetchRelease is like FetchKernel, for the Debian kernel with the given release (as printed by
// uname -r), or for the current one of an architecture.
func FetchRelease(ctx context.Context, cache, release string) (Kernel, error) {
	env, err := archOf(release).apt(ctx, filepath.Dir(cache))
	if err != nil {
		return Kernel{}, err
	}
	name := "linux-image-" + release
	if k, ok := lastAnswer(cache, name); ok {
		return k, nil
	}
	began := time.Now()
	k, err := fetchRelease(ctx, env, cache, name)
	if err != nil {
		return k, fmt.Errorf("guest kernel: %w", err)
	}
	keepAnswer(cache, name, k, began)
	return k, nil
}

// Where apt keeps no cache of its own, as in containers, it takes a second to say which kernel a name stands
// for. So its last answer is kept, as a link from the name to the kernel's folder, until apt's lists or
// settings change.

// aptFiles match what apt's answers follow from.
var aptFiles = []string{"/var/lib/apt/lists", "/etc/apt", "/etc/apt/*", "/etc/apt/*/*"}

// aptChanged returns when apt's lists or settings changed last. cache is the folder of kernels: lists of
// other architectures are beside it.
func aptChanged(cache string) (last time.Time) {
	for _, pattern := range append([]string{filepath.Join(filepath.Dir(cache), "apt-*", "lists")}, aptFiles...) {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if st, err := os.Stat(f); err == nil && st.ModTime().After(last) {
				last = st.ModTime()
			}
		}
	}
	return last
}

func lastAnswer(cache, name string) (Kernel, bool) {
	link := filepath.Join(cache, name)
	st, err := os.Lstat(link)
	if err != nil || !st.ModTime().After(aptChanged(cache)) {
		return Kernel{}, false
	}
	folder, err := os.Readlink(link)
	if err != nil {
		return Kernel{}, false
	}
	k, err := OpenKernel(filepath.Join(cache, folder))
	return k, err == nil && k.unpacked()
}

// keepAnswer keeps what apt said, unless it might say something else since it was asked. An answer that
// cannot be kept is asked for again.
func keepAnswer(cache, name string, k Kernel, asked time.Time) {
	link := filepath.Join(cache, name)
	_ = os.Remove(link)
	if aptChanged(cache).After(asked) {
		return
	}
	_ = os.Symlink(filepath.Base(filepath.Dir(filepath.Dir(k.Image))), link)
}

func fetchRelease(ctx context.Context, env []string, cache, name string) (Kernel, error) {
	pkg, version, err := kernelVersion(ctx, env, name)
	if err != nil {
		return Kernel{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Kernel{}, err
	}
	dir := filepath.Join(cache, pkg+"_"+version)
	if k, err := OpenKernel(dir); err == nil && k.unpacked() {
		return k, nil
	}
	unlock, err := LockDir(ctx, cache)
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	k, err := OpenKernel(dir) // another process may have been faster
	if err != nil {
		if err := os.RemoveAll(dir); err != nil { // a folder that is not usable
			return Kernel{}, err
		}
		if err := download(ctx, env, cache, dir, pkg, version); err != nil {
			return Kernel{}, err
		}
		if k, err = OpenKernel(dir); err != nil {
			return Kernel{}, err
		}
	}
	if !k.unpacked() {
		if k.Unpacked, err = unpackImage(ctx, cache, k.Image); err != nil {
			return Kernel{}, err
		}
	}
	return k, nil
}

// kernelVersion returns the name and version of a kernel package, or of the one that a meta package
// depends on.
func kernelVersion(ctx context.Context, env []string, asked string) (name, version string, err error) {
	out, err := runWith(ctx, env, "", "apt-cache", "depends", asked)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w; a Debian system with apt sources is needed (or name an unpacked kernel package)", asked, err)
	}
	name = asked
	for line := range strings.Lines(string(out)) {
		if _, dep, ok := strings.Cut(line, "Depends: "); ok && kernelPackage.MatchString(strings.TrimSpace(dep)) {
			name = strings.TrimSpace(dep)
			break
		}
	}
	if !kernelPackage.MatchString(name) {
		return "", "", fmt.Errorf("%s depends on no kernel package; run apt-get update", asked)
	}
	out, err = runWith(ctx, env, "", "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			return name, strings.TrimSpace(v), nil
		}
	}
	return "", "", fmt.Errorf("apt knows no version of %s; run apt-get update", name)
}

// download fetches and unpacks a package into a new folder beside dir and
// renames it when it is complete.
func download(ctx context.Context, env []string, cache, dir, pkg, version string) (err error) {
	if _, err := exec.LookPath("xz"); err != nil && compressesModules(pkg) {
		return fmt.Errorf("the modules of %s are compressed, and this machine lacks xz; apt-get install xz-utils", pkg)
	}
	tmp, err := TempDir(cache)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if _, err := runWith(ctx, env, tmp, "apt-get", "-o", "APT::Sandbox::User=root", "download", pkg+"="+version); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %d packages", pkg, len(debs))
	}
	root := filepath.Join(tmp, "root")
	if _, err := run(ctx, tmp, "dpkg-deb", "-x", debs[0], root); err != nil {
		return err
	}
	// Guests load modules as they are.
	if _, err := run(ctx, tmp, "find", root, "-name", "*.ko.xz", "-exec", "xz", "--decompress", "{}", "+"); err != nil {
		return err
	}
	if _, err := OpenKernel(root); err != nil {
		return err
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	return os.Rename(root, dir)
}

// compressesModules tells whether the modules in a kernel package of Debian's are compressed, as they are
// since 6.6.
func compressesModules(pkg string) bool {
	var major, minor int
	_, err := fmt.Sscanf(pkg, "linux-image-%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 6)
}

// LockDir locks a cache folder, so that other processes do not download or make the same at the same time.
func LockDir(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { // flock cannot be interrupted; it returns when the other process has finished
		done <- unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}()
	select {
	case err := <-done:
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		return func() { f.Close() }, nil
	case <-ctx.Done():
		go func() { <-done; f.Close() }()
		return nil, fmt.Errorf("another process works in %s: %w", dir, ctx.Err())
	}
}

// TempDir creates a temporary folder in a cache folder that the caller has locked. It removes those
// left behind by processes that were killed.
func TempDir(cache string) (string, error) {
	left, err := filepath.Glob(filepath.Join(cache, ".new-*"))
	if err != nil {
		return "", err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(cache, ".new-")
}

// run runs a program in dir and returns its output. An error contains the end of the program's
// standard error.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return runWith(ctx, nil, dir, name, args...)
}

// runWith is run with more in the environment.
func runWith(ctx context.Context, env []string, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		words := strings.TrimSpace(stderr.String())
		return nil, fmt.Errorf("%s: %w: %s", name, err, words[max(0, len(words)-500):])
	}
	return out, nil
}
