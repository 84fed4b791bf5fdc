package qemu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLine(t *testing.T) {
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk.qcow2")
	if err := os.WriteFile(disk, []byte("QFI\xfb and more"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Line{
		Name: "vnic-guest7", Memory: 1 << 30, CPUs: 2, Accel: TCG, Vsock: "/run/g,7.sock",
		Kernel: "/k", Initrd: "/i", Append: "console=ttyS0 root='x'", Disk: disk, Extra: []string{"-snapshot", "-serial", "mon:stdio"},
	}
	got, err := l.Shell()
	want := `qemu-system-x86_64 \
  -name vnic-guest7 \
  -machine q35,memory-backend=m0 \
  -accel tcg \
  -cpu max \
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
	// What a shell makes of the printed line is what Argv says.
	out, err := exec.Command("sh", "-c", "printf '%s\\n' "+got).Output()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Join(argv, "\n")+"\n", string(out)); d != "" {
		t.Error(d)
	}

	l = Line{Name: "g", Memory: 2 << 30, Accel: KVM, KernelVsock: &KernelVsock{CID: 42, RAMFile: "/dev/shm/g"}}
	argv, err = l.Argv()
	wantArgs := "qemu-system-x86_64 -name g -machine q35,memory-backend=m0 -accel kvm -cpu host -smp 1 -m 2048M" +
		" -object memory-backend-file,id=m0,mem-path=/dev/shm/g,size=2048M,share=on -device vhost-vsock-pci,id=vsock,guest-cid=42 -nic none -nographic -serial mon:stdio"
	if err != nil || strings.Join(argv, " ") != wantArgs {
		t.Errorf("%v\n%q", err, argv)
	}
}

func TestBadLines(t *testing.T) {
	good := Line{Memory: 1 << 30, Vsock: "s"}
	if _, err := good.Argv(); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Line){
		"without a vsock": func(l *Line) { l.Vsock = "" },
		"64 or more":      func(l *Line) { l.Memory = 32 << 20 },
		"whole MiB":       func(l *Line) { l.Memory++ },
		"CPUs":            func(l *Line) { l.CPUs = 256 },
		"need a kernel":   func(l *Line) { l.Append = "quiet" },
		"disk image":      func(l *Line) { l.Disk = "/absent" },
	} {
		l := good
		spoil(&l)
		if _, err := l.Shell(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestLineLimits: the borders of what a line may ask for are allowed, and one step beyond is not.
func TestLineLimits(t *testing.T) {
	good := Line{Name: "g", Memory: MinLineMemory, Accel: TCG, Vsock: "/run/g.sock"}
	for name, tc := range map[string]struct {
		change func(*Line)
		ok     bool
	}{
		"as it is":          {func(*Line) {}, true},
		"most hot-plug":     {func(l *Line) { l.HotPlug = MaxHotPlug }, true},
		"too much hot-plug": {func(l *Line) { l.HotPlug = MaxHotPlug + 1 }, false},
		"negative hot-plug": {func(l *Line) { l.HotPlug = -1 }, false},
		"too little memory": {func(l *Line) { l.Memory = MinLineMemory - 1<<20 }, false},
		"half a MiB":        {func(l *Line) { l.Memory = MinLineMemory + 1<<19 }, false},
		"most CPUs":         {func(l *Line) { l.CPUs = 255 }, true},
		"too many CPUs":     {func(l *Line) { l.CPUs = 256 }, false},
		"negative CPUs":     {func(l *Line) { l.CPUs = -1 }, false},
		"no vsock":          {func(l *Line) { l.Vsock = "" }, false},
	} {
		l := good
		tc.change(&l)
		if err := l.check(); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
