package lab_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestAGuestFillsNoMemoryByItsConsole: of endless output the end is kept, in two files of bounded size.
func TestAGuestFillsNoMemoryByItsConsole(t *testing.T) {
	log := filepath.Join(t.TempDir(), "m.log")
	said := make([]byte, 3<<20)
	for i := range said {
		said[i] = byte(i >> 7 * 31)
	}
	cmd := exec.Command(vnictest.Program(t), "lab", "watch", log)
	cmd.Stdin = bytes.NewReader(said)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before, err := os.ReadFile(log + ".1")
	if err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	kept := append(before, now...)
	if len(before) > 512<<10 || len(now) > 512<<10 || len(kept) < 500<<10 || !bytes.HasSuffix(said, kept) {
		t.Errorf("kept are %d and %d bytes, the end of what was said: %t", len(before), len(now), bytes.HasSuffix(said, kept))
	}
}
