package image

import (
	"archive/tar"
	"context"
	"embed"
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

// Packages are the Debian packages that a guest gets by default: a shell, and programs for trying
// out a NIC.
var Packages = []string{
	"bash", "coreutils", "grep", "sed", "gawk", "less", "mount", "util-linux", "procps", "kmod", "pciutils",
	"iproute2", "iputils-ping", "ethtool", "tcpdump", "udhcpc", "iperf3", "perftest", "ibverbs-utils", "rdmacm-utils",
}

// required lists the packages in every image with packages. The scripts start and lease need them;
// usr-is-merged avoids the packages that would merge /usr.
var required = []string{"bash", "coreutils", "iproute2", "udhcpc", "usr-is-merged"}

// GuestModules are the kernel modules of a guest with packages: for access to the NIC, interrupts
// for programs, Ethernet, the shared folder, and verbs with Soft-RoCE.
var GuestModules = []string{
	"virtio_pci", "vmw_vsock_virtio_transport", "vfio_pci", "vfio_iommu_type1", "virtio_net", "9p", "9pnet_virtio",
	"ib_uverbs", "rdma_ucm", "crc32_generic", "rdma_rxe",
}

// Package is a Debian package in the cache folder.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	File    string `json:"-"`
}

// FetchPackages returns Debian packages and all that they depend on from the cache folder,
// downloading there what is missing. It uses apt's sources and checks, and installs nothing.
func FetchPackages(ctx context.Context, cache string, names []string) ([]Package, error) {
	return AMD64.FetchPackages(ctx, cache, names)
}

// FetchPackages is like the function, for a guest's architecture.
func (a Arch) FetchPackages(ctx context.Context, cache string, names []string) ([]Package, error) {
	env, err := a.apt(ctx, cache)
	if err != nil {
		return nil, fmt.Errorf("packages for the guest: %w", err)
	}
	ps, err := fetchPackages(ctx, env, filepath.Join(cache, "packages"), append(append([]string{}, required...), names...))
	if err != nil {
		return nil, fmt.Errorf("packages for the guest: %w", err)
	}
	return ps, nil
}

func fetchPackages(ctx context.Context, env []string, dir string, names []string) ([]Package, error) {
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return nil, err
	}
	unlock, err := LockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	fresh, err := TempDir(dir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(fresh)
	out, err := runWith(ctx, env, "", "apt-get", aptArgs(fresh, fresh, append([]string{"--print-uris"}, names...))...)
	if err != nil {
		return nil, fmt.Errorf("%w; a name is wrong, or apt-get update has to be run", err)
	}
	ps, err := parseURIs(string(out), dir)
	if err != nil {
		return nil, err
	}
	for _, p := range ps {
		if _, err := os.Stat(p.File); errors.Is(err, os.ErrNotExist) {
			_, err := runWith(ctx, env, "", "apt-get", aptArgs(fresh, dir, append([]string{"--download-only"}, names...))...)
			return ps, err
		}
	}
	return ps, nil
}

// aptArgs returns arguments that make apt-get resolve dependencies as if no package were installed.
func aptArgs(fresh, archives string, words []string) []string {
	status := filepath.Join(fresh, "status")
	_ = os.WriteFile(status, nil, 0o644) // if it fails, apt-get reports it
	return append([]string{
		"-qq", "-y", "--no-install-recommends", "-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + archives,
		"-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=root", "install",
	}, words...)
}

// parseURIs parses the output of apt-get --print-uris: 'URI' FILE SIZE HASH.
func parseURIs(out, dir string) (ps []Package, err error) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasPrefix(f[0], "'") {
			continue
		}
		parts := strings.Split(f[1], "_")
		if len(parts) != 3 || filepath.Base(f[1]) != f[1] {
			return nil, fmt.Errorf("apt-get names a file %q", f[1])
		}
		ps = append(ps, Package{parts[0], strings.ReplaceAll(parts[1], "%3a", ":"), filepath.Join(dir, f[1])})
	}
	if len(ps) == 0 {
		return nil, errors.New("apt-get names no package; run apt-get update")
	}
	return ps, nil
}

// A guest's packages are unpacked but not configured: no maintainer script runs. This file does
// those actions of the scripts that a guest needs.

//go:embed root
var ownFiles embed.FS

