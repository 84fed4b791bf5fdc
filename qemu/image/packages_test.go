package image

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestParseURIs reads what apt-get prints.
func TestParseURIs(t *testing.T) {
	ps, err := parseURIs("'http://x/busybox_1%3a1.35.0-4_amd64.deb' busybox_1%3a1.35.0-4_amd64.deb 452120 SHA256:aa\nNote: x\n\n'alone'\nword\n'y' a_1_all.deb\n", "/c")
	want := []Package{{"busybox", "1:1.35.0-4", "/c/busybox_1%3a1.35.0-4_amd64.deb"}, {"a", "1", "/c/a_1_all.deb"}}
	if err != nil || !slices.Equal(ps, want) {
		t.Errorf("%+v, %v", ps, err)
	}
	for _, bad := range []string{"", "'x' ../../etc/passwd_1_amd64.deb 1", "'x' y.deb 1"} {
		if ps, err := parseURIs(bad, "/c"); err == nil {
			t.Errorf("%q: %+v", bad, ps)
		}
	}
}

// TestAGuestGetsAPackageWithoutDocumentation makes a package and looks at what a guest gets of it.
func TestAGuestGetsAPackageWithoutDocumentation(t *testing.T) {
	_, err := exec.LookPath("dpkg-deb")
	need(t, err == nil, "dpkg-deb is not installed")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, "p", name) }
	for name, body := range map[string]string{
		"DEBIAN/control": "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.com>\nDescription: x\n",
		"bin/bash":       "shell", "usr/bin/which.debianutils": "which", "usr/share/doc/x/copyright": "long", "lib/x/y": "lib",
	} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("bash", at("bin/rbash")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/sbin", at("sbin")); err != nil { // as base-files of Debian 13 has it
		t.Fatal(err)
	}
	if err := os.Link(at("bin/bash"), at("bin/same")); err != nil {
		t.Fatal(err)
	}
	deb := filepath.Join(dir, "x.deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-b", at(""), deb).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	var b bytes.Buffer
	c := &cpioWriter{w: &b}
	r := Initramfs{Init: deb, Packages: []Package{{Name: "x", File: deb}}, Put: []Put{{deb, "/root/x.deb"}, {at("lib"), "/root/lib"}}}
	if err := r.archive(c, nil, nil); err != nil {
		t.Fatal(err)
	}
	text := listed(t, b.Bytes())
	for _, want := range []string{
		" bin -> usr/bin\n", " sbin -> usr/sbin\n", "40755 usr/sbin\n", " lib64 -> usr/lib64\n", " usr/bin/bash\n", " usr/bin/rbash -> bash\n", " usr/lib/x/y\n", " usr/bin/sh -> bash\n",
		" usr/bin/which -> which.debianutils\n", " usr/bin/vnic -> /init\n", " etc/vnic/start\n", " etc/passwd\n", " root/x.deb\n", " root/lib/x/y\n",
		" lib/modules/order\n", " init\n", " dev/console\n",
		"100755 usr/bin/bash\n", "40755 usr/bin\n", "40755 usr/lib/x\n", "41777 var/tmp\n", "40755 var/lib\n",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q %d times", want, strings.Count(text, want))
		}
	}
	// Of two names of a file one is the link.
	if strings.Count(text, " -> /usr/bin/bash\n")+strings.Count(text, " -> /usr/bin/same\n") != 1 {
		t.Error("a hard link is not a link")
	}
	if strings.Contains(text, "share/doc") || strings.Contains(text, " bin/") || strings.Contains(text, "awk") {
		t.Error("what was not wanted")
	}
	if strings.Contains(text, " usr/sbin -> ") {
		t.Error("a folder is a link to itself")
	}
	for line := range strings.Lines(text) {
		if strings.HasSuffix(line, " etc/vnic/start\n") && !strings.HasPrefix(line, "100755 ") {
			t.Error(line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// listed has a line for each entry of a newc archive: its mode, its name, and where it leads.
func listed(t *testing.T, b []byte) string {
	t.Helper()
	var text strings.Builder
	for {
		field := func(i int) int {
			n, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(b[110 : 110+nameSize-1])
		if name == "TRAILER!!!" {
			return text.String()
		}
		body := (110 + nameSize + 3) &^ 3
		fmt.Fprintf(&text, "%o %s", mode, name)
		if mode&0o170000 == cpioLink {
			fmt.Fprintf(&text, " -> %s", b[body:body+size])
		}
		text.WriteString("\n")
		b = b[(body+size+3)&^3:]
	}
}
