package image

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// What apt-get and dpkg-deb do for packages of the test's.
const (
	aptResolves = `for a; do
			case $a in Dir::Cache::archives=*) dir=${a#*=};; --print-uris) uris=1;; esac
		done
		if [ "$uris" ]; then
			echo "'http://x/tool_1%3a2-3_amd64.deb' tool_1%3a2-3_amd64.deb 10 SHA256:aa"; echo "$*" >> "$FETCHED.asked"
		else
			echo "$*" >> "$FETCHED"; : > "$dir/tool_1%3a2-3_amd64.deb"
		fi`
	dpkgExtracts = `echo "$*" >> "$FETCHED"
		mkdir -p "$3/usr/bin" "$3/usr/share/doc"; cp "$FETCHED.program" "$3/usr/bin/tool"`
)

// TestPackagesAreDownloadedOnce: packages are downloaded when one is missing, and not again.
func TestPackagesAreDownloadedOnce(t *testing.T) {
	cache, fetched := debian(t, map[string]string{"apt-get": aptResolves})
	want := []Package{{"tool", "1:2-3", filepath.Join(cache, "packages", "tool_1%3a2-3_amd64.deb")}}
	for i := range 2 {
		ps, err := FetchPackages(t.Context(), cache, []string{"tool", "other"})
		if err != nil || !slices.Equal(ps, want) {
			t.Errorf("%d: %+v, %v", i, ps, err)
		}
		said := fetched()
		if strings.Count(said, "\n") != 1 || !strings.HasSuffix(said, " install --download-only bash coreutils iproute2 udhcpc usr-is-merged tool other\n") {
			t.Errorf("%d: downloaded %q", i, said)
		}
	}
	if left, err := filepath.Glob(filepath.Join(cache, "packages", ".resolve-*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestFetchPackagesFails: an error says what is wrong and what to do about it.
func TestFetchPackagesFails(t *testing.T) {
	const fails = `echo "no luck" >&2; exit 1`
	for script, says := range map[string]string{
		fails:              "packages for the guest: apt-get: exit status 1: no luck; a name is wrong",
		"echo nothing":     "apt-get names no package",
		"echo \"'x' a b\"": `apt-get names a file "a"`,
		`case "$*" in *--print-uris*) echo "'x' a_1_b.deb 1";; *) echo "no room" >&2; exit 1;; esac`: "no room",
	} {
		cache, _ := debian(t, map[string]string{"apt-get": script})
		if _, err := FetchPackages(t.Context(), cache, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", script, err, says)
		}
	}
	cache, _ := debian(t, nil)
	if err := os.WriteFile(filepath.Dir(cache), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FetchPackages(t.Context(), cache, nil); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a folder that cannot be made: %v", err)
	}
}

// TestAGuestGetsOnlyTheProgramsOfPackages: a guest gets only the programs of packages. A package is unpacked once,
// without files that nobody needs in a guest.
func TestAGuestGetsOnlyTheProgramsOfPackages(t *testing.T) {
	cache, fetched := debian(t, map[string]string{"apt-get": aptResolves, "dpkg-deb": dpkgExtracts})
	writeELF(t, os.Getenv("FETCHED")+".program", elf.EM_X86_64, "")
	root := filepath.Join(cache, "unpacked", "tool_1%3a2-3_amd64")
	for i := range 2 {
		puts, err := FetchPrograms(t.Context(), cache, []string{"tool"}, []string{"tool"})
		if want := []Put{{filepath.Join(root, "usr/bin/tool"), "/bin/tool"}}; err != nil || !slices.Equal(puts, want) {
			t.Errorf("%d: %+v, %v", i, puts, err)
		}
		if said := fetched(); strings.Count(said, "--extract") != 1 || strings.Contains(said, "usr-is-merged") {
			t.Errorf("%d: did %q", i, said)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/share")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("documentation is unpacked: %v", err)
	}
	if _, err := FetchPrograms(t.Context(), cache, []string{"tool"}, []string{"none"}); err == nil || !strings.Contains(err.Error(), "no none in the packages tool_1") {
		t.Errorf("a program that there is not: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "unpacked", ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestAPackageThatCannotBeUnpackedLeavesNothing: a package that cannot be unpacked leaves nothing behind.
func TestAPackageThatCannotBeUnpackedLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name, script, says, left string
	}{
		{"cannot be read", `echo "no archive" >&2; exit 2`, "dpkg-deb: exit status 2: no archive", ".lock"},
		{"something is in the way", `mkdir -p "$3"; : > "$3/../../x_1_all"`, "rename", ".lock x_1_all"},
		{"nothing was unpacked", `:`, "rename", ".lock"},
	} {
		debian(t, map[string]string{"dpkg-deb": tt.script})
		cache := filepath.Join(t.TempDir(), "unpacked")
		if _, err := (Package{Name: "x", File: "/packages/x_1_all.deb"}).unpacked(t.Context(), cache); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if left := filesOf(t, cache); left != tt.left {
			t.Errorf("%s: left is %s", tt.name, left)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Package{File: "x_1_all.deb"}).unpacked(t.Context(), filepath.Join(file, "x")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a folder that cannot be made: %v", err)
	}
}

// TestOneOfSeveralProcessesUnpacksAPackage: of several processes that need a package at the same time, one unpacks it.
// Remains of a killed process are removed.
func TestOneOfSeveralProcessesUnpacksAPackage(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "unpacked")
	if err := os.MkdirAll(filepath.Join(cache, ".new-1", "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	debian(t, map[string]string{"dpkg-deb": `mkdir "${3%/.new-*}/once"; mkdir "$3"`})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, err := Package{Name: "x", File: "/packages/x_1_all.deb"}.unpacked(t.Context(), cache)
			if err != nil || dir != filepath.Join(cache, "x_1_all") {
				t.Errorf("%q, %v", dir, err)
			}
		})
	}
	all.Wait()
	if left := filesOf(t, cache); left != ".lock once x_1_all" {
		t.Errorf("left is %s", left)
	}
}
