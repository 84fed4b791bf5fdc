package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// options are those of a line from an option on, less those that every line ends with.
func options(t *testing.T, l *Line, from string) []string {
	t.Helper()
	groups, err := l.Options()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, g := range groups {
		all = append(all, strings.Join(g, " "))
	}
	at := slices.IndexFunc(all, func(s string) bool { return strings.HasPrefix(s, from) })
	if at < 0 {
		t.Fatalf("no %s in %q", from, all)
	}
	return all[at:]
}

// TestLineOfFunctions: functions by vfio-user follow the windows on the bus, in slots of their own
// where there is an IOMMU, which comes before them. They need no vsock.
func TestLineOfFunctions(t *testing.T) {
	l := &Line{
		Memory: 1 << 30, Accel: TCG,
		Vfio:    []Vfio{{Function: "pf0.vf1", Socket: "/run/a,b"}, {Function: "pf0.vf2", Socket: "/run/c"}},
		HotPlug: 2, Monitor: "/run/m,n", Share: "/home/x,y", Disk: "/dev/null",
	}
	tail := []string{
		"-device pcie-root-port,id=hot0,chassis=1,slot=1,addr=1c.0,multifunction=on",
		"-device pcie-root-port,id=hot1,chassis=2,slot=2,addr=1c.1",
		"-qmp unix:/run/m,,n,server=on,wait=off", "-drive file=/dev/null,if=virtio,format=raw",
		"-virtfs local,path=/home/x,,y,mount_tag=share,security_model=mapped-xattr", "-nographic", "-serial mon:stdio",
	}
	want := append([]string{
		`-device {"addr":"08.0","driver":"vfio-user-pci","id":"pf0.vf1","multifunction":true,"socket":{"path":"/run/a,b","type":"unix"}}`,
		`-device {"addr":"08.1","driver":"vfio-user-pci","id":"pf0.vf2","socket":{"path":"/run/c","type":"unix"}}`, "-nic none",
	}, tail...)
	if d := cmp.Diff(want, options(t, l, "-device")); d != "" {
		t.Error(d)
	}
	l.IOMMU, l.Windows, l.Vsock = true, []Window{{"pf0.vf3", "/run/w"}}, "/run/g"
	want = append([]string{
		"-device intel-iommu,intremap=on,caching-mode=on", "-chardev socket,id=vsock,path=/run/g", "-device vhost-user-vsock-pci,id=vsock,chardev=vsock",
		"-chardev socket,id=window-pf0.vf3,path=/run/w", "-device ivshmem-doorbell,id=pf0.vf3,chardev=window-pf0.vf3,vectors=5,addr=08.0",
		`-device {"addr":"09.0","driver":"vfio-user-pci","id":"pf0.vf1","socket":{"path":"/run/a,b","type":"unix"}}`,
		`-device {"addr":"0a.0","driver":"vfio-user-pci","id":"pf0.vf2","socket":{"path":"/run/c","type":"unix"}}`, "-nic none",
	}, tail...)
	if d := cmp.Diff(want, options(t, l, "-device")); d != "" {
		t.Error(d)
	}
	l.Vfio = nil
	if got := options(t, l, "-device")[0]; got != "-device intel-iommu,intremap=on" {
		t.Errorf("without functions: %s", got)
	}
}

// TestAddressesOfWindows: eight share a slot; apart, each has its own while there are slots, and
// then the next function of them in turn. The first of a slot says that others follow.
func TestAddressesOfWindows(t *testing.T) {
	for _, tt := range []struct {
		i, n  int
		apart bool
		want  string
	}{
		{0, 1, false, "addr=08.0,multifunction=on"},
		{7, 9, false, "addr=08.7"},
		{8, 9, false, "addr=09.0,multifunction=on"},
		{159, 160, false, "addr=1b.7"},
		{0, 1, true, "addr=08.0"},
		{0, 20, true, "addr=08.0"},
		{0, 21, true, "addr=08.0,multifunction=on"},
		{1, 21, true, "addr=09.0"},
		{19, 21, true, "addr=1b.0"},
		{20, 21, true, "addr=08.1"},
		{40, 41, true, "addr=08.2"},
		{19, 40, true, "addr=1b.0,multifunction=on"},
		{159, 160, true, "addr=1b.7"},
	} {
		if got := windowAddress(tt.i, tt.n, tt.apart); got != tt.want {
			t.Errorf("%d of %d, apart %t: %s, want %s", tt.i, tt.n, tt.apart, got, tt.want)
		}
	}
}

