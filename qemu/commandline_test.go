package qemu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandLineRunsInAShell(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk.qcow2")
	if err := os.WriteFile(disk, []byte("QFI\xfb and more"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := CommandLine{
		Name: "vnic-guest7", Memory: 1 << 30, CPUs: 2, Accel: TCG, Vsock: "/run/g,7.sock",
		Kernel: "/k", Initrd: "/i", Append: "console=ttyS0 root='x'", Disk: disk, Extra: []string{"-snapshot", "-serial", "mon:stdio"},
	}
	got, err := l.Shell()
	want := `qemu-system-x86_64 \
  -name vnic-guest7 \
  -machine q35,memory-backend=m0 \
  -accel tcg \
  -cpu max,-erms,-fsrm \
  -smp 2 \
  -m 1024M \
  -object memory-backend-memfd,id=m0,size=1024M,share=on \
  -chardev socket,id=vsock,path=/run/g,,7.sock \
  -device vhost-user-vsock-pci,id=vsock,chardev=vsock \
  -nic none \
  -kernel /k \
  -initrd /i \
  -append 'console=ttyS0 root='\''x'\''' \
  -drive file=` + disk + `,if=virtio,format=qcow2 \
  -nographic \
  -snapshot -serial mon:stdio
`
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	argv, err := l.Argv()
	if err != nil {
		t.Fatal(err)
	}
	// A shell splits the printed line into the words of Argv.
	out, err := exec.Command("sh", "-c", "printf '%s\\n' "+got).Output()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Join(argv, "\n")+"\n", string(out)); d != "" {
		t.Error(d)
	}

	l = CommandLine{Name: "g", Memory: 2 << 30, Accel: KVM, KernelVsock: &KernelVsock{CID: 42, RAMFile: "/dev/shm/g"}}
	argv, err = l.Argv()
	wantArgs := "qemu-system-x86_64 -name g -machine q35,memory-backend=m0 -accel kvm -cpu host -smp 1 -m 2048M" +
		" -object memory-backend-file,id=m0,mem-path=/dev/shm/g,size=2048M,share=on -device vhost-vsock-pci,id=vsock,guest-cid=42 -nic none -nographic -serial mon:stdio"
	if err != nil || strings.Join(argv, " ") != wantArgs {
		t.Errorf("%v\n%q", err, argv)
	}
}

func TestImpossibleCommandLinesAreRefused(t *testing.T) {
	good := CommandLine{Memory: 1 << 30, Vsock: "s"}
	if _, err := good.Argv(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*CommandLine){
		"without a vsock": func(l *CommandLine) { l.Vsock = "" },
		"64 or more":      func(l *CommandLine) { l.Memory = 32 << 20 },
		"whole MiB":       func(l *CommandLine) { l.Memory++ },
		"CPUs":            func(l *CommandLine) { l.CPUs = 256 },
		"need a kernel":   func(l *CommandLine) { l.Append = "quiet" },
		"disk image":      func(l *CommandLine) { l.Disk = "/absent" },
	} {
		l := good
		spoil(&l)
		if _, err := l.Shell(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestLimitsOfACommandLineAreAllowed: the smallest and largest values of a command line are
// allowed, and one beyond is not.
func TestLimitsOfACommandLineAreAllowed(t *testing.T) {
	good := CommandLine{Name: "g", Memory: MinMemory, Accel: TCG, Vsock: "/run/g.sock"}
	for name, tc := range map[string]struct {
		change func(*CommandLine)
		ok     bool
	}{
		"as it is":          {func(*CommandLine) {}, true},
		"most hot-plug":     {func(l *CommandLine) { l.HotPlug = MaxHotPlug }, true},
		"too much hot-plug": {func(l *CommandLine) { l.HotPlug = MaxHotPlug + 1 }, false},
		"negative hot-plug": {func(l *CommandLine) { l.HotPlug = -1 }, false},
		"too little memory": {func(l *CommandLine) { l.Memory = MinMemory - 1<<20 }, false},
		"half a MiB":        {func(l *CommandLine) { l.Memory = MinMemory + 1<<19 }, false},
		"most CPUs":         {func(l *CommandLine) { l.CPUs = 255 }, true},
		"too many CPUs":     {func(l *CommandLine) { l.CPUs = 256 }, false},
		"negative CPUs":     {func(l *CommandLine) { l.CPUs = -1 }, false},
		"no vsock":          {func(l *CommandLine) { l.Vsock = "" }, false},
	} {
		l := good
		tc.change(&l)
		if err := l.check(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// options returns the options of a command line from one option on, without those at the end of
// every line.
func options(t *testing.T, l *CommandLine, from string) []string {
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

// TestFunctionsFollowTheWindowsOnTheBus: functions by vfio-user follow the windows on the bus. With
// an IOMMU, which comes before them, each has a slot of its own. They need no vsock.
func TestFunctionsFollowTheWindowsOnTheBus(t *testing.T) {
	l := &CommandLine{
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

// TestEightWindowsShareASlot: eight share a slot; apart, each has its own while there are slots,
// and then the next function of them in turn. The first of a slot says that others follow.
func TestEightWindowsShareASlot(t *testing.T) {
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

// TestTAPPortsShowMTUAndSpeed: the device of a port on a TAP has the port's MTU and, if known, its
// speed.
func TestTAPPortsShowMTUAndSpeed(t *testing.T) {
	l := &CommandLine{
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

// TestBusHasRoomForSoManyDevices: the number of windows and functions together is limited by the
// room on the bus.
func TestBusHasRoomForSoManyDevices(t *testing.T) {
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
		l := CommandLine{Memory: 1 << 30, Vsock: "s", Windows: make([]Window, tt.windows), Vfio: make([]Vfio, tt.functions)}
		says := fmt.Sprintf("guest with %d windows and functions", tt.windows+tt.functions)
		if err := l.check(); (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%d windows and %d functions: %v", tt.windows, tt.functions, err)
		}
	}
	for name, tt := range map[string]struct {
		l  CommandLine
		ok bool
	}{
		"functions are enough":    {CommandLine{Vfio: make([]Vfio, 1)}, true},
		"the kernel's vsock, too": {CommandLine{KernelVsock: &KernelVsock{}}, true},
		"nothing":                 {CommandLine{}, false},
		"kernel":                  {CommandLine{Vsock: "s", Kernel: "k"}, true},
		"kernel with both":        {CommandLine{Vsock: "s", Kernel: "k", Initrd: "i", Append: "a"}, true},
		"initrd alone":            {CommandLine{Vsock: "s", Initrd: "i"}, false},
		"command line alone":      {CommandLine{Vsock: "s", Append: "a"}, false},
	} {
		tt.l.Memory = MinMemory
		if err := tt.l.check(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDiskFormatIsNeverReadFromTheDisk: a disk has the format that the user gives, or the one of
// its file name, or raw; never one that the guest has written into it.
func TestDiskFormatIsNeverReadFromTheDisk(t *testing.T) {
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
		l := CommandLine{Name: "g", Memory: MinMemory, CPUs: 1, Accel: TCG, Vsock: "/v", Disk: filepath.Join(dir, tt.name), DiskFormat: tt.said}
		if err := os.WriteFile(l.Disk, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Shell(); err != nil || !strings.Contains(got, tt.name+",if=virtio,format="+tt.want+" ") {
			t.Errorf("%+v: %s, %v", tt, got, err)
		}
	}
	l := CommandLine{Name: "g", Memory: MinMemory, CPUs: 1, Accel: TCG, Vsock: "/v", Disk: filepath.Join(dir, "none")}
	if _, err := l.Shell(); err == nil {
		t.Error("a disk that is not there")
	}
}

// TestWordsAreQuotedForAShell: a word is quoted if it has a character that a shell may interpret.
func TestWordsAreQuotedForAShell(t *testing.T) {
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
