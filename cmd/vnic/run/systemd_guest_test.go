package run_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// systemdFiles are the guest's files besides systemd and the package.
var systemdFiles = map[string]string{
	// PID 1 until systemd starts: it does what an initial RAM disk and udev do elsewhere.
	"/sbin/boot": `#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r m; do insmod "$m"; done < /lib/modules/order
chmod 0666 /dev/net/tun
: > /etc/machine-id
exec /usr/lib/systemd/systemd
`,
	"/etc/systemd/system/check.service": `[Service]
Type=oneshot
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/sh /etc/vnic/check
ExecStopPost=/bin/systemctl poweroff --force --force
`,
	"/etc/systemd/system/check.target": "[Unit]\nRequires=check.service\nAllowIsolate=yes\n",
	"/etc/vnic/check": `exec 2>&1
set -x
sh /postinst configure
vnic keys init --dir /etc/vnic/keys --domain lab 1 2
systemctl start vnic && systemctl reload vnic && vnic upgrade -s /run/vnic/control.sock
vnic wait -s /run/vnic/control.sock
vnic show nic -s /run/vnic/control.sock
for p in $(cat /sys/fs/cgroup/system.slice/vnic.service/cgroup.procs); do
	tr '\0' ' ' < /proc/$p/cmdline; echo
	grep -E '^(Uid|CapPrm|NoNewPrivs|Seccomp):' /proc/$p/status | tr '\t' ' ' | sed "/^Uid/s/\b$(id -u vnic)\b/vnic/g"
done
vnic guest info -d unix:///run/vnic/client.sock --samples 0
echo nonsense >> /etc/vnic/nic.yaml
systemctl reload vnic || echo "reload failed"
systemctl stop vnic
journalctl -u vnic -o cat --no-pager
`,
	"/etc/vnic/nic.yaml": `nic: {host: 1}
control: /run/vnic/control.sock
uplink: {name: up1, mtu: 4500, address: 10.99.0.1/24}
cm: {listen: "127.0.0.1:7471", identity: /etc/vnic/keys}
peers:
  - {host: 2, underlay: 10.99.0.2, cm: "127.0.0.1:7472", identity: vnic://lab/host/2, tenants: [1]}
functions:
  - {pf: 0, tenant: 1, address: 192.168.100.11, guest: {unix: client}}
attach:
  - {type: unix, name: client, socket: /run/vnic/client.sock}
`,
}

// TestLongTheUnitWorksUnderSystemd installs the vnic package in a guest with systemd: after one command for keys and
// one file the unit starts, as a user of its own, with a worker that has one capability left. It reads
// its configuration again, is upgraded, a refused reload fails, and it stops.
func TestLongTheUnitWorksUnderSystemd(t *testing.T) {
	vnictest.RequireGuests(t)
	dir := t.TempDir()
	guest, root := filepath.Join(dir, "guest"), filepath.Join(dir, "root")
	pack := exec.Command("../../../guestlib/linux/packages.sh", dir, "vnic")
	pack.Env = append(os.Environ(), "VNIC="+vnictest.Program(t))
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	debs, _ := filepath.Glob(filepath.Join(dir, "vnic_*.deb"))
	if len(debs) != 1 {
		t.Fatalf("packages: %v", debs)
	}
	if out, err := exec.Command("dpkg-deb", "--raw-extract", debs[0], root).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := []string{
		"image", "--out", guest, "--package", "systemd", "--package", "passwd", "--package", "login", "--module", "tun",
		"--file", root + "/usr/bin/vnic:/usr/bin/vnic", "--file", root + "/lib/systemd/system/vnic.service:/lib/systemd/system/vnic.service",
		"--file", root + "/DEBIAN/postinst:/postinst",
	}
	for path, text := range systemdFiles {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--file", file+":"+path)
	}
	if _, stderr, code := vnictest.Run(t, args...); code != 0 {
		t.Fatal(stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-m", "2G", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none",
		"-kernel", filepath.Join(guest, "vmlinuz"), "-initrd", filepath.Join(guest, "initrd"),
		"-append", "console=ttyS0 quiet rdinit=/sbin/boot systemd.unit=check.target")
	qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := qemu.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := strings.ReplaceAll(string(out), "\r", "")
	const user, restricted = "Uid: vnic vnic vnic vnic", "NoNewPrivs: 1\nSeccomp: 2"
	vnictest.RequireIn(t, said, "host 1", "start 2", "uplink up1",
		"vnic run -c", user, restricted,
		"vnic run --worker", user, "CapPrm: 0000000000001000", restricted, // CAP_NET_ADMIN
		"h1.pf0.vf0 (PF)", "reload failed", "configuration reloaded", "upgrading", "worker serves")
}

// TestSystemdAcceptsTheUnit: systemd knows every setting of the unit in docs.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	unit, err := os.ReadFile("../../../docs/vnic.service")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.ReplaceAll(string(unit), "/usr/local/bin/vnic", os.Args[0]) // it looks whether the program is there
	path := filepath.Join(t.TempDir(), "vnic.service")
	if err := os.WriteFile(path, []byte(here), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), "vnic.service") {
		t.Errorf("%v\n%s", err, out)
	}
}
