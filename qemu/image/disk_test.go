package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What programs do for a Debian of the test's. mmdebstrap lists its arguments, and its sources.
const (
	aptMirrors = `case $1 in
		indextargets) echo "Debian Debian main http://here/debian/"; echo "Debian Debian-Security main http://here/security/"; echo "Other Other main http://there/";;
	esac`
	bootstraps  = `echo "$*" >>"$FETCHED"; cat >>"$FETCHED"; echo archive`
	filtersNone = "cat"
)

// TestDebianIsMadeOnce: a Debian is made of this machine's mirrors, or of the one that is named, and
// not again for the same packages. Another one takes its place.
func TestDebianIsMadeOnce(t *testing.T) {
	cache, fetched := debian(t, map[string]string{"apt-get": aptMirrors, "mmdebstrap": bootstraps, "mmtarfilter": filtersNone, "newuidmap": ":"})
	fetch := func(suite, mirror string, packages ...string) string {
		t.Helper()
		at, err := FetchDebian(t.Context(), cache, suite, mirror, packages, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(at); err != nil || string(b) != "archive\n" {
			t.Errorf("%q, %v", b, err)
		}
		return at
	}
	at := fetch("trixie", "")
	if again := fetch("trixie", ""); again != at {
		t.Errorf("%s, then %s", at, again)
	}
	said := fetched()
	for _, want := range []string{
		"--include=dbus,", "perftest", " trixie - -\n",
		"deb [signed-by=" + debianKeys + "] http://here/debian/ trixie main\n",
		"http://here/debian/ trixie-updates main\n", "http://here/security/ trixie-security main\n",
	} {
		if strings.Count(said, want) != 1 {
			t.Errorf("no %q, or not once, in\n%s", want, said)
		}
	}
	if other := fetch("trixie", "http://mine/debian", "strace"); other == at {
		t.Errorf("the same archive for other packages: %s", at)
	}
	if said := strings.TrimPrefix(fetched(), said); !strings.Contains(said, "strace") || !strings.Contains(said, "http://mine/debian trixie-updates main") || strings.Contains(said, "security") {
		t.Errorf("from a mirror:\n%s", said)
	}
	if left := filesOf(t, filepath.Join(cache, "debian")); strings.Count(left, "trixie") != 1 {
		t.Errorf("left is %s", left)
	}
}

// TestAFailedDiskSaysWhyAndLeavesNothing: an error says what is wrong and what to do about it, and nothing is left behind.
func TestAFailedDiskSaysWhyAndLeavesNothing(t *testing.T) {
	programs := map[string]string{"apt-get": aptMirrors, "mmdebstrap": `echo "E: no such package" >&2; exit 3`, "mmtarfilter": filtersNone, "newuidmap": ":"}
	cache, _ := debian(t, programs)
	if _, err := FetchDebian(t.Context(), cache, "woody", "", nil, io.Discard); err == nil || !strings.Contains(err.Error(), `suite "woody": want bookworm (Debian 12) or trixie (Debian 13)`) {
		t.Errorf("%v", err)
	}
	if _, err := FetchDebian(t.Context(), cache, "trixie", "", nil, io.Discard); err == nil || !strings.Contains(err.Error(), "mmdebstrap: exit status 3: E: no such package") {
		t.Errorf("%v", err)
	}
	if left := filesOf(t, filepath.Join(cache, "debian")); left != ".lock" {
		t.Errorf("left is %s", left)
	}
	if err := (Disk{Suite: "trixie", Program: "disk.go", Packages: []string{"./absent.deb"}}).Write(t.Context(), cache, "d.qcow2", io.Discard); err == nil || !strings.Contains(err.Error(), "absent.deb: no such file") {
		t.Errorf("%v", err)
	}
	t.Setenv("PATH", t.TempDir())
	err := Disk{Suite: "trixie", Program: "disk.go"}.Write(t.Context(), cache, "d.qcow2", io.Discard)
	for _, want := range []string{"disk d.qcow2: this machine lacks mmdebstrap, fakeroot, mke2fs, grub-mkimage, qemu-img", "; apt-get install mmdebstrap fakeroot e2fsprogs grub-common grub-pc-bin qemu-utils"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestDiskHasFilesOfThisMachine: the program, root's keys, modules, packages and further files are
// added, with their modes.
func TestDiskHasFilesOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"vnic": 0o755, "x.deb": 0o600, "secret": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	d := Disk{
		Packages: []string{"strace", dir + "/x.deb"}, Modules: []string{"a", "b"}, Program: filepath.Join(dir, "vnic"),
		SSHKeys: []byte("ssh-ed25519 K\n"), Put: []Put{{filepath.Join(dir, "secret"), "/root/secret"}},
	}
	names, files := d.packages()
	if !slices.Equal(names, []string{"strace"}) || !slices.Equal(files, []string{dir + "/x.deb"}) {
		t.Errorf("%q %q", names, files)
	}
	at := filepath.Join(dir, "added.tar")
	if err := d.archive(at, files); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		body, _ := io.ReadAll(r)
		got[h.Name] = os.FileMode(h.Mode).String() + " " + string(body)
	}
	for name, want := range map[string]string{
		"usr/local/bin/vnic": "-rwxr-xr-x vnic", "root/.ssh/authorized_keys": "-rw------- ssh-ed25519 K\n",
		"etc/modules-load.d/vnic.conf": "-rw-r--r-- a\nb\n", "var/tmp/packages/x.deb": "-rw------- x.deb", "root/secret": "-rw------- secret",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for _, word := range []string{"root=LABEL=debian", " no_timer_check ", " norandmaps "} {
		if !strings.Contains(got["boot/grub/grub.cfg"], word) || got["setup"] == "" {
			t.Errorf("own files, without %q: %q", word, got)
		}
	}
	d.Program = filepath.Join(dir, "absent")
	if err := d.archive(at, nil); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("%v", err)
	}
}

// TestThePartitionTableIsAsEFISpecifies holds the bytes of a boot sector's partition table (EFI specification, table 5.1).
func TestThePartitionTableIsAsEFISpecifies(t *testing.T) {
	boot := bytes.Repeat([]byte{0xee}, sector)
	writePartition(boot, 2048, 1000)
	want := append([]byte{0x80, 0xfe, 0xff, 0xff, 0x83, 0xfe, 0xff, 0xff, 0, 8, 0, 0}, binary.LittleEndian.AppendUint32(nil, 1000)...)
	want = append(append(want, make([]byte, 48)...), 0x55, 0xaa)
	if !bytes.Equal(boot[446:], want) || !bytes.Equal(boot[440:446], make([]byte, 6)) || boot[439] != 0xee {
		t.Errorf("% x", boot[440:])
	}
}

// TestDiskIsMadeWithinItsTime: when its caller gives up, mmdebstrap is told to end.
func TestDiskIsMadeWithinItsTime(t *testing.T) {
	cache, fetched := debian(t, map[string]string{
		"apt-get": aptMirrors, "mmtarfilter": filtersNone, "newuidmap": ":",
		"mmdebstrap": `trap 'echo unmounted >>"$FETCHED"; exit 1' INT; echo begun >>"$FETCHED"; while :; do sleep 0.05; done`,
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for b, _ := os.ReadFile(os.Getenv("FETCHED")); len(b) == 0; b, _ = os.ReadFile(os.Getenv("FETCHED")) {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	if _, err := FetchDebian(ctx, cache, "trixie", "", nil, io.Discard); err == nil {
		t.Error("no error")
	}
	if said := fetched(); said != "begun\nunmounted\n" {
		t.Errorf("%q", said)
	}
}

// TestADiskIsWrittenWholeOrNotAtAll: a disk has GRUB, the partition and the Debian in their places. If one of the
// programs that make it fails, the error quotes it, the disk that was there stays, and nothing else is left.
func TestADiskIsWrittenWholeOrNotAtAll(t *testing.T) {
	grub := t.TempDir()
	was := grubFolder
	grubFolder = grub
	t.Cleanup(func() { grubFolder = was })
	sector0 := bytes.Repeat([]byte{0xee}, sector)
	boots := func(img []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(grub, "boot.img"), img, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	programs := map[string]string{
		"apt-get": aptMirrors, "mmtarfilter": filtersNone, "newuidmap": ":", "mmdebstrap": `tar -cf - -T /dev/null`, "fakeroot": `shift; exec "$@"`,
		"mke2fs":       `while [ $# -gt 2 ]; do shift; done; { head -c 1048576 /dev/zero; echo system; } >"$1"`,
		"grub-mkimage": `while [ "$1" != --output ]; do shift; done; printf loader >"$2"`,
		"qemu-img":     `head -c 1048583 "$6" >"$7"; stat -c %s "$6" >>"$FETCHED"`,
	}
	fails := func(with string) map[string]string {
		m := maps.Clone(programs)
		m[with] = `case "$*" in *variant=minbase*) tar -cf - -T /dev/null; exit;; esac; echo "` + with + ` is broken" >&2; exit 3`
		return m
	}
	home := t.TempDir()
	d := Disk{Suite: "trixie", Program: filepath.Join(home, "vnic")}
	to := filepath.Join(home, "d.qcow2")
	if err := os.WriteFile(d.Program, []byte("vnic"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		programs map[string]string
		boot     []byte
		why      string
	}{
		{programs, sector0, ""},
		{fails("mmdebstrap"), sector0, "mmdebstrap is broken"},
		{fails("mke2fs"), sector0, "mke2fs is broken"},
		{fails("grub-mkimage"), sector0, "grub-mkimage is broken"},
		{fails("qemu-img"), sector0, "qemu-img is broken"},
		{programs, sector0[:100], "GRUB has 100 and 6 bytes, room is for 512 and 1048064"},
	} {
		boots(c.boot)
		cache, said := debian(t, c.programs)
		err := d.Write(t.Context(), cache, to, io.Discard)
		if (err == nil) != (c.why == "") || err != nil && (!strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "disk "+to)) {
			t.Errorf("%q: %v", c.why, err)
		}
		if err == nil && said() != fmt.Sprintln(int64(diskSize)) {
			t.Errorf("the disk's size is %s", said())
		}
		b, err := os.ReadFile(to)
		if err != nil || len(b) != 1048583 || !bytes.Equal(b[:440], sector0[:440]) || b[446] != 0x80 || string(b[sector:sector+6]) != "loader" || string(b[partition:]) != "system\n" {
			t.Errorf("%q: the disk has %d bytes, %v", c.why, len(b), err)
		}
		if left := filesOf(t, home); left != "d.qcow2 vnic" {
			t.Errorf("%q: left is %s", c.why, left)
		}
		if left := filesOf(t, filepath.Join(cache, "debian")); strings.Count(left, " ") != 1 || !strings.HasPrefix(left, ".lock ") {
			t.Errorf("%q: left is %s", c.why, left)
		}
	}
	if err := os.Remove(filepath.Join(grub, "boot.img")); err != nil {
		t.Fatal(err)
	}
	cache, _ := debian(t, programs)
	if err := d.Write(t.Context(), cache, to, io.Discard); err == nil || !strings.Contains(err.Error(), "install grub-pc-bin") {
		t.Error(err)
	}
}
