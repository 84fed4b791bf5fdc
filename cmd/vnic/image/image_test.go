package image

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/qemu/image"
)

// TestImageReplacesTheKernel: the folder also has the unpacked kernel, if there is one, and --image
// boots that. A kernel that was there before is removed.
func TestImageReplacesTheKernel(t *testing.T) {
	dir := t.TempDir()
	from := func(name string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.WriteFile(filepath.Join(dir, "initrd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	packed := from("packed")
	for _, c := range []struct {
		k     image.Kernel
		boots string
	}{
		{image.Kernel{Image: packed}, "vmlinuz packed"},
		{image.Kernel{Image: packed, Unpacked: from("unpacked")}, "vmlinux unpacked"},
		{image.Kernel{Image: packed}, "vmlinuz packed"},
	} {
		if err := copyKernel(c.k, dir); err != nil {
			t.Fatal(err)
		}
		kernel, _, _, err := Files(dir)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(kernel)
		if got := filepath.Base(kernel) + " " + string(b); err != nil || got != c.boots {
			t.Errorf("%+v boots %q, %v", c.k, got, err)
		}
		if b, err = os.ReadFile(filepath.Join(dir, "vmlinuz")); err != nil || string(b) != "packed" {
			t.Errorf("vmlinuz: %q, %v", b, err)
		}
	}
	if err := copyKernel(image.Kernel{Image: packed, Unpacked: dir}, dir); err == nil {
		t.Error("a kernel that cannot be read was copied")
	}
}

// TestImageRefusesFlagsOfTheOther: what is for disks only, or for another architecture, is refused
// before anything is made.
func TestImageRefusesFlagsOfTheOther(t *testing.T) {
	for want, o := range map[string]options{
		"--mirror needs --disk":         {arch: "amd64", mirror: "http://here"},
		"--ssh-key needs --disk":        {arch: "amd64", sshKey: "key.pub"},
		"--package ./x.deb: files":      {arch: "amd64", packages: []string{"./x.deb"}},
		"--arch mips: want":             {arch: "mips"},
		"name the one for the guest by": {arch: "arm64"},
	} {
		o.out = filepath.Join(t.TempDir(), "guest")
		if _, err := o.make(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := os.Stat(o.out); err == nil {
			t.Errorf("%s: something was made", want)
		}
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("-----BEGIN OPENSSH PRIVATE KEY-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]options{
		"this is the private key": {disk: "d.qcow2", sshKey: key},
		"--ssh-key: open /absent": {disk: "d.qcow2", sshKey: "/absent"},
		"--file: stat /absent":    {disk: "d.qcow2", files: []string{"/absent"}},
	} {
		if err := o.makeDisk(t.Context(), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
