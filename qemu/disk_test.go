package qemu

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOverlayKeepsTheDiskAsItIs: guests of one disk have overlays of their own, which name the disk by
// its absolute path. One that exists is used again.
func TestOverlayKeepsTheDiskAsItIs(t *testing.T) {
	_, err := exec.LookPath("qemu-img")
	need(t, err == nil, "qemu-img is not installed")
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("guests", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("disk.raw", make([]byte, 1<<20), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := Overlay(t.Context(), "disk.raw", "guests/a.qcow2"); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("qemu-img", "info", "guests/a.qcow2").CombinedOutput()
	for _, want := range []string{"file format: qcow2", "backing file: " + filepath.Join(dir, "disk.raw"), "backing file format: raw"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, no %q in\n%s", err, want, out)
		}
	}
	if err := os.WriteFile("guests/a.qcow2", []byte("what the guest wrote"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Overlay(t.Context(), "disk.raw", "guests/a.qcow2"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile("guests/a.qcow2"); err != nil || string(b) != "what the guest wrote" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestOverlaySaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	overlay := filepath.Join(dir, "a.qcow2")
	if err := Overlay(t.Context(), filepath.Join(dir, "absent"), overlay); err == nil || !strings.Contains(err.Error(), "absent: no such file") {
		t.Errorf("%v", err)
	}
	t.Setenv("PATH", dir)
	if err := Overlay(context.Background(), "disk_test.go", overlay); err == nil || !strings.Contains(err.Error(), "install qemu-utils") {
		t.Errorf("%v", err)
	}
}
