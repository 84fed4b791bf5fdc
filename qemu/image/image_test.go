package image

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// need skips a test this machine cannot run, or fails it where it must run.
func need(t *testing.T, ok bool, reason string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// TestBytesOfAnArchiveAreThoseOfNewc holds the archive's bytes: newc headers are 110 characters of
// hexadecimal, names and bodies padded to four.
func TestBytesOfAnArchiveAreThoseOfNewc(t *testing.T) {
	var b bytes.Buffer
	c := &cpioWriter{w: &b}
	c.add(cpioEntry{name: "dev", mode: cpioDir | 0o755}, nil)
	c.add(cpioEntry{name: "dev/console", mode: cpioChar | 0o600, major: 5, minor: 1}, nil)
	c.add(cpioEntry{name: "init", mode: cpioFile | 0o755, size: 5}, strings.NewReader("hello and more"))
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	z := strings.Repeat("00000000", 1)
	header := func(ino, mode, size, major, minor, name string) string {
		return "070701" + ino + mode + z + z + "00000001" + z + size + z + z + major + minor + name + z
	}
	want := header("00000001", "000041ED", z, z, z, "00000004") + "dev\x00\x00\x00" +
		header("00000002", "00002180", z, "00000005", "00000001", "0000000C") + "dev/console\x00\x00\x00" +
		header("00000003", "000081ED", "00000005", z, z, "00000005") + "init\x00\x00hello\x00\x00\x00" +
		header("00000000", z, z, z, z, "0000000B") + "TRAILER!!!\x00\x00\x00\x00"
	if d := cmp.Diff(hex.Dump([]byte(want)), hex.Dump(b.Bytes())); d != "" {
		t.Error(d)
	}
}

func TestCpioShortBody(t *testing.T) {
	c := &cpioWriter{w: &bytes.Buffer{}}
	c.add(cpioEntry{name: "x", mode: cpioFile, size: 5}, strings.NewReader("four"))
	if err := c.close(); err == nil || !strings.Contains(err.Error(), "x: ") {
		t.Errorf("%v", err)
	}
	c = &cpioWriter{w: &bytes.Buffer{}}
	c.add(cpioEntry{name: "x", mode: cpioFile, size: 1 << 32}, strings.NewReader(""))
	if err := c.close(); err == nil || !strings.Contains(err.Error(), "4 GiB") {
		t.Errorf("%v", err)
	}
}

// TestARealKernelOfDebianIsFetchedOnce fetches the real package, so it also proves the cache: the
// second call must not download.
func TestARealKernelOfDebianIsFetchedOnce(t *testing.T) {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		_, err := exec.LookPath(tool)
		need(t, err == nil, tool+" is not installed")
	}
	if testing.Short() {
		t.Skip("fetches a kernel package")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cache, err := DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := FetchKernel(ctx, cache)
	if err != nil {
		need(t, false, "cannot fetch a kernel: "+err.Error())
	}
	_, err = exec.LookPath("xz")
	need(t, err == nil, "xz is not installed")
	if k.Unpacked == "" {
		t.Errorf("%s is not unpacked", k.Image)
	}
	again, err := FetchKernel(ctx, cache)
	if err != nil || again != k {
		t.Errorf("%+v, %v", again, err)
	}
	if again, err = FetchRelease(ctx, cache, k.Release); err != nil || again != k {
		t.Errorf("%s by its release: %+v, %v", k.Release, again, err)
	}
	if _, err := FetchRelease(ctx, cache, "1.0-amd64"); err == nil || !strings.Contains(err.Error(), "linux-image-1.0-amd64") {
		t.Errorf("a kernel that there is not: %v", err)
	}
	files, err := moduleClosure(k, VsockModules)
	if err != nil {
		t.Fatal(err)
	}
	at := make(map[string]int)
	for i, f := range files {
		at[moduleName(f)] = i + 1
	}
	for _, pair := range [][2]string{{"virtio", "virtio_pci"}, {"virtio_ring", "virtio_pci"}, {"vsock", "vmw_vsock_virtio_transport_common"}, {"vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"}} {
		if at[pair[0]] == 0 || at[pair[0]] >= at[pair[1]] {
			t.Errorf("%s must come before %s: %v", pair[0], pair[1], files)
		}
	}
	if _, err := moduleClosure(k, []string{"no_such"}); err == nil || !strings.Contains(err.Error(), "no module no_such") {
		t.Errorf("%v", err)
	}
	exe := filepath.Join(t.TempDir(), "init")
	build := exec.Command("go", "build", "-o", exe, "../testguest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // also when this test itself runs with -race
	if msg, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, msg)
	}
	out := filepath.Join(t.TempDir(), "initramfs")
	if err := (Initramfs{Kernel: k, Init: exe, Modules: VsockModules}).Write(out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil || !bytes.Contains(b, []byte(guestinit.ModuleList[1:])) || !bytes.Contains(b, []byte("/lib/modules/virtio_pci.ko\n")) {
		t.Errorf("archive of %d bytes, %v", len(b), err)
	}
}

// TestAKernelOfOnesOwn: the folder in which it was built, with its modules, or its image alone.
func TestAKernelOfOnesOwn(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"include/config/kernel.release": "7.0.0-mine\n", "arch/x86/boot/bzImage": strings.Repeat("\x00", 514) + "HdrS",
		"drivers/mine.ko": "", "modules.builtin": "kernel/net/vsock.ko\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	k, err := OpenKernel(dir)
	if err != nil || k.Release != "7.0.0-mine" || k.Arch != AMD64 {
		t.Fatalf("%+v, %v", k, err)
	}
	if has, err := k.With([]string{"mine", "vsock", "other"}); err != nil || !slices.Equal(has, []string{"mine", "vsock"}) {
		t.Errorf("modules %v, %v", has, err)
	}
	image, err := OpenKernel(k.Image)
	if err != nil || image.Image != k.Image {
		t.Errorf("%+v, %v", image, err)
	}
	if has, err := image.With([]string{"mine"}); err != nil || len(has) > 0 {
		t.Errorf("modules %v, %v", has, err)
	}
}

func TestOpenKernelRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenKernel(dir); err == nil || !strings.Contains(err.Error(), "0 files") {
		t.Errorf("%v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "boot"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "boot", "vmlinuz-1")
	if err := os.WriteFile(image, make([]byte, 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKernel(dir); err == nil || !strings.Contains(err.Error(), "not a bootable") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(image, append(make([]byte, 0x202), "HdrS"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKernel(dir); err == nil || !strings.Contains(err.Error(), "no modules for 1") {
		t.Errorf("%v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "usr/lib/modules/1"), 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := OpenKernel(dir)
	if err != nil || k.Release != "1" {
		t.Errorf("%+v, %v", k, err)
	}
	if _, err := moduleClosure(k, []string{"a"}); err == nil {
		t.Error("a module from nowhere")
	}
	if err := os.WriteFile(filepath.Join(k.Modules, "modules.builtin"), []byte("kernel/drivers/a-b.ko\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if files, err := moduleClosure(k, []string{"a_b"}); err != nil || len(files) != 0 {
		t.Errorf("built-in module: %v, %v", files, err)
	}
	if err := os.WriteFile(filepath.Join(k.Modules, "c.ko.xz"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := moduleClosure(k, []string{"c"}); err == nil || !strings.Contains(err.Error(), "compressed") {
		t.Errorf("%v", err)
	}
}

func TestInitMustBeStatic(t *testing.T) {
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("no /bin/sh")
	}
	err := Initramfs{Init: "/bin/sh"}.Write(filepath.Join(t.TempDir(), "i"))
	if err == nil || !strings.Contains(err.Error(), "dynamically") || !strings.HasPrefix(err.Error(), "initramfs /") {
		t.Errorf("%v", err)
	}
}

// A program comes with its loader and every library it and they need.
func TestAProgramComesWithItsLibraries(t *testing.T) {
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("no /bin/sh")
	}
	files, err := withLibraries([]string{"/bin/sh"}, []string{"/etc/hostname"})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]bool{}
	for _, f := range files {
		if at[f.name] {
			t.Errorf("%s twice", f.name)
		}
		at[f.name] = true
		if st, err := os.Stat(f.from); err != nil || st.IsDir() {
			t.Errorf("%s: %v", f.from, err)
		}
	}
	if !at["bin/sh"] || !at["etc/hostname"] || !at["lib64/ld-linux-x86-64.so.2"] || !at["lib/x86_64-linux-gnu/libc.so.6"] {
		t.Errorf("%v", files)
	}
	var b bytes.Buffer
	if err := (Initramfs{Init: "/bin/sh"}).archive(&cpioWriter{w: &b}, nil, files); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin\x00", "lib64\x00", "lib/x86_64-linux-gnu\x00", "lib64/ld-linux-x86-64.so.2\x00"} {
		if bytes.Count(b.Bytes(), []byte(name)) < 1 {
			t.Errorf("the archive has no %s", name)
		}
	}
	if _, err := withLibraries([]string{"/etc/passwd"}, nil); err == nil || !strings.Contains(err.Error(), "/etc/passwd") {
		t.Errorf("a program that is none: %v", err)
	}
}
