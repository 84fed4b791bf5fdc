package linuxtest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// TestLongDebianDisk: vnic image --disk makes a Debian with the Linux driver, and two guests boot from
// overlays of it, one with a port in its memory and one with a TAP. Their services run, they have
// their addresses by DHCP and the verbs devices of their functions. What one of them writes is in its
// overlay alone.
func TestLongDebianDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	dir := t.TempDir()
	disk, key := filepath.Join(dir, "debian.qcow2"), filepath.Join(dir, "key")
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		vnictest.Need(t, err, "ssh-keygen: "+string(out))
	}
	args := []string{"image", "--disk", disk, "--ssh-key", key + ".pub", "--file", key + ":/root/.ssh/id_ed25519", "--file", "testdata/bounded.sh:/root/bounded"}
	for _, deb := range driverDebs(t, ctx, dir) {
		args = append(args, "--package", deb)
	}
	began := time.Now()
	if out, stderr, code := vnictest.Run(t, args...); code != 0 || !strings.Contains(out, "Debian 12") {
		t.Fatalf("exit status %d, %s\n%s", code, out, stderr)
	}
	t.Logf("the disk: %v", time.Since(began).Round(time.Second))
	made, err := os.Stat(disk)
	if err != nil {
		t.Fatal(err)
	}
	vnictest.MakeLab(t, vnictest.Options{Windows: true}, true, func(base *vnictest.Lab) {
		l := &driverLab{Lab: base}
		defer l.keepConsoles()
		for i := range l.Hosts {
			l.Start(i)
		}
		l.Joined()
		began := time.Now()
		for i := range l.Hosts {
			l.bootDisk(t, i, disk, filepath.Join(dir, fmt.Sprintf("g%d.qcow2", i+1)))
		}
		for i, g := range l.guests {
			g.beginAt(2*vnictest.Limit, "root@debian:~# ") // two whole systems start
			g.run("systemctl is-system-running --wait")    // degraded, if a login gave up on a busy machine
			if failed := g.must("systemctl --no-pager --failed --type=service --plain --no-legend"); failed != "" {
				warnings, _ := g.run("journalctl -b -p warning --no-pager | tail -n 40")
				t.Errorf("%s: failed services:\n%s\n%s", g.name, failed, warnings)
			}
			// Nothing waits for DHCP: an interface without a carrier would hold a guest up.
			g.eventually(fmt.Sprintf("ip -4 addr show | grep %s/24", l.Hosts[i].TenantIP))
			g.must("cat /sys/class/net/e*/mtu | grep 4432")
			l.ready(i)
			t.Logf("%s runs %s: %v", g.name, g.must("uname -r"), time.Since(began).Round(time.Second))
		}
		l.guests[0].must("vnic version && iperf3 --version && fio --version && echo here >/root/mark && sync")
		l.guests[1].must("test ! -e /root/mark")
	})
	if now, err := os.Stat(disk); err != nil || now.Size() != made.Size() || !now.ModTime().Equal(made.ModTime()) {
		t.Errorf("the disk has changed: %v, %v", now, err)
	}
}

// driverDebs builds the packages of the driver for Debian's current kernel.
func driverDebs(t *testing.T, ctx context.Context, dir string) []string {
	t.Helper()
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(ctx, cache)
	vnictest.Need(t, err, "guest kernel")
	build := exec.CommandContext(ctx, "../../../guestlib/linux/packages.sh", dir, "vnic-module", "ibverbs-provider-vnic")
	build.Env = append(os.Environ(), "RELEASE="+k.Release, "MAKEFLAGS=")
	out, err := build.CombinedOutput()
	vnictest.Require(t, err == nil, fmt.Sprintf("packages.sh: %v\n%s", err, out))
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 2 {
		t.Fatalf("%v %v", debs, err)
	}
	return debs
}

// bootDisk boots host i's guest by vnic qemu's line, from an overlay. It ends with the lab's thread.
func (l *driverLab) bootDisk(t *testing.T, i int, disk, overlay string) {
	t.Helper()
	h := l.Hosts[i]
	console := filepath.Join(filepath.Dir(h.Socket), fmt.Sprintf("console%d", i))
	printed, err := vnictest.Here(t, qemu.Command(), "-c", h.Config, "--guest", strconv.Itoa(int(h.GuestCID)), "--disk", disk, "--overlay", overlay,
		"--memory", "768M", "--accel", "tcg", "--", "-serial", "unix:"+console+",server=on,wait=off")
	if err != nil {
		t.Fatal(err)
	}
	if _, tap, found := strings.Cut(printed, "its port: ip "); found {
		tap, _, _ = strings.Cut(tap, "\n")
		if out, err := exec.Command("sh", "-c", "ip "+tap).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", tap, err, out)
		}
	}
	cmd := exec.Command("sh", "-c", "exec "+strings.TrimSpace(vnictest.StripComments(printed)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	vnictest.Eventually(t, "the guest's console", func() error {
		conn, err := net.Dial("unix", console)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
			l.guests[i] = &shell{t: t, conn: conn, name: h.Guest()}
		}
		return err
	})
}
