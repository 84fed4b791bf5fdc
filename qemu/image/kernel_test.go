package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What apt and dpkg do for a kernel of the test's: each is a script.
const (
	aptDepends = `printf 'linux-image-amd64\n  Depends: linux-base\n  Depends: linux-image-6.1.0-9-amd64\n  Depends: linux-image-5.1.0-9-amd64\n'`
	aptShow    = `printf 'Package: linux-image-6.1.0-9-amd64\nVersion: 6.1.9-1\nDescription: x\nVersion: 5\n'`
	aptGet     = `echo "$*" >> "$FETCHED"; : > linux.deb`
	dpkgDeb    = `mkdir -m 700 "$3" "$3/boot"; mkdir -p "$3/lib/modules/6.1.0-9-amd64"
		(head -c 514 /dev/zero; printf HdrS) > "$3/boot/vmlinuz-6.1.0-9-amd64"
		: > "$3/lib/modules/6.1.0-9-amd64/a.ko.xz"`
	xz = `shift; for f; do mv "$f" "${f%.xz}"; done`
)

// debian puts the programs into the path, some with another script, and returns a folder for
// kernels and what apt-get was asked for.
func debian(t *testing.T, instead map[string]string) (cache string, fetched func() string) {
	t.Helper()
	dir := t.TempDir()
	scripts := map[string]string{"depends": aptDepends, "show": aptShow, "apt-get": aptGet, "dpkg-deb": dpkgDeb, "xz": xz, "zstd": `false`}
	maps.Copy(scripts, instead)
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nset -e\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "apt-cache"), []byte("#!/bin/sh\nexec \"${0%/*}/$1\" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	asked := filepath.Join(dir, "fetched")
	t.Setenv("FETCHED", asked)
	return filepath.Join(dir, "cache", "kernels"), func() string {
		b, err := os.ReadFile(asked)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(b)
	}
}

