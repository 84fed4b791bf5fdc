package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	ps, err := fetchPackages(ctx, filepath.Join(cache, "packages"), append(append([]string{}, required...), names...))
	if err != nil {
		return nil, fmt.Errorf("packages for the guest: %w", err)
	}
	return ps, nil
}

func fetchPackages(ctx context.Context, dir string, names []string) ([]Package, error) {
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return nil, err
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	fresh, err := tempDir(dir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(fresh)
	out, err := run(ctx, "", "apt-get", aptArgs(fresh, fresh, append([]string{"--print-uris"}, names...))...)
	if err != nil {
		return nil, fmt.Errorf("%w; a name is wrong, or apt-get update has to be run", err)
	}
	ps, err := parseURIs(string(out), dir)
	if err != nil {
		return nil, err
	}
	for _, p := range ps {
		if _, err := os.Stat(p.File); errors.Is(err, os.ErrNotExist) {
			_, err := run(ctx, "", "apt-get", aptArgs(fresh, dir, append([]string{"--download-only"}, names...))...)
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
