package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const qemuTestConfig = `
nic: {host: 1, name: lab}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    tenant: 100
    address: 192.168.100.10
    guest: {cid: 1001}
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {cid: 42}}
      - {vf: 3, tenant: 100, address: 192.168.100.13, guest: {unix: bare}}
      - {vf: 4, tenant: 100, address: 192.168.100.14, guest: {cid: 43}}
attach:
  - {type: vhost-user, socket: /run/g1.sock, cid: 1001}
  - type: vsock
    ram:
      - {cid: 42, file: /dev/shm/g42, layout: [{address: 0, size: 2G, offset: 0}, {address: 4G, size: 1G, offset: 2G}]}
  - {type: unix, name: bare, socket: /run/bare.sock}
`

// runHere runs a command line in this process and returns what it prints.
func runHere(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	var out bytes.Buffer
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(tb.Context())
	return out.String(), err
}

func writeQEMUConfig(tb testing.TB, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "nic.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func TestQEMUPrints(t *testing.T) {
	path := writeQEMUConfig(t, qemuTestConfig)
	got, err := runHere(t, "qemu", "-c", path, "--guest", "1001", "--accel", "tcg", "--memory", "512M", "--kernel", "/k", "--append", "console=ttyS0 quiet", "--", "-no-reboot")
	if err != nil {
		t.Fatal(err)
	}
	want := `# Guest 1001 of NIC lab. Start ` + "`vnic run`" + ` first: QEMU needs its socket.
#   pf0: tenant 100, address 192.168.100.10
#   pf0.vf1: tenant 100, address 192.168.100.11
qemu-system-x86_64 \
  -name vnic-guest1001 \
  -machine q35,memory-backend=m0 \
  -accel tcg \
  -cpu max \
  -smp 1 \
  -m 512M \
  -object memory-backend-memfd,id=m0,size=512M,share=on \
  -chardev socket,id=vsock,path=/run/g1.sock \
  -device vhost-user-vsock-pci,chardev=vsock \
  -kernel /k \
  -append 'console=ttyS0 quiet' \
  -nographic \
  -no-reboot
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got, err = runHere(t, "qemu", "-c", path, "--guest", "42", "--accel", "kvm", "--cpus", "4")
	for _, part := range []string{
		"-m 3072M", "memory-backend-file,id=m0,mem-path=/dev/shm/g42,size=3072M,share=on", "vhost-vsock-pci,guest-cid=42", "-accel kvm", "-cpu host", "-smp 4",
	} {
		if err != nil || !strings.Contains(got, part) {
			t.Errorf("%v, no %s in\n%s", err, part, got)
		}
	}
}

func TestQEMURefuses(t *testing.T) {
	path := writeQEMUConfig(t, qemuTestConfig)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noSocket := writeQEMUConfig(t, strings.ReplaceAll(qemuTestConfig, "/run/g1.sock", filepath.Join(t.TempDir(), "absent")))
	inTheWay := writeQEMUConfig(t, strings.ReplaceAll(qemuTestConfig, "/run/g1.sock", plain))
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"no function is assigned to guest 7", []string{"-c", path, "--guest", "7"}},
		{"no function is assigned to guest 0", []string{"-c", path, "--guest", "0"}},
		{"nothing under attach serves guest 43 with memory", []string{"-c", path, "--guest", "43"}},
		{"gives guest 42 a layout of 3G", []string{"-c", path, "--guest", "42", "--memory", "1G"}},
		{"--memory", []string{"-c", path, "--guest", "1001", "--memory", "much"}},
		{"64 or more", []string{"-c", path, "--guest", "1001", "--memory", "1M"}},
		{"choose auto, kvm or tcg", []string{"-c", path, "--guest", "1001", "--accel", "xen"}},
		{"come after --", []string{"-c", path, "--guest", "1001", "x", "--", "-no-reboot"}},
		{"install it", []string{"-c", path, "--guest", "1001", "--run", "--qemu", "qemu-of-nobody"}},
		{"start `vnic run", []string{"-c", noSocket, "--guest", "1001", "--run", "--qemu", "true"}},
		{"is no socket", []string{"-c", inTheWay, "--guest", "1001", "--run", "--qemu", "true"}},
	} {
		if out, err := runHere(t, append([]string{"qemu"}, tt.args...)...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v %s", tt.args, err, out)
		}
	}
}