// TestAKernelIsDownloadedOnce: a kernel is downloaded once, in the version that apt offers. An unpacked one that
// cannot be used is replaced.
func TestAKernelIsDownloadedOnce(t *testing.T) {
	cache, fetched := debian(t, nil)
	dir := filepath.Join(cache, "linux-image-6.1.0-9-amd64_6.1.9-1")
	want := Kernel{Release: "6.1.0-9-amd64", Image: filepath.Join(dir, "boot/vmlinuz-6.1.0-9-amd64"), Modules: filepath.Join(dir, "lib/modules/6.1.0-9-amd64"), Arch: AMD64}
	if err := os.MkdirAll(filepath.Join(dir, "boot"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(cache, ".new-1", "root"), 0o755); err != nil { // a killed process was here
		t.Fatal(err)
	}
	for i := range 2 {
		if k, err := FetchKernel(t.Context(), cache); err != nil || k != want {
			t.Errorf("%d: %+v, %v", i, k, err)
		}
		if said := fetched(); strings.Count(said, "\n") != 1 || !strings.HasSuffix(said, "download linux-image-6.1.0-9-amd64=6.1.9-1\n") {
			t.Errorf("%d: downloaded %q", i, said)
		}
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", fi, err)
	}
	if _, err := os.Stat(filepath.Join(want.Modules, "a.ko")); err != nil {
		t.Errorf("a module is not unpacked: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestAKernelIsFetchedByItsRelease: the package of a release is its own kernel.
func TestAKernelIsFetchedByItsRelease(t *testing.T) {
	cache, fetched := debian(t, map[string]string{"depends": `echo "$2"; echo "  Depends: kmod"`})
	if k, err := FetchRelease(t.Context(), cache, "6.1.0-9-amd64"); err != nil || k.Release != "6.1.0-9-amd64" {
		t.Errorf("%+v, %v", k, err)
	}
	if said := fetched(); !strings.HasSuffix(said, "download linux-image-6.1.0-9-amd64=6.1.9-1\n") {
		t.Errorf("downloaded %q", said)
	}
}

// TestAptIsAskedAgainWhenItsListsChange: until then the kernel is the one that it named last.
func TestAptIsAskedAgainWhenItsListsChange(t *testing.T) {
	cache, _ := debian(t, map[string]string{
		"show":     `echo asked >> "$FETCHED.show"; ` + aptShow,
		"dpkg-deb": dpkgDeb + `; : > "$3/boot/vmlinux-6.1.0-9-amd64"`,
	})
	lists, saved := t.TempDir(), aptFiles
	aptFiles = []string{lists}
	t.Cleanup(func() { aptFiles = saved })
	changed := func(when time.Time) {
		t.Helper()
		if err := os.Chtimes(lists, when, when); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what  string
		lists time.Duration // when they changed, from now
		asked int           // in all
	}{
		{"nobody has asked", -time.Hour, 1},
		{"nothing has changed", -time.Hour, 1},
		{"there are other lists", time.Hour, 2},
		{"they may have changed while it was asked", -time.Hour, 3},
		{"nothing has changed any more", -time.Hour, 3},
	} {
		changed(time.Now().Add(c.lists))
		if k, err := FetchKernel(t.Context(), cache); err != nil || filepath.Base(filepath.Dir(filepath.Dir(k.Image))) != "linux-image-6.1.0-9-amd64_6.1.9-1" {
			t.Fatalf("%s: %+v, %v", c.what, k, err)
		}
		if b, err := os.ReadFile(os.Getenv("FETCHED") + ".show"); err != nil || strings.Count(string(b), "asked") != c.asked {
			t.Errorf("%s: apt was asked %q, want %d times: %v", c.what, b, c.asked, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(cache, "linux-image-6.1.0-9-amd64_6.1.9-1")); err != nil {
		t.Fatal(err)
	}
	if _, err := FetchKernel(t.Context(), cache); err != nil {
		t.Errorf("the folder that apt's answer names is gone: %v", err)
	}
}

// TestAFailedFetchSaysWhyAndLeavesNothing: the error has the words of the program that failed, and nothing is left in the
// cache.
func TestAFailedFetchSaysWhyAndLeavesNothing(t *testing.T) {
	const fails = `echo "no luck" >&2; exit 1`
	for _, c := range []struct {
		name, script, says string
	}{
		{"depends", fails, "guest kernel: linux-image-amd64: apt-cache: exit status 1: no luck; a Debian system with apt sources is needed"},
		{"depends", `echo "  Depends: linux-base"`, "linux-image-amd64 depends on no kernel package"},
		{"depends", `echo "  Recommends: linux-image-6.1.0-9-amd64"`, "linux-image-amd64 depends on no kernel package"},
		{"show", fails, "apt-cache: exit status 1: no luck"},
		{"show", `echo "Package: x"`, "apt knows no version of linux-image-6.1.0-9-amd64"},
		{"apt-get", fails, "apt-get: exit status 1: no luck"},
		{"apt-get", `printf 'begin%0999dend' 0 >&2; exit 1`, "apt-get: exit status 1: " + strings.Repeat("0", 497) + "end"},
		{"apt-get", ":", "left 0 packages"},
		{"apt-get", ": > a.deb; : > b.deb", "left 2 packages"},
		{"dpkg-deb", fails, "dpkg-deb: exit status 1: no luck"},
		{"dpkg-deb", `mkdir "$3"`, "0 files boot/vmlinuz-*"},
		{"xz", fails, "find: exit status 1: no luck"},
	} {
		t.Run(c.name+": "+c.script, func(t *testing.T) {
			cache, _ := debian(t, map[string]string{c.name: c.script})
			k, err := FetchKernel(t.Context(), cache)
			if k != (Kernel{}) || err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v, %v", k, err)
			}
			entries, err := os.ReadDir(cache)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() != ".lock" {
					t.Errorf("%s is left", e.Name())
				}
			}
		})
	}
	cache, _ := debian(t, nil)
	if err := os.WriteFile(filepath.Dir(cache), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := FetchKernel(t.Context(), cache); k != (Kernel{}) || !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a folder that cannot be made: %+v, %v", k, err)
	}
}

// TestAKernelWithCompressedModulesIsNotDownloadedWithoutXZ: the error comes before the download and names the package.
func TestAKernelWithCompressedModulesIsNotDownloadedWithoutXZ(t *testing.T) {
	for release, compressed := range map[string]bool{"6.1.0-9-amd64": false, "6.5.0-1-amd64": false, "6.6.9-amd64": true, "6.12.41+deb13-amd64": true, "7.0.1-amd64": true} {
		cache, fetched := debian(t, map[string]string{"depends": "echo '  Depends: linux-image-" + release + "'", "apt-get": `echo "$*" >> "$FETCHED"; exit 1`})
		scripts, _, _ := strings.Cut(os.Getenv("PATH"), ":")
		if err := os.Remove(filepath.Join(scripts, "xz")); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", scripts)
		_, err := FetchKernel(t.Context(), cache)
		if said := fmt.Sprint(err); strings.Contains(said, "apt-get install xz-utils") != compressed || (fetched() == "") != compressed {
			t.Errorf("%s: %s, downloaded %q", release, said, fetched())
		}
	}
}

// TestCacheIsLocked: one process at a time downloads into a folder; another waits until its context
// ends.
func TestCacheIsLocked(t *testing.T) {
	dir := t.TempDir()
	unlock, err := LockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LockDir(ctx, dir); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "another process works in "+dir) {
		t.Errorf("%v", err)
	}
	unlock()
	if unlock, err = LockDir(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := LockDir(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestKernelsAreKeptInTheUsersCache: kernels are kept in the user's cache folder.
func TestKernelsAreKeptInTheUsersCache(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/x/caches")
	if dir, err := DefaultCache(); err != nil || dir != "/x/caches/vnic/kernels" {
		t.Errorf("%q, %v", dir, err)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if dir, err := DefaultCache(); err == nil || dir != "" || !strings.Contains(err.Error(), "set XDG_CACHE_HOME") {
		t.Errorf("%q, %v", dir, err)
	}
}
