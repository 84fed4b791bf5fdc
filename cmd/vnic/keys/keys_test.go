package keys

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
)

// TestKeysGrow: hosts join a domain later, vnic keys show lists the identities and when they
// expire, and an identity is revoked.
func TestKeysGrow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	good := func(want string, args ...string) {
		t.Helper()
		if out, errs, code := vnictest.Run(t, append([]string{"keys"}, args...)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("keys %v: exit status %d: %s%s, want %q", args, code, out, errs, want)
		}
	}
	good("1: vnic://site/host/1", "init", "--dir", dir, "--domain", "site", "1")
	good("2: vnic://site/host/2 in "+dir, "add", "--dir", dir, "2")
	good("2: revoked; copy "+dir+"/ca.crl", "revoke", "--dir", dir, "2")
	if _, errs, code := vnictest.Run(t, "keys", "add", "--dir", dir, "2"); code == 0 || !strings.Contains(errs, "host-2.pem exists and is not overwritten") {
		t.Errorf("exit status %d: %s", code, errs)
	}
	if _, errs, code := vnictest.Run(t, "keys", "show", "--dir", dir+"/none"); code == 0 || !strings.Contains(errs, "`vnic keys init` makes one") {
		t.Errorf("exit status %d: %s", code, errs)
	}
	if _, errs, code := vnictest.Run(t, "keys", "add", "--dir", dir, "--domain", "other", "3"); code == 0 || !strings.Contains(errs, "authority of domain site") {
		t.Errorf("another domain: exit status %d: %s", code, errs)
	}
	out, _, _ := vnictest.Run(t, "keys", "show", "--dir", dir)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4 || strings.Join(strings.Fields(lines[0]), " ") != "FILE IDENTITY EXPIRES DAYS KEY STATE" {
		t.Fatalf("%s", out)
	}
	for i, want := range []string{"", "ca.pem the authority 20", "host-1.pem vnic://site/host/1 20", "host-2.pem vnic://site/host/2 20"} {
		line := strings.Join(strings.Fields(lines[i]), " ")
		state := map[bool]string{false: " here good", true: " here revoked"}[i == 3]
		if i > 0 && (!strings.HasPrefix(line, want) || !strings.HasSuffix(line, state)) {
			t.Errorf("%q", line)
		}
	}
	out, _, _ = vnictest.Run(t, "keys", "show", "--dir", dir, "--json")
	var list []cmlink.Described
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 3 || !list[2].Revoked || list[0].Expires.IsZero() {
		t.Errorf("%v: %s", err, out)
	}
}

// TestKeysAreRenewed: a renewed identity has the same name and another key. The revocation of its
// old certificate does not affect it.
func TestKeysAreRenewed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	keys := func(want string, args ...string) {
		t.Helper()
		if out, errs, _ := vnictest.Run(t, append([]string{"keys"}, args...)...); !strings.Contains(out+errs, want) {
			t.Errorf("keys %v: %s%s, want %q", args, out, errs, want)
		}
	}
	keys("1: vnic://site/host/1", "init", "--dir", dir, "--domain", "site", "1")
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	cert, key := read("host-1.pem"), read("host-1.key")
	keys("revoked", "revoke", "--dir", dir, "1")
	if _, err := cmlink.Load(dir, "1"); err == nil {
		t.Error("a revoked identity is good")
	}
	keys("1: vnic://site/host/1 in "+dir, "renew", "--dir", dir, "1")
	if read("host-1.pem") == cert || read("host-1.key") == key {
		t.Error("it is the old one")
	}
	id, err := cmlink.Load(dir, "1")
	if err != nil || id.URI() != "vnic://site/host/1" {
		t.Errorf("%v %v", id, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 5 {
		t.Errorf("%d files: %v", len(list), list)
	}
	keys("NIC 2 has no identity to be renewed", "renew", "--dir", dir, "2")
}

// TestAnAuthorityIsReplacedInThreeSteps: each step says what comes next, one that is not due is refused, and
// vnic keys show says which authority signs and what is to be renewed.
func TestAnAuthorityIsReplacedInThreeSteps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	keys := func(want string, args ...string) {
		t.Helper()
		if out, errs, _ := vnictest.Run(t, append(append([]string{"keys"}, args...), "--dir", dir)...); !strings.Contains(strings.Join(strings.Fields(out+errs), " "), want) {
			t.Errorf("keys %v: %s%s, want %q", args, out, errs, want)
		}
	}
	keys("1: vnic://site/host/1", "init", "--domain", "site", "1", "2")
	keys("one authority, which signs: make the next one first", "authority", "switch")
	keys("then: vnic keys authority switch", "authority", "next")
	keys("ca.pem the next authority", "show")
	keys("one is being replaced already", "authority", "next")
	keys("then: vnic keys authority drop", "authority", "switch")
	keys("elsewhere good host-1.pem vnic://site/host/1", "show")
	keys("here to be renewed host-2.pem", "show")
	keys("host-1.pem is of the authority that would be dropped", "authority", "drop")
	keys("2: vnic://site/host/2", "renew", "1", "2")
	keys("trust it alone", "authority", "drop")
	keys("3: vnic://site/host/3", "add", "3")
	out, _, _ := vnictest.Run(t, "keys", "show", "--dir", dir, "--json")
	var list []cmlink.Described
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 4 || !list[0].Key || list[1].Outdated || list[3].Outdated {
		t.Errorf("%v: %s", err, out)
	}
}

