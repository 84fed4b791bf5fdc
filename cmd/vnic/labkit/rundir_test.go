package labkit

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestRunDirHasAShortPath: sockets in it must not have paths that are too long.
func TestRunDirHasAShortPath(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), strings.Repeat("x", longestTemp)))
	const prefix = "vnic-test-run-"
	dir, remove, err := RunDir(prefix)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	if len(dir) > longestTemp+len(prefix)+10 {
		t.Errorf("%s has %d characters", dir, len(dir))
	}
}
