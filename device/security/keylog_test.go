package security

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// TestKeyLogFile: keys are written to a file that only this user can access, in a folder where
// nobody else can change names. Any other file is refused and not changed.
func TestKeyLogFile(t *testing.T) {
	top := t.TempDir()
	mkdir := func(name string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(top, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Chmod(top, 0o700); err != nil {
		t.Fatal(err)
	}
	own := mkdir("own", 0o700)
	file := func(name string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(own, name)
		if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	name := func(parts ...string) string { return filepath.Join(parts...) }
	linked, pipe, symlink := file("linked", 0o600), name(own, "pipe"), name(own, "symlink")
	for _, err := range []error{
		os.Link(linked, name(own, "other name")), unix.Mkfifo(pipe, 0o600), os.Symlink(file("target", 0o600), symlink), os.Symlink(own, name(top, "way")),
		os.Mkdir(name(mkdir("open to all", 0o777), "inside"), 0o700), os.Mkdir(name(mkdir("sticky", os.ModeSticky|0o777), "inside"), 0o700),
		os.Mkdir(name(mkdir("open to a group", 0o770), "inside"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path, wrong string // "": it is taken
		made        bool   // by opening
	}{
		{file("mine", 0o600), "", false},
		{name(own, "new"), "", true},
		{name(top, "way", "new too"), "", true},
		{name(top, "sticky", "inside", "new"), "", true},
		{file("for a group", 0o640), "chmod 600", false},
		{file("for all", 0o604), "chmod 600", false},
		{linked, "2 names", false},
		{pipe, "", false}, // refused, below: by the kernel, for nobody reads it
		{symlink, "symbolic link", false},
		{own, "directory", false},
		{name(top, "nowhere", "new"), "no such file", false},
		{name(top, "open to all", "new"), "folder", false},
		{name(top, "open to all", "inside", "new"), "folder", false},
		{name(top, "open to a group", "inside", "new"), "folder", false},
		{name(top, "sticky", "new"), "folder", false},
	} {
		refused := func(err error) bool {
			if c.path == pipe {
				return err != nil
			}
			return (err == nil) == (c.wrong == "") && (err == nil || strings.Contains(err.Error(), c.wrong))
		}
		if err := CheckKeyLog(c.path); !refused(err) {
			t.Errorf("checking %s: %v", c.path, err)
		}
		if open := opened(t, c.path); open != 0 {
			t.Errorf("checking %s leaves it open %d times", c.path, open)
		}
		if _, err := os.Lstat(c.path); c.made && err == nil {
			t.Errorf("checking has made %s", c.path)
		}
		f, err := OpenKeyLog(c.path)
		if !refused(err) {
			t.Errorf("%s: %v", c.path, err)
		}
		if err != nil {
			continue
		}
		if _, err := f.WriteString("key\n"); err != nil {
			t.Error(err)
		}
		f.Close()
		want := "before\nkey\n"
		if c.made {
			want = "key\n"
		}
		text, err := os.ReadFile(c.path)
		fi, serr := os.Stat(c.path)
		if err != nil || serr != nil || string(text) != want || fi.Mode() != 0o600 {
			t.Errorf("%s: %q, %v, %v", c.path, text, err, serr)
		}
	}
}

// TestKeyLogOfOthers: a file or folder of another user is refused; root's folders are accepted.
func TestKeyLogOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	const other = 4242
	dir := filepath.Join(t.TempDir(), "dir")
	file := filepath.Join(dir, "keys")
	for _, err := range []error{os.Chmod(filepath.Dir(dir), 0o755), os.Mkdir(dir, 0o700), os.WriteFile(file, nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path  string // whose owner is changed
		wrong string
	}{{"", ""}, {file, "belongs to user 4242"}, {dir, "user 4242"}, {filepath.Dir(dir), "user 4242"}} {
		if c.path != "" {
			if err := os.Chown(c.path, other, 0); err != nil {
				t.Fatal(err)
			}
		}
		err := CheckKeyLog(file)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s is another's: %v", c.path, err)
		}
		if c.path != "" {
			if err := os.Chown(c.path, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// opened counts the descriptors that this process has of a file.
func opened(t *testing.T, path string) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == path {
			n++
		}
	}
	return n
}

// text is a file in memory.
type text struct{ strings.Builder }

func (*text) Close() error { return nil }

// TestKeyLogOverrun: if a slow disk cannot keep up, later keys are lost, and an error reports this
// after the earlier keys were written.
func TestKeyLogOverrun(t *testing.T) {
	for n, lines := range map[int]int{0: 3, maxKeyLog: 1, maxKeyLog + 1: 0} {
		var failed []error
		w := &text{}
		l := &KeyLog{w: w, done: make(chan struct{}), waiting: make([]byte, n)}
		l.failed = func(err error) { failed = append(failed, err) }
		l.changed = sync.NewCond(&l.mu)
		for range 3 {
			l.sa("rx", "2", Use{}, &cm.SA{})
		}
		l.end = true
		l.run()
		if got := strings.Count(w.String(), "class=falcon\n"); got != lines {
			t.Errorf("%d bytes wait: %d lines more are written, want %d", n, got, lines)
		}
		if told := len(failed) == 1 && strings.Contains(failed[0].Error(), "did not keep up"); told != (lines < 3) {
			t.Errorf("%d bytes wait: told %v", n, failed)
		}
	}
}

// TestKeyLogFails: the first write error ends the log, and is reported.
func TestKeyLogFails(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	failed := make(chan error, 2)
	l := NewKeyLog(f, func(err error) { failed <- err })
	for range 3 {
		l.sa("rx", "2", Use{}, &cm.SA{})
	}
	if err := <-failed; !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := l.Close(); err != nil || len(failed) != 0 {
		t.Error(err, len(failed))
	}
}
