package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArgs(t *testing.T) {
	m := Machine{
		Name: "a,b", Memory: 512, CPUs: 2, Accel: TCG, Kernel: "/k", Initrd: "/i", KernelArgs: []string{"quiet"}, InitArgs: []string{"guest", "info"},
		Vsock: "/run/g,1.sock", Windows: []Window{{"pf0.vf1", "/run/w"}}, NICs: []NIC{{TAP: os.Stdin, MAC: "02:00:00:00:00:01", MTU: 4000}}, Disk: "/d,1", Console: FileChardev("/log,1"), Output: SocketChardev("/out"), Monitor: SocketChardev("/qmp"),
	}
	got, err := m.Args()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
		"-machine", "q35,memory-backend=m0", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "512M",
		"-object", "memory-backend-memfd,id=m0,size=512M,share=on",
		"-kernel", "/k", "-append", strings.Join(baseKernelArgs, " ") + " quiet -- guest info",
		"-chardev", "file,id=console,path=/log,,1", "-serial", "chardev:console",
		"-chardev", "socket,id=output,path=/out,server=on,wait=off", "-serial", "chardev:output",
		"-name", "a,,b", "-initrd", "/i",
		"-chardev", "socket,id=vsock,path=/run/g,,1.sock", "-device", "vhost-user-vsock-pci,id=vsock,chardev=vsock",
		"-chardev", "socket,id=window-pf0.vf1,path=/run/w", "-device", "ivshmem-doorbell,id=pf0.vf1,chardev=window-pf0.vf1,vectors=5,addr=08.0,multifunction=on",
		"-drive", "file=/d,,1,if=virtio,format=raw,snapshot=on",
		"-netdev", "tap,id=net0,fd=5", "-device", "virtio-net-pci,netdev=net0,mac=02:00:00:00:00:01,romfile=,host_mtu=4000",
		"-chardev", "socket,id=monitor,path=/qmp,server=on,wait=off", "-mon", "chardev=monitor,mode=control",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	m.Accel = KVM
	if got, err = m.Args(); err != nil || !strings.Contains(strings.Join(got, " "), "-accel kvm -cpu host") {
		t.Errorf("%v, %v", got, err)
	}
	m.IOMMU = true // which tells of new mappings where a PCI function has to know them
	for _, m.Vfio = range [][]Vfio{nil, {{Function: "pf0.vf2", Socket: "/run/v"}}} {
		if got, err = m.Args(); err != nil || strings.Contains(strings.Join(got, " "), "caching-mode=on") != (m.Vfio != nil) {
			t.Errorf("%v, %v", got, err)
		}
	}
}

func TestBadMachines(t *testing.T) {
	good := Machine{Kernel: "k", Console: FileChardev("c")}
	if _, err := good.Args(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Machine){
		"without a kernel":  func(m *Machine) { m.Kernel = "" },
		"without a console": func(m *Machine) { m.Console = Chardev{} },
		"MiB":               func(m *Machine) { m.Memory = 8 },
		"CPUs":              func(m *Machine) { m.CPUs = -1 },
		"white space":       func(m *Machine) { m.InitArgs = []string{"two words"} },
		"quotes":            func(m *Machine) { m.KernelArgs = []string{`a="b"`} },
		"both are needed":   func(m *Machine) { m.NICs = []NIC{{TAP: os.Stdin}} },
		"at most 32":        func(m *Machine) { m.InitArgs = make([]string, 33) },
		"2047":              func(m *Machine) { m.InitArgs = []string{strings.Repeat("x", 2048)} },
	} {
		m := good
		spoil(&m)
		if _, err := m.Args(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestDetectAccel(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	device := file("kvm", "")
	vmx := file("vmx", "processor\t: 0\nflags\t\t: fpu vmx sse\n")
	none := file("none", "processor\t: 0\nflags\t\t: fpu sse\nvmx flags\t: vnmi\n")
	for _, tt := range []struct {
		cpuinfo, device string
		want            Accel
	}{{vmx, device, KVM}, {none, device, TCG}, {vmx, filepath.Join(dir, "absent"), TCG}, {filepath.Join(dir, "absent"), device, TCG}} {
		if got := detectAccel(tt.cpuinfo, tt.device); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}
