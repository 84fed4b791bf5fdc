package linuxtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestLongLibvirtGuests: Debian's libvirtd takes the domains that vnic qemu --libvirt prints, one with
// a port in guest memory and one with a TAP that libvirt makes. Both guests load the Linux driver and
// do RDMA and plain IP, also after a worker was killed. When they are destroyed and undefined, nothing
// of them is left.
func TestLongLibvirtGuests(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{packages: []string{"iputils-ping"}})
	folder := vnictest.PublicFolder(t, "vnic-guest-") // QEMU runs as libvirt-qemu
	for from, to := range map[string]string{m.Kernel: "vmlinux", m.Initrd: "initrd"} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, to), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	vnictest.MakeLab(t, vnictest.Options{Windows: true}, true, func(base *vnictest.Lab) {
		l := &driverLab{Lab: base}
		defer l.keepConsoles()
		for i := range l.Hosts {
			l.Start(i)
		}
		l.Joined()
		lv := vnictest.StartLibvirt(t)
		var names [2]string
		for i, h := range l.Hosts {
			openSockets(t, filepath.Dir(h.Socket))
			names[i] = fmt.Sprintf("vnic-guest%d", h.GuestCID)
			domain, err := vnictest.Here(t, qemu.Command(), "-c", h.Config, "--guest", strconv.Itoa(int(h.GuestCID)),
				"--image", folder, "--append", strings.Join(quietBoot, " "), "--memory", "768M", "--libvirt")
			if err != nil {
				t.Fatal(err)
			}
			lv.Define(domain)
			lv.Virsh("start", names[i])
			l.guests[i] = &shell{t: t, conn: openTerminal(t, lv.Virsh("ttyconsole", names[i])), name: h.Guest()}
		}
		for i, g := range l.guests {
			g.begin()
			g.must(fmt.Sprintf("grep -q 4432 /sys/class/net/eth0/mtu && (ip -4 addr show dev eth0 | grep -q %[1]s || ip addr add %[1]s/24 dev eth0)", l.Hosts[i].TenantIP))
			l.ready(i)
		}
		works := func() {
			t.Helper()
			l.guests[0].eventually("ping -c 1 -W 1 -s 4000 " + l.Hosts[0].PeerGI)
			l.program(t, "ib_write_bw {dev} -x {gid} -F -n 500")
		}
		works()
		for i := range l.Hosts {
			n := l.NIC(i, 0)
			l.Must(syscall.Kill(n.Worker, syscall.SIGKILL))
			l.NIC(i, n.Worker)
		}
		l.Joined()
		for i := range l.Hosts {
			l.ready(i)
		}
		works()
		l.sane(t)
		for i, name := range names {
			lv.Virsh("destroy", name)
			lv.Virsh("undefine", name)
			l.Free(i)
		}
		if left := lv.Virsh("list", "--all"); left != "" {
			t.Errorf("left over: %s", left)
		}
	})
}

// openSockets lets other users use the sockets in a folder, as docs/attach.md says.
func openSockets(t testing.TB, folder string) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(folder, "guest*"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range sockets {
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// openTerminal opens the terminal on which libvirt has a guest's console.
func openTerminal(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0) // not blocking: with deadlines
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
