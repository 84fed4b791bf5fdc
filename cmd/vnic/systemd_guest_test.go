package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// systemdFiles are what the guest has beside systemd, the program and docs/vnic.service.
var systemdFiles = map[string]string{
	// PID 1 until systemd is: what an initial RAM disk and udev do elsewhere.
	"/sbin/boot": `#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r m; do insmod "$m"; done < /lib/modules/order
chmod 0666 /dev/net/tun
: > /etc/machine-id
echo "vnic:x:990:990::/:/usr/sbin/nologin" >> /etc/passwd
echo "vnic:x:990:" >> /etc/group
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
systemctl start vnic && systemctl reload vnic
vnic wait -s /run/vnic/control.sock
vnic show nic -s /run/vnic/control.sock
for p in $(cat /sys/fs/cgroup/system.slice/vnic.service/cgroup.procs); do
	tr '\0' ' ' < /proc/$p/cmdline; echo
	grep -E '^(Uid|CapPrm|NoNewPrivs|Seccomp):' /proc/$p/status | tr '\t' ' '
done
vnic guest info -d unix:///run/vnic/client.sock --samples 0
systemctl stop vnic
journalctl -u vnic -o cat --no-pager
`,
	"/etc/vnic/nic.yaml": `nic: {host: 1}
control: /run/vnic/control.sock
uplink: {name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - {pf: 0, tenant: 1, address: 192.168.100.11, guest: {unix: client}}
attach:
  - {type: unix, name: client, socket: /run/vnic/client.sock}
`,
}

// TestLongSystemd starts docs/vnic.service under systemd in a guest, upgrades it and stops it: with
// a user of its own, and a worker that has one capability left.
func TestLongSystemd(t *testing.T) {
	requireGuests(t)
	dir := t.TempDir()
	guest := filepath.Join(dir, "guest")
	args := []string{
		"image", "--out", guest, "--package", "systemd", "--module", "tun",
		"--file", vnic(t) + ":/usr/local/bin/vnic", "--file", "../../docs/vnic.service:/etc/systemd/system/vnic.service",
	}
	for path, text := range systemdFiles {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--file", file+":"+path)
	}
	if _, stderr, code := run(t, args...); code != 0 {
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
	const user, restricted = "Uid: 990 990 990 990", "NoNewPrivs: 1\nSeccomp: 2"
	requireIn(t, said, "host 1", "start 2", "uplink up1",
		"vnic run -c", user, restricted,
		"vnic run --worker", user, "CapPrm: 0000000000001000", restricted, // CAP_NET_ADMIN
		"h1.pf0.vf0 (PF)", "upgrading", "worker serves")
}
