package qemu_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/cmd/vnic/qemu"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
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
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {cid: 1001}, port: {mode: bridged, name: vp1, bridge: gbr1}}
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

func TestQEMULineIsPrinted(t *testing.T) {
	path := vnictest.WriteConfig(t, qemuTestConfig)
	got, err := vnictest.Here(t, qemu.Command(), "-c", path, "--guest", "1001", "--accel", "tcg", "--memory", "512M", "--kernel", "/k", "--append", "console=ttyS0 quiet", "--", "-no-reboot")
	if err != nil {
		t.Fatal(err)
	}
	want := `# Guest 1001 of NIC lab. Start ` + "`vnic run`" + ` first: QEMU needs its socket.
#   pf0: tenant 100, address 192.168.100.10
#   pf0.vf1: tenant 100, address 192.168.100.11
#     its port: ip tuntap add vp1g mode tap && ip link set vp1g mtu 4432 master gbr1 up
qemu-system-x86_64 \
  -name vnic-guest1001 \
  -machine q35,memory-backend=m0 \
  -accel tcg \
  -cpu max,-erms,-fsrm \
  -smp 1,maxcpus=2 \
  -m 512M \
  -object memory-backend-memfd,id=m0,size=512M,share=on \
  -chardev socket,id=vsock,path=/run/g1.sock \
  -device vhost-user-vsock-pci,id=vsock,chardev=vsock \
  -netdev tap,id=port-pf0.vf1,ifname=vp1g,script=no,downscript=no \
  -device virtio-net-pci,id=port-pf0.vf1,netdev=port-pf0.vf1,mac=02:56:4e:01:00:01,host_mtu=4432,speed=100000,duplex=full \
  -device pcie-root-port,id=hot0,chassis=1,slot=1,addr=1c.0,multifunction=on \
  -device pcie-root-port,id=hot1,chassis=2,slot=2,addr=1c.1 \
  -qmp unix:/run/g1.qmp,server=on,wait=off \
  -kernel /k \
  -append 'console=ttyS0 quiet' \
  -nographic \
  -serial mon:stdio \
  -no-reboot
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got, err = vnictest.Here(t, qemu.Command(), "-c", path, "--guest", "42", "--accel", "kvm", "--cpus", "4")
	for _, part := range []string{
		"-m 3072M", "memory-backend-file,id=m0,mem-path=/dev/shm/g42,size=3072M,share=on", "vhost-vsock-pci,id=vsock,guest-cid=42", "-qmp unix:/dev/shm/g42.qmp,", "-accel kvm", "-cpu host", "-smp 4",
	} {
		if err != nil || !strings.Contains(got, part) {
			t.Errorf("%v, no %s in\n%s", err, part, got)
		}
	}
}

func TestQEMUSaysWhatIsMissing(t *testing.T) {
	path := vnictest.WriteConfig(t, qemuTestConfig)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noSocket := vnictest.WriteConfig(t, strings.ReplaceAll(qemuTestConfig, "/run/g1.sock", filepath.Join(t.TempDir(), "absent")))
	inTheWay := vnictest.WriteConfig(t, strings.ReplaceAll(qemuTestConfig, "/run/g1.sock", plain))
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
		{"is not a socket", []string{"-c", inTheWay, "--guest", "1001", "--run", "--qemu", "true"}},
		{"guest 1001 has no function pf0.vf2; it has pf0, pf0.vf1", []string{"-c", path, "--guest", "1001", "--functions", "pf0.vf2"}},
		{"--tap pf9: guest 1001 has no such function; it has pf0, pf0.vf1", []string{"-c", path, "--guest", "1001", "--tap", "pf9=x"}},
		{"--tap pf0: that function has no port with mode bridged", []string{"-c", path, "--guest", "1001", "--tap", "pf0=x"}},
		{"0 to 8", []string{"-c", path, "--guest", "1001", "--hotplug", "9"}},
		{"the guest does not run", []string{"status", "-c", noSocket, "--guest", "1001"}},
		{"no device to plug", []string{"plug", "-c", path, "--guest", "1001", "pf0"}},
		{"has no function pf0.vf9", []string{"plug", "-c", path, "--guest", "1001", "pf0.vf9"}},
	} {
		if out, err := vnictest.Here(t, qemu.Command(), tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v %s", tt.args, err, out)
		}
	}
}

// TestQEMUNeedsItsTAP: vnic qemu --run refuses a TAP that does not exist, or whose MTU is smaller
// than the port's.
func TestQEMUNeedsItsTAP(t *testing.T) {
	vnictest.RequireRoot(t)
	dir, err := os.MkdirTemp("", "vnic-tap-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "g1.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path := vnictest.WriteConfig(t, strings.ReplaceAll(qemuTestConfig, "/run/g1.sock", socket))
	netns.Run(t, func() {
		refused := func(want string) {
			t.Helper()
			if _, err := vnictest.Here(t, qemu.Command(), "-c", path, "--guest", "1001", "--run", "--qemu", "true"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		refused("there is no TAP vp1g; make it (ip tuntap add vp1g mode tap && ip link set vp1g mtu 4432 master gbr1 up)")
		if out, err := exec.Command("ip", "tuntap", "add", "vp1g", "mode", "tap").CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		refused("TAP vp1g has MTU 1500 and the port 4432: longer packets would be lost; ip link set vp1g mtu 4432")
	})
}
