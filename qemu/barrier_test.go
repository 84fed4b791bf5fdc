package qemu

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// TestBarriers has QEMU translate a program of one memory barrier: the barrier is in what it makes
// of it. Without, a driver looks at the event index before its producer index is to be seen
// (DRV-604).
func TestBarriers(t *testing.T) {
	_, err := exec.LookPath("qemu-system-x86_64")
	need(t, err == nil, "qemu-system-x86_64 is not installed")
	rom := bytes.Repeat([]byte{0xf4}, 64<<10)    // hlt
	copy(rom[0xfff0:], []byte{0x0f, 0xae, 0xf0}) // mfence, at the reset vector
	bios, log := filepath.Join(t.TempDir(), "bios"), filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(bios, rom, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	translated := regexp.MustCompile(`(?s)mfence.*OP:.* hlt`)
	vm := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "q35", "-accel", "tcg", "-cpu", "max",
		"-smp", smp(1, TCG), "-m", "64M", "-bios", bios, "-d", "in_asm,op", "-D", log)
	if err := vm.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = vm.Wait()
	}()
	var said []byte
	for !translated.Match(said) {
		if ctx.Err() != nil {
			t.Fatalf("no translation:\n%s", said)
		}
		time.Sleep(10 * time.Millisecond)
		said, _ = os.ReadFile(log)
	}
	if !regexp.MustCompile(`(?m)^ mb `).Match(said) {
		t.Errorf("no barrier in what QEMU made:\n%s", said)
	}
}
