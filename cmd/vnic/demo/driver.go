package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/falcon-vnic/vnic/cmd/vnic/guest"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// After the workload the demo's guests run verbs programs from Debian over the Linux driver, which
// must have been built for their kernel (make driver).

const (
	module   = "/lib/vnic.ko" // path in the guest; not loaded at boot, because guestlib uses the function first
	provider = "libvnic-rdmav34.so"
)

// verbsModules are the kernel modules that vnic.ko and the programs need.
var verbsModules = []string{"ib_uverbs", "rdma_ucm"}

// addVerbs adds the driver and the programs to the guests' file system. If the demo cannot run
// verbs programs, it prints the reason and skips them.
func (s *scene) addVerbs(ctx context.Context, i *image.Initramfs) error {
	why := s.whyNoVerbs(i.Kernel.Release)
	var put []image.Put
	if why == "" {
		cache, err := image.DefaultCache()
		if err != nil {
			return err
		}
		var names []string
		for _, p := range guest.VerbsPrograms {
			names = append(names, p.Name)
		}
		if put, err = image.FetchPrograms(ctx, filepath.Dir(cache), []string{"perftest", "rdmacm-utils"}, names); err != nil {
			why = err.Error()
		}
	}
	if why != "" {
		s.r.step("guests: no ib_write_bw and no rping: %s", why)
		return ctx.Err()
	}
	etc := filepath.Join(s.out, "vnic.driver")
	if err := os.WriteFile(etc, []byte("driver vnic\n"), 0o644); err != nil {
		return err
	}
	i.Put = append(append(i.Put, put...),
		image.Put{From: s.driverModule(i.Kernel.Release), To: module},
		image.Put{From: s.driverProvider(), To: "/usr/lib/x86_64-linux-gnu/libibverbs/" + provider},
		image.Put{From: etc, To: "/etc/libibverbs.d/vnic.driver"})
	i.Modules = append(i.Modules, verbsModules...)
	for _, h := range s.hosts {
		h.Verbs = true
		h.Windows = !h.PCI // the driver has no vsock
	}
	s.r.step("guests: vnic.ko and its provider, ib_write_bw and rping of Debian's packages")
	return nil
}

// whyNoVerbs returns the reason why this demo cannot run verbs programs, or "" if it can.
func (s *scene) whyNoVerbs(release string) string {
	switch {
	case s.o.driver == "":
		return "they need the Linux driver (make demo builds it, --driver names it)"
	case !s.hosts[0].Ethernet:
		return "they need an Ethernet interface"
	case s.o.iommu && !s.o.PCI:
		return "the Linux driver takes no window behind an IOMMU"
	}
	for _, path := range []string{s.driverModule(release), s.driverProvider()} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Sprintf("the Linux driver was not built for kernel %s: %v", release, err)
		}
	}
	return ""
}

func (s *scene) driverModule(release string) string {
	return filepath.Join(s.o.driver, release, "vnic.ko")
}

func (s *scene) driverProvider() string { return filepath.Join(s.o.driver, "provider", provider) }
