package lab_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab"
)

// openImage opens an image that is one file, and counts how often it is made.
func openImage(t *testing.T, dir string, kept int, name string, made *atomic.Int32) *os.File {
	t.Helper()
	path, inUse, err := lab.OpenImage(t.Context(), dir, kept, name, func(part string) error {
		made.Add(1)
		return os.WriteFile(filepath.Join(part, "initrd"), []byte(name), 0o644)
	})
	if err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(path, "initrd")); err != nil || string(b) != name {
		t.Errorf("image %s has %q: %v", name, b, err)
	}
	return inUse
}

// imagesIn lists a folder, without the file of its lock.
func imagesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestImageIsMadeOnce: labs that need the same image at the same time have one made, and use it.
func TestImageIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	var made atomic.Int32
	var labs sync.WaitGroup
	for range 8 {
		labs.Go(func() { openImage(t, dir, 6, "one", &made).Close() })
	}
	labs.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("it was made %d times", n)
	}
}

// TestImageIsWhole: what was not made to its end is no image, and does not stay.
func TestImageIsWhole(t *testing.T) {
	dir := t.TempDir()
	fails := errors.New("no room")
	for range 2 { // the second finds what the first left, as a process that is killed leaves it
		_, _, err := lab.OpenImage(t.Context(), dir, 6, "one", func(part string) error {
			if left := imagesIn(t, dir); !slices.Equal(left, []string{filepath.Base(part)}) {
				t.Errorf("beside what is made there is %v", left)
			}
			return errors.Join(os.WriteFile(filepath.Join(part, "initrd"), []byte("half"), 0o644), fails)
		})
		if !errors.Is(err, fails) {
			t.Fatal(err)
		}
	}
	var made atomic.Int32
	openImage(t, dir, 6, "one", &made).Close()
	if all := imagesIn(t, dir); made.Load() != 1 || !slices.Equal(all, []string{"one"}) {
		t.Errorf("made %d times, there is %v", made.Load(), all)
	}
}

// TestImagesUsedLastStay: the number of images is bounded, and one that a process has in use stays, also
// if that is not the process that opened it.
func TestImagesUsedLastStay(t *testing.T) {
	dir := t.TempDir()
	var made atomic.Int32
	use := func(names ...string) {
		t.Helper()
		for _, name := range names {
			openImage(t, dir, 2, name, &made).Close()
		}
	}
	want := func(names ...string) {
		t.Helper()
		if all := imagesIn(t, dir); !slices.Equal(all, names) {
			t.Errorf("there is %v, want %v", all, names)
		}
	}
	use("a", "b", "a", "c")
	want("a", "c")
	inUse := openImage(t, dir, 2, "a", &made)
	guest := exec.Command("sleep", "1000")
	guest.ExtraFiles = []*os.File{inUse}
	if err := guest.Start(); err != nil {
		t.Fatal(err)
	}
	defer guest.Process.Kill() //nolint:errcheck // it has ended
	inUse.Close()
	use("d", "e", "f")
	want("a", "e", "f")
	if n := made.Load(); n != 6 {
		t.Errorf("%d were made, want 6: a stays", n)
	}
	_ = guest.Process.Kill()
	_ = guest.Wait()
	use("f")
	want("e", "f")
}

// TestImageIsOfItsContent: an image has another name if the arguments or the content of their files are
// others, and not if the files are elsewhere.
func TestImageIsOfItsContent(t *testing.T) {
	name := func(content, option string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "foo.ko")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		name, err := lab.Recipe([]string{option, path}, []string{path})
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	one := name("1", "--module")
	if same := name("1", "--module"); same != one {
		t.Errorf("the same elsewhere is %s, was %s", same, one)
	}
	if name("2", "--module") == one || name("1", "--file") == one {
		t.Error("another image has the same name")
	}
	if _, err := lab.Recipe(nil, []string{"/nonexistent/foo.ko"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
