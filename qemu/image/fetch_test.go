package image

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// aptResolves is what apt-get does for a package of the test's.
const aptResolves = `for a; do
		case $a in Dir::Cache::archives=*) dir=${a#*=};; --print-uris) uris=1;; esac
	done
	if [ "$uris" ]; then
		echo "'http://x/tool_1%3a2-3_amd64.deb' tool_1%3a2-3_amd64.deb 10 SHA256:aa"
	else
		echo "$*" >> "$FETCHED"; : > "$dir/tool_1%3a2-3_amd64.deb"
	fi`

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
