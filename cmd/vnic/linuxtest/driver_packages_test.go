package linuxtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// installTime is added to the time limit of dpkg, during which dkms compiles the module under
// emulation.
const installTime = 40 * time.Minute

// BenchmarkPackages installs the packages for guests in a guest that is a Debian with dkms, for
// which packages-test.sh makes a disk: make packages-test. dkms builds the module for the kernel
// that runs, programs have the device, and when the packages are purged, the module, the device and
// all files are gone again. It measures how long dpkg takes.
func BenchmarkPackages(b *testing.B) {
	vnictest.RequireGuests(b)
	disk := os.Getenv("VNIC_TEST_DEBIAN")
	vnictest.Require(b, disk != "", "VNIC_TEST_DEBIAN names no disk: make packages-test makes one")
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	peer := driverImage(b, ctx, driverExtras{})
	debian := debianMachine(b, ctx, disk)
	bootDriverLab(b, vnictest.Options{Windows: true}, [2]qemu.Machine{debian, peer}, func(*vnictest.Lab) {}, func(l *driverLab) {
		defer l.keepConsoles()
		l.ready(1)
		l.guests[0].enterDebian()
		l.packages(b)
	})
}

// debianMachine is a guest with Debian's kernel, and a RAM disk from which it changes to the Debian
// on a disk.
func debianMachine(tb testing.TB, ctx context.Context, disk string) qemu.Machine {
	tb.Helper()
	cache, err := image.DefaultCache()
	if err != nil {
		tb.Fatal(err)
	}
	ps, err := image.FetchPackages(ctx, filepath.Dir(cache), []string{"mount", "grep", "util-linux"})
	vnictest.Require(tb, err == nil, fmt.Sprint("no packages: ", err))
	k, err := driverKernel(ctx, cache, "")
	vnictest.Require(tb, err == nil, fmt.Sprint("no guest kernel: ", err))
	initrd := filepath.Join(tb.TempDir(), "initrd")
	if err := (image.Initramfs{
		Kernel: k, Init: vnictest.Program(tb), Packages: ps,
		Modules: []string{"virtio_pci", "vmw_vsock_virtio_transport", "virtio_net", "virtio_blk", "crc32c_generic", "ext4"},
		Put:     []image.Put{{From: "testdata/bounded.sh", To: "/root/bounded"}},
	}).Write(initrd); err != nil {
		tb.Fatal(err)
	}
	return qemu.Machine{Memory: 1024, CPUs: 2, Kernel: k.Boot(), KernelArgs: quietBoot, Initrd: initrd, Disk: disk}
}

// enterDebian makes the Debian on the guest's disk the root of its shell.
func (s *shell) enterDebian() {
	s.t.Helper()
	s.must("ln -s /proc/self/fd /dev/fd") // as udev does; dkms uses it
	s.must("mkdir -p /mnt && mount -o noatime /dev/vda /mnt && (for d in proc sys dev run tmp root; do mount --rbind /$d /mnt/$d || exit; done)")
	s.must("exec chroot /mnt env PS1= DEBIAN_FRONTEND=noninteractive bash --norc")
	s.must("bind 'set enable-bracketed-paste off'")
}

// files lists all files of the Debian, except those in which dpkg and depmod keep their own
// records.
const files = `find / -xdev ! -path '/var/lib/dpkg*' ! -path '/var/log*' ! -path '/var/cache*' ! -path '/usr/lib/modules/*/modules.*' | sort`

// packages installs the packages in the first guest, lets programs use the function, and purges the
// packages.
func (l *driverLab) packages(b *testing.B) {
	g := l.guests[0]
	none := func(when string) {
		b.Helper()
		said, _ := g.run("lsmod | grep vnic; ls -d /sys/class/infiniband/* /sys/bus/pci/drivers/vnic /dev/infiniband/uverbs* 2>/dev/null; ibv_devices 2>/dev/null | tail -n +3; dkms status; ls /usr/src | grep vnic")
		if said != "" {
			b.Errorf("%s there are\n%s", when, said)
		}
	}
	none("before the packages")
	g.must(files + " >/tmp/before")

	start := time.Now()
	said, status := g.runFor(installTime, "dpkg --install /debs/vnic-dkms_*.deb /debs/ibverbs-provider-vnic_*.deb 2>&1")
	if status != 0 {
		b.Fatalf("dpkg --install: exit status %d\n%s\n%s", status, said, g.kernel())
	}
	took := time.Since(start)
	b.ReportMetric(took.Seconds(), "driver/install_s")
	b.Logf("installed in %v:\n%s", took.Round(time.Second), said)
	kernel := g.must("uname -r")
	if said := g.must("dkms status -m vnic"); !regexp.MustCompile(`(?m)^vnic/\S+, ` + regexp.QuoteMeta(kernel) + `, x86_64: installed$`).MatchString(said) {
		b.Errorf("dkms status, with %s running:\n%s", kernel, said)
	}
	l.ready(0)
	for command, want := range map[string]string{
		"cat /sys/module/vnic/srcversion": g.must("modinfo -F srcversion vnic"), // the loaded module is the one that dkms built
		"ibv_devices":                     l.device(0),
		"ibv_devinfo":                     "PORT_ACTIVE",
	} {
		said := g.must(command)
		b.Logf("%s:\n%s", command, said)
		if !strings.Contains(said, want) {
			b.Errorf("%s lacks %q", command, want)
		}
	}
	for _, p := range shortPrograms[:3] {
		l.program(b, p)
	}

	said, status = g.runFor(installTime, "dpkg --purge vnic-dkms ibverbs-provider-vnic 2>&1")
	if status != 0 {
		b.Fatalf("dpkg --purge: exit status %d\n%s\n%s", status, said, g.kernel())
	}
	b.Logf("purged:\n%s", said)
	none("after the packages were purged")
	if said, status := g.run(files + " | diff /tmp/before -"); status != 0 {
		b.Errorf("left behind (>), or taken away (<):\n%s", said)
	}
	l.sane(b)
}