// TestLineOfPorts: a port on a TAP is told its MTU and, if it is known, its speed.
func TestLineOfPorts(t *testing.T) {
	l := &Line{
		Memory: 1 << 30, Accel: TCG, Vsock: "/run/g",
		Ports: []Port{{Function: "pf0", TAP: "t0", MAC: "02::1", MTU: 1400}, {Function: "pf1", TAP: "t1", MAC: "02::2", MTU: 9000, Speed: 1}},
		Extra: []string{"-snapshot"},
	}
	want := []string{
		"-netdev tap,id=port-pf0,ifname=t0,script=no,downscript=no", "-device virtio-net-pci,id=port-pf0,netdev=port-pf0,mac=02::1,host_mtu=1400",
		"-netdev tap,id=port-pf1,ifname=t1,script=no,downscript=no", "-device virtio-net-pci,id=port-pf1,netdev=port-pf1,mac=02::2,host_mtu=9000,speed=1,duplex=full",
		"-nographic", "-serial mon:stdio", "-snapshot",
	}
	if d := cmp.Diff(want, options(t, l, "-netdev")); d != "" {
		t.Error(d)
	}
	for _, p := range l.Ports {
		if d := p.properties(); (d["speed"] != nil) != (p.Speed > 0) || (d["duplex"] != nil) != (p.Speed > 0) {
			t.Errorf("%+v", d)
		}
	}
}

