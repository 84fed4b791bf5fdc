package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLibrariesOfAProgramAreFoundInPackages lays out a program of this machine and what it needs as two packages have it.
func TestLibrariesOfAProgramAreFoundInPackages(t *testing.T) {
	program, err := exec.LookPath("dpkg-deb")
	need(t, err == nil, "dpkg-deb is not installed")
	files, err := withLibraries([]string{program}, nil)
	need(t, err == nil && len(files) > 2, "dpkg-deb is static, or its libraries are elsewhere")
	a, b := t.TempDir(), t.TempDir()
	link := func(to, at string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	copied := func(from, to string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := copyOf(from, to); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"/bin/dpkg-deb"}
	copied(program, filepath.Join(a, "usr/bin/dpkg-deb"))
	for _, f := range files[1:] {
		name := filepath.Base(f.name)
		if _, err := os.Lstat(filepath.Join(b, "lib/x86_64-linux-gnu", name)); err == nil {
			continue // the loader, by both its names
		}
		copied(f.from, filepath.Join(b, "lib/x86_64-linux-gnu", name+".real"))
		link(name+".real", filepath.Join(b, "lib/x86_64-linux-gnu", name))
		if strings.HasPrefix(name, "ld-") { // as libc6 has it
			link("/lib/x86_64-linux-gnu/"+name, filepath.Join(b, "lib64", name))
			want = append(want, "/lib64/"+name)
		}
		want = append(want, "/lib/x86_64-linux-gnu/"+name)
	}
	puts, err := pick([]string{a, b}, []string{"dpkg-deb"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range puts {
		if st, err := os.Stat(p.From); err != nil || st.Size() == 0 || !strings.HasPrefix(p.From, a) && !strings.HasPrefix(p.From, b) {
			t.Errorf("%s comes from %s: %v", p.To, p.From, err)
		}
		if !slices.Contains(want, p.To) {
			t.Errorf("%s was not wanted", p.To)
		}
	}
	for _, name := range want {
		if !strings.Contains(name, "/ld-") && !slices.ContainsFunc(puts, func(p Put) bool { return p.To == name }) {
			t.Errorf("no %s", name)
		}
	}
	for _, bad := range [][]string{{"dpkg-deb", "none"}, {"none"}} {
		if _, err := pick([]string{a, b}, bad); err == nil || !strings.Contains(err.Error(), "no none in the packages") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := pick([]string{a}, []string{"dpkg-deb"}); err == nil {
		t.Error("a program without its libraries")
	}
}

func copyOf(from, to string) error {
	body, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, body, 0o755)
}
