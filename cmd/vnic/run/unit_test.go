package run_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSystemdAcceptsTheUnit: systemd knows every setting of the unit in docs.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	unit, err := os.ReadFile("../../../docs/vnic.service")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.ReplaceAll(string(unit), "/usr/local/bin/vnic", os.Args[0]) // it looks whether the program is there
	path := filepath.Join(t.TempDir(), "vnic.service")
	if err := os.WriteFile(path, []byte(here), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), "vnic.service") {
		t.Errorf("%v\n%s", err, out)
	}
}