// TestLinesThatFit: a bus has room for so many windows and functions, of both kinds together.
func TestLinesThatFit(t *testing.T) {
	for _, tt := range []struct {
		windows, functions int
		ok                 bool
	}{
		{MaxWindows, 0, true},
		{0, MaxWindows, true},
		{MaxWindows - 1, 1, true},
		{MaxWindows, 1, false},
		{1, MaxWindows, false},
		{MaxWindows + 1, 0, false},
	} {
		l := Line{Memory: 1 << 30, Vsock: "s", Windows: make([]Window, tt.windows), Vfio: make([]Vfio, tt.functions)}
		says := fmt.Sprintf("guest with %d windows and functions", tt.windows+tt.functions)
		if err := l.check(); (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%d windows and %d functions: %v", tt.windows, tt.functions, err)
		}
	}
	for name, tt := range map[string]struct {
		l  Line
		ok bool
	}{
		"functions are enough":    {Line{Vfio: make([]Vfio, 1)}, true},
		"the kernel's vsock, too": {Line{KernelVsock: &KernelVsock{}}, true},
		"nothing":                 {Line{}, false},
		"kernel":                  {Line{Vsock: "s", Kernel: "k"}, true},
		"kernel with both":        {Line{Vsock: "s", Kernel: "k", Initrd: "i", Append: "a"}, true},
		"initrd alone":            {Line{Vsock: "s", Initrd: "i"}, false},
		"command line alone":      {Line{Vsock: "s", Append: "a"}, false},
	} {
		tt.l.Memory = MinLineMemory
		if err := tt.l.check(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDiskFormat: a disk has the format that the user says, else the one that its name says, else it
// is raw; never one that the guest has written into it.
func TestDiskFormat(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct{ name, content, said, want string }{
		{"disk", "", "", "raw"},
		{"disk.raw", "QFI\xfb", "", "raw"},
		{"disk.img", "QFI\xfb and a backing file", "", "raw"},
		{"disk.qcow2", "", "", "qcow2"},
		{"disk.qcow2", "QFI\xfb", "raw", "raw"},
		{"qcow2", "QFI\xfb", "", "raw"},
		{"disk", "", "qcow2", "qcow2"},
	} {
		l := Line{Name: "g", Memory: MinLineMemory, CPUs: 1, Accel: TCG, Vsock: "/v", Disk: filepath.Join(dir, tt.name), DiskFormat: tt.said}
		if err := os.WriteFile(l.Disk, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Shell(); err != nil || !strings.Contains(got, tt.name+",if=virtio,format="+tt.want+" ") {
			t.Errorf("%+v: %s, %v", tt, got, err)
		}
	}
	l := Line{Name: "g", Memory: MinLineMemory, CPUs: 1, Accel: TCG, Vsock: "/v", Disk: filepath.Join(dir, "none")}
	if _, err := l.Shell(); err == nil {
		t.Error("a disk that is not there")
	}
}

// TestQuoted: a word is quoted for a shell if anything in it may mean something there.
func TestQuoted(t *testing.T) {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,:/+@%"
	for r := rune(1); r < 0x100; r++ {
		for _, word := range []string{string(r), "a" + string(r), string(r) + "a"} {
			want := word
			if !strings.ContainsRune(plain, r) {
				want = "'" + word + "'"
			}
			if r == '\'' {
				continue
			}
			if got := quote(word); got != want {
				t.Errorf("%q: %s", word, got)
			}
		}
	}
	if got := quote(""); got != "''" {
		t.Errorf("nothing: %s", got)
	}
	if got := quote("it's"); got != `'it'\''s'` {
		t.Errorf("a quote: %s", got)
	}
}

// TestMachineLimits: the borders of what a machine may be, and one step beyond.
func TestMachineLimits(t *testing.T) {
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

// TestMachineDevices: TAPs are inherited in the order of the NICs that have one; windows, functions
// and root ports are as in a line.
func TestMachineDevices(t *testing.T) {
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

// TestProcessors: a machine that TCG emulates has room for a second CPU.
func TestProcessors(t *testing.T) {
	for _, tt := range []struct {
		cpus  int
		accel Accel
		want  string
	}{{0, TCG, "1,maxcpus=2"}, {1, TCG, "1,maxcpus=2"}, {2, TCG, "2"}, {0, KVM, "1"}, {1, KVM, "1"}, {2, KVM, "2"}} {
		if got := smp(tt.cpus, tt.accel); got != tt.want {
			t.Errorf("%d CPUs with %s: %s, want %s", tt.cpus, tt.accel, got, tt.want)
		}
	}
}

// TestVirtualization: the flags of either vendor's processors say that they run guests.
func TestVirtualization(t *testing.T) {
	for info, want := range map[string]bool{
		"flags : fpu vmx\n": true, "flags\t: svm fpu\n": true, "flags : fpu\n": false, "flags : vmx2\n": false, "vmx flags : svm\n": false,
		"bugs : vmx\nflags : fpu\n": false, "flags : fpu\nflags : svm\n": true, "flags": false, "": false,
	} {
		if got := hasVirtualization([]byte(info)); got != want {
			t.Errorf("%q: %t", info, got)
		}
	}
}

// TestVersions: a version is what a QEMU says first that looks like one.
func TestVersions(t *testing.T) {
	for text, want := range map[string]Version{
		"QEMU emulator version 7.2.22 (Debian 1:7.2)": 702, "11.1.3": 1101, "v10.0": 1000,
		"9.99": 999, "none": 0, "7": 0, "": 0,
	} {
		got := parseVersion(text)
		if got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
		if name := fmt.Sprintf("%d.%d", want/100, want%100); want != 0 && got.String() != name {
			t.Errorf("%d is called %s, want %s", got, got, name)
		}
	}
	if Version(702).String() != "7.2" || Version(0).String() != "not to be run here" {
		t.Errorf("%s, %s", Version(702), Version(0))
	}
	for v, want := range map[Version]string{0: "reconnect=1", 901: "reconnect=1", 902: "reconnect-ms=1000", 1101: "reconnect-ms=1000"} {
		if got := v.reconnect(); got != want {
			t.Errorf("%s: %s", v, got)
		}
	}
	for v, want := range map[Version]bool{0: true, 999: true, 1000: false, 1101: false} {
		if got := (Port{}).noMSIX(v, TCG); got != want || (Port{}).noMSIX(v, KVM) {
			t.Errorf("%s: without MSI-X %t", v, got)
		}
	}
	if v := VersionOf("/nonexistent/qemu"); v != 0 {
		t.Errorf("of none: %s", v)
	}
	script := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ \"$*\" = --version ] && echo QEMU emulator version 8.1.2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if v := VersionOf(script); v != 801 {
		t.Errorf("%s, want 8.1", v)
	}
}

// TestMachineAsksItsVersion: what a port needs of its QEMU depends on the version, which that QEMU
// is asked once.
func TestMachineAsksItsVersion(t *testing.T) {
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
