package qemu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// libvirtConfig has guests of each kind that libvirt takes.
const libvirtConfig = `
nic: {host: 1, name: lab}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}, port: {type: vhost-user, socket: /run/vnic/vm1-net.sock, mtu: 4432}}
      - {vf: 2, tenant: 100, address: 192.168.100.12, guest: {cid: 1002}, port: {type: vhost-user, socket: /run/vnic/vm2-net.sock, listen: guest, queues: 2, mtu: 1432}}
      - {vf: 3, tenant: 100, address: 192.168.100.13, guest: {cid: 1003}, port: {mode: bridged, name: vp3, bridge: gbr1}}
      - {vf: 4, tenant: 100, address: 192.168.100.14, guest: {cid: 1004}, port: {mode: bridged, name: vp4}}
attach:
  - {type: vhost-user, socket: /run/vnic/guest1.sock, cid: 1001, windows: true}
  - {type: vhost-user, socket: /run/vnic/guest2.sock, cid: 1002}
  - {type: vhost-user, socket: /run/vnic/guest3.sock, cid: 1003, windows: true}
  - {type: vfio-user, socket: /run/vnic/guest4.sock, cid: 1004}
`

// TestLibvirtDefinesEveryKindOfGuest: what vnic qemu --libvirt prints is a domain by the schema of a
// real libvirt.
func TestLibvirtDefinesEveryKindOfGuest(t *testing.T) {
	lv := vnictest.StartLibvirt(t)
	path := vnictest.WriteConfig(t, libvirtConfig)
	disk := filepath.Join(t.TempDir(), "debian.qcow2")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	accel := "kvm"
	if _, err := os.Stat("/dev/kvm"); err != nil {
		accel = "tcg" // libvirt refuses a domain that its machine cannot run
	}
	for guest, more := range map[string][]string{
		"1001": {"--disk", disk, "--accel", accel, "--cpus", "4"},
		"1002": {"--kernel", "/k", "--initrd", "/i", "--append", "console=ttyS0"},
		"1003": {"--iommu", "--share", t.TempDir(), "--", "-d", "guest_errors"},
		"1004": {"--iommu", "--memory", "512M", "--name", "pci & more"},
	} {
		domain, err := vnictest.Here(t, qemu.Command(), append([]string{"-c", path, "--guest", guest, "--libvirt"}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		lv.Define(domain)
	}
	if said := lv.Virsh("list", "--all", "--name"); said != "pci & more\nvnic-guest1001\nvnic-guest1002\nvnic-guest1003" {
		t.Errorf("defined: %s", said)
	}
}

// TestTheDocumentedLibvirtDomainIsTrue keeps the domain in docs/attach.md true.
func TestTheDocumentedLibvirtDomainIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../../docs/attach.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```xml\n")
	want, _, _ := strings.Cut(rest, "```")
	t.Chdir(t.TempDir())
	if err := os.WriteFile("debian-12.qcow2", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := vnictest.Here(t, qemu.Command(), "-c", vnictest.WriteConfig(t, libvirtConfig), "--guest", "1001", "--accel", "kvm", "--memory", "2G",
		"--disk", "debian-12.qcow2", "--qemu", "/usr/bin/qemu-system-x86_64", "--libvirt")
	if err != nil {
		t.Fatal(err)
	}
	here, _ := os.Getwd()
	got = strings.ReplaceAll(got, here, "/var/lib/libvirt/images")
	if _, err := exec.LookPath("/usr/bin/qemu-system-x86_64"); err != nil {
		want = strings.Replace(want, "    <emulator>/usr/bin/qemu-system-x86_64</emulator>\n", "", 1)
	}
	if got != want {
		t.Errorf("docs/attach.md has another domain than vnic qemu --libvirt prints:\n%s", got)
	}
}
