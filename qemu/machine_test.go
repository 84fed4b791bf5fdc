package qemu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArgumentsOfAMachine(t *testing.T) {
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
		"-machine", "q35,memory-backend=m0", "-accel", "tcg", "-cpu", "max,-erms,-fsrm", "-smp", "2", "-m", "512M",
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

func TestImpossibleMachinesAreRefused(t *testing.T) {
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

// TestLimitsOfAMachineAreAllowed: the smallest and largest values of a machine are allowed, and one
// beyond is not.
func TestLimitsOfAMachineAreAllowed(t *testing.T) {
	used := len(strings.Join(baseKernelArgs, " ")) + 1 // with the space behind
	for name, tt := range map[string]struct {
		change func(*Machine)
		ok     bool
	}{
		"as it is":           {func(*Machine) {}, true},
		"64 MiB":             {func(m *Machine) { m.Memory = 64 }, true},
		"63 MiB":             {func(m *Machine) { m.Memory = 63 }, false},
		"255 CPUs":           {func(m *Machine) { m.CPUs = 255 }, true},
		"256 CPUs":           {func(m *Machine) { m.CPUs = 256 }, false},
		"-1 CPUs":            {func(m *Machine) { m.CPUs = -1 }, false},
		"32 words for init":  {func(m *Machine) { m.InitArgs = slices.Repeat([]string{"x"}, 32) }, true},
		"33 words for init":  {func(m *Machine) { m.InitArgs = slices.Repeat([]string{"x"}, 33) }, false},
		"2047 bytes":         {func(m *Machine) { m.KernelArgs = []string{strings.Repeat("x", 2047-used)} }, true},
		"2048 bytes":         {func(m *Machine) { m.KernelArgs = []string{strings.Repeat("x", 2048-used)} }, false},
		"an empty word":      {func(m *Machine) { m.InitArgs = []string{""} }, false},
		"a NIC":              {func(m *Machine) { m.NICs = []NIC{{TAP: os.Stdin, MAC: "02::1"}} }, true},
		"a NIC without TAP":  {func(m *Machine) { m.NICs = []NIC{{MAC: "02::1"}} }, false},
		"a NIC without MAC":  {func(m *Machine) { m.NICs = []NIC{{TAP: os.Stdin}} }, false},
		"a port as NIC":      {func(m *Machine) { m.NICs = []NIC{{Port: &Port{}}} }, true},
		"a NIC that is none": {func(m *Machine) { m.NICs = []NIC{{}} }, false},
	} {
		m := Machine{Binary: "/nonexistent/qemu", Kernel: "k", Console: FileChardev("c"), Accel: TCG}
		tt.change(&m)
		if _, err := m.Args(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDevicesOfAMachineKeepTheirOrder: QEMU inherits the TAPs in the order of the NICs that have
// one; windows, functions and root ports are placed as in a CommandLine.
func TestDevicesOfAMachineKeepTheirOrder(t *testing.T) {
	m := Machine{
		Binary: "/nonexistent/qemu", Kernel: "k", Console: FileChardev("c"), Accel: KVM,
		Windows: []Window{{"w0", "/w0"}, {"w1", "/w1"}}, Vfio: []Vfio{{Function: "f0", Socket: "/f0"}}, HotPlug: 2,
		NICs: []NIC{
			{TAP: os.Stdin, MAC: "02::1"},
			{Port: &Port{Function: "p", Socket: "/p", MAC: "02::2", MTU: 1500, Queues: 1}},
			{TAP: os.Stdin, MAC: "02::3", MTU: 1},
		},
	}
	args, err := m.Args()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(args, "-chardev")
	for range 2 { // console and output
		at += 1 + slices.Index(args[at+1:], "-chardev")
	}
	want := []string{
		"-chardev", "socket,id=window-w0,path=/w0", "-device", "ivshmem-doorbell,id=w0,chardev=window-w0,vectors=5,addr=08.0,multifunction=on",
		"-chardev", "socket,id=window-w1,path=/w1", "-device", "ivshmem-doorbell,id=w1,chardev=window-w1,vectors=5,addr=08.1",
		"-device", `{"addr":"08.2","driver":"vfio-user-pci","id":"f0","socket":{"path":"/f0","type":"unix"}}`,
		"-device", "pcie-root-port,id=hot0,chassis=1,slot=1,addr=1c.0,multifunction=on", "-device", "pcie-root-port,id=hot1,chassis=2,slot=2,addr=1c.1",
		"-netdev", "tap,id=net0,fd=5", "-device", "virtio-net-pci,netdev=net0,mac=02::1,romfile=",
		"-chardev", "socket,id=port-p-socket,path=/p,reconnect=1", "-netdev", "vhost-user,id=port-p,chardev=port-p-socket,queues=1",
		"-device", "virtio-net-pci,id=port-p,netdev=port-p,mac=02::2,host_mtu=1500,romfile=",
		"-netdev", "tap,id=net1,fd=6", "-device", "virtio-net-pci,netdev=net1,mac=02::3,romfile=,host_mtu=1",
	}
	if d := cmp.Diff(want, args[at:]); d != "" {
		t.Error(d)
	}
}

// TestMachineAsksQEMUsVersionOnce: the arguments of a port depend on QEMU's version, for which the
// program is run once.
func TestMachineAsksQEMUsVersionOnce(t *testing.T) {
	dir := t.TempDir()
	script, asked := filepath.Join(dir, "qemu"), filepath.Join(dir, "asked")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho x >> "+asked+"; echo version 10.1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := Machine{Binary: script, Kernel: "k", Console: FileChardev("c"), Accel: TCG, NICs: []NIC{{TAP: os.Stdin, MAC: "02::1"}}}
	for _, ports := range []int{0, 1, 3} {
		for range ports {
			m.NICs = append(m.NICs, NIC{Port: &Port{Function: "p", Socket: "/p", Queues: 1}})
		}
		args, err := m.Args()
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(strings.Join(args, " "), "path=/p,reconnect-ms=1000"); n != len(m.NICs)-1 {
			t.Errorf("%d ports, %d are connected as that QEMU can", len(m.NICs)-1, n)
		}
		b, err := os.ReadFile(asked)
		if ports == 0 && !os.IsNotExist(err) || ports > 0 && string(b) != "x\n" {
			t.Errorf("%d ports: asked %q, %v", ports, b, err)
		}
		_ = os.Remove(asked)
	}
}
