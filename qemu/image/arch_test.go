package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKernelsHeaderSaysItsArchitecture takes the magic numbers of Linux's boot protocols.
func TestKernelsHeaderSaysItsArchitecture(t *testing.T) {
	header := func(at int, magic string) string { return strings.Repeat("\x00", at) + magic }
	for text, want := range map[string]Arch{
		header(0x202, "HdrS"):      AMD64,
		header(56, "ARM\x64"):      ARM64,
		header(56, "ARM"):          "",
		"MZ\x00\x00zimg and so on": "",
	} {
		path := filepath.Join(t.TempDir(), "vmlinuz")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		arch, err := KernelArch(path)
		if arch != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, arch, err)
		}
	}
}

// TestOtherArchitectureHasListsOfItsOwn: this machine's apt is not told of packages of another
// architecture. Those lists are fetched once a day.
func TestOtherArchitectureHasListsOfItsOwn(t *testing.T) {
	const apt = `echo "$* ${APT_CONFIG##*/}" >>"$FETCHED"
	case "$*" in
		indextargets*) echo "Debian Debian main http://here/debian/";;
		*download*) : > linux.deb;;
	esac`
	_, err := ownSuite()
	need(t, err == nil, "this machine is no Debian")
	cache, fetched := debian(t, map[string]string{
		"apt-get": apt,
		"depends": `test "$APT_CONFIG"; echo "  Depends: linux-image-6.1.0-9-arm64"`,
		"show":    `test "$APT_CONFIG"; echo "Version: 6.1.9-1"`,
		"dpkg-deb": `mkdir -m 700 "$3" "$3/boot"; mkdir -p "$3/lib/modules/6.1.0-9-arm64"
			(head -c 56 /dev/zero; printf 'ARM\144') > "$3/boot/vmlinuz-6.1.0-9-arm64"`,
	})
	for range 2 {
		k, err := FetchRelease(t.Context(), cache, string(ARM64))
		if err != nil || k.Arch != ARM64 || k.Release != "6.1.0-9-arm64" || k.Boot() != k.Image {
			t.Errorf("%+v, %v", k, err)
		}
	}
	said := fetched()
	for _, want := range []string{"-qq update -o APT::Update::Error-Mode=any apt.conf\n", "download linux-image-6.1.0-9-arm64=6.1.9-1 apt.conf\n"} {
		if strings.Count(said, want) != 1 {
			t.Errorf("no %q, or not once, in\n%s", want, said)
		}
	}
	config, err := os.ReadFile(filepath.Join(filepath.Dir(cache), "apt-arm64", "apt.conf"))
	if err != nil || !strings.Contains(string(config), `APT::Architecture "arm64"`) || !strings.Contains(string(config), "apt-arm64/lists") {
		t.Errorf("%s, %v", config, err)
	}
}