// mergedFolders are links into /usr on Debian. A package has what is behind them by either name; from Debian
// 13 on base-files has the links themselves.
var mergedFolders = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// alternatives are links that maintainer scripts create. Each is created if its target exists.
var alternatives = [][2]string{{"usr/bin/sh", "bash"}, {"usr/bin/awk", "gawk"}, {"usr/bin/awk", "mawk"}, {"usr/bin/pager", "less"}, {"usr/bin/which", "which.debianutils"}, {"usr/bin/nc", "nc.openbsd"}, {"usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1", "../libpsm1/libpsm_infinipath.so.1.16"}}

// unwanted lists the folders that guests do not get: half of the content of packages.
var unwanted = []string{"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/lintian/", "usr/share/bug/"}

// root writes the file system of a guest with packages.
func (c *cpioWriter) root(packages []Package) error {
	made := map[string]bool{}
	c.folders("usr", made)
	for _, dir := range mergedFolders {
		c.folders("usr/"+dir, made)
		c.link(dir, "usr/"+dir)
	}
	for _, dir := range []string{"root", "run", "tmp", "var/lib", "var/tmp", "share", "usr/lib/modules"} {
		c.folders(dir, made)
	}
	for _, p := range packages {
		if err := c.unpack(p, made); err != nil {
			return fmt.Errorf("package %s: %w", p.Name, err)
		}
	}
	for _, a := range alternatives {
		if at := path.Join(path.Dir(a[0]), a[1]); made[at] && !made[a[0]] {
			made[a[0]] = true
			c.link(a[0], a[1])
		}
	}
	if !made["usr/bin/vnic"] {
		c.link("usr/bin/vnic", "/init")
	}
	return errors.Join(c.own(made), c.err)
}

// own writes this package's own files for guests.
func (c *cpioWriter) own(made map[string]bool) error {
	return fs.WalkDir(ownFiles, "root", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := ownFiles.ReadFile(name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "root/")
		c.folders(path.Dir(name), made)
		perm := uint32(0o644)
		if strings.HasPrefix(string(body), "#!") {
			perm = 0o755
		}
		c.add(cpioEntry{name: name, mode: cpioFile | perm, size: int64(len(body))}, strings.NewReader(string(body)))
		return nil
	})
}

// unpack writes the content of a package.
func (c *cpioWriter) unpack(p Package, made map[string]bool) (err error) {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", p.File)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_, drained := io.Copy(io.Discard, out)
		err = errors.Join(err, drained, cmd.Wait())
	}()
	archive := tar.NewReader(out)
	for {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return c.err
		case err != nil:
			return err
		}
		c.entry(h, archive, made)
	}
}

// entry writes a file of a package.
func (c *cpioWriter) entry(h *tar.Header, body io.Reader, made map[string]bool) {
	name := merged(path.Clean(h.Name))
	if h.Typeflag == tar.TypeSymlink && slices.Contains(mergedFolders, path.Clean(h.Name)) {
		return // root has made it; under its name below usr it would lead to itself
	}
	if name == "." || slices.ContainsFunc(unwanted, func(u string) bool { return strings.HasPrefix(name+"/", u) }) {
		return
	}
	c.folders(path.Dir(name), made)
	perm := uint32(h.Mode) & 0o7777
	switch h.Typeflag {
	case tar.TypeDir:
		if !made[name] {
			c.add(cpioEntry{name: name, mode: cpioDir | perm}, nil)
		}
	case tar.TypeReg:
		c.add(cpioEntry{name: name, mode: cpioFile | perm, size: h.Size}, body)
	case tar.TypeSymlink:
		c.link(name, h.Linkname)
	case tar.TypeLink:
		c.link(name, "/"+merged(path.Clean(h.Linkname)))
	default:
		return
	}
	made[name] = true
}

// merged returns the path of a file under the merged /usr: Debian's /bin and the like are links.
func merged(name string) string {
	if first, _, _ := strings.Cut(name, "/"); slices.Contains(mergedFolders, first) {
		return "usr/" + name
	}
	return name
}

// folders writes a folder and its parents, except for those already in made.
func (c *cpioWriter) folders(dir string, made map[string]bool) {
	if dir == "." || dir == "/" || made[dir] {
		return
	}
	c.folders(path.Dir(dir), made)
	made[dir] = true
	perm := uint32(0o755)
	if dir == "tmp" || dir == "var/tmp" {
		perm = 0o1777
	}
	c.add(cpioEntry{name: dir, mode: cpioDir | perm}, nil)
}

// link writes a symbolic link.
func (c *cpioWriter) link(name, target string) {
	c.add(cpioEntry{name: name, mode: cpioLink | 0o777, size: int64(len(target))}, strings.NewReader(target))
}