// TestKeysBelongToTheOwnerOfTheirFolder: a NIC that runs as another user can read the keys that
// root made for it, but not the authority's key.
func TestKeysBelongToTheOwnerOfTheirFolder(t *testing.T) {
	vnictest.RequireRoot(t)
	dir := t.TempDir()
	const user = 990
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "--dir", dir, "1"}, {"add", "--dir", dir, "2"}} {
		if _, errs, code := vnictest.Run(t, append([]string{"keys"}, args...)...); code != 0 {
			t.Fatalf("keys %v: %s", args, errs)
		}
	}
	for file, want := range map[string]uint32{"host-1.key": user, "host-1.pem": user, "host-2.key": user, "host-2.pem": user, "ca.key": 0} {
		st, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if uid := st.Sys().(*syscall.Stat_t).Uid; uid != want {
			t.Errorf("%s belongs to user %d, want %d", file, uid, want)
		}
	}
}

// TestRevokeCuts: an existing link ends when the peer's identity is revoked.
func TestRevokeCuts(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		if _, errs, code := vnictest.Run(t, "keys", "revoke", "--dir", l.Hosts[0].Keys, "2"); code != 0 {
			t.Fatal(errs)
		}
		vnictest.Eventually(t, "the link is cut", func() error {
			n, err := l.Control(0).NIC(t.Context())
			if err == nil && (n.Peers[0].Up || n.Peers[0].Functions != 0 || !strings.Contains(n.Peers[0].Note, "revoked")) {
				err = fmt.Errorf("%+v", n.Peers[0])
			}
			return err
		})
	})
}

func TestKeysInitOverwritesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	args := []string{"keys", "init", "--dir", dir, "--domain", "lab", "1", "2"}
	stdout, stderr, code := vnictest.Run(t, args...)
	if want := fmt.Sprintf("1: vnic://lab/host/1 in %[1]s\n2: vnic://lab/host/2 in %[1]s\n", dir); code != 0 || stdout != want {
		t.Fatalf("exit status %d, %q, %q", code, stdout, stderr)
	}
	before := map[string]string{}
	for _, name := range []string{"ca.pem", "ca.key", "host-1.pem", "host-1.key", "host-2.pem", "host-2.key"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(b)
		if st, err := os.Stat(filepath.Join(dir, name)); strings.HasSuffix(name, ".key") && (err != nil || st.Mode().Perm() != 0o600) {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if _, stderr, code = vnictest.Run(t, args...); code != 1 || !strings.Contains(stderr, dir) || !strings.Contains(stderr, "exists") {
		t.Errorf("again: exit status %d, %q", code, stderr)
	}
	for name, was := range before {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != was {
			t.Errorf("%s was changed, %v", name, err)
		}
	}
	for _, name := range []string{"", "..", "Rack1", "a/b", "a b", strings.Repeat("x", cmlink.MaxName+1)} {
		if _, stderr, code = vnictest.Run(t, "keys", "init", "--dir", dir, "3", name); code != cli.ExitUsage || !strings.Contains(stderr, "NAME") {
			t.Errorf("%q: exit status %d, %q", name, code, stderr)
		}
	}
}
