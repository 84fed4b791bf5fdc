package cmlink

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// hostFolder copies what a host needs of a folder of identities.
func hostFolder(t *testing.T, from, to, name string) {
	t.Helper()
	for _, file := range []string{"ca.pem", "host-" + name + ".pem", "host-" + name + ".key", "ca.crl"} {
		b, err := os.ReadFile(filepath.Join(from, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, file), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnAuthorityIsReplacedWhileLinksAreUp: NICs trust both authorities while one replaces the other, and
// links stay. When the old one is dropped, a link that rests on it ends and comes up again by the new
// certificates, a NIC with an old certificate is refused and told why, and what was revoked stays out.
func TestAnAuthorityIsReplacedWhileLinksAreUp(t *testing.T) {
	keys := t.TempDir()
	if err := errors.Join(Init(keys, "lab", []string{"1", "2", "3"}), Revoke(keys, "3")); err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{"1": t.TempDir(), "2": t.TempDir()}
	load := func(name string) *Identity {
		t.Helper()
		hostFolder(t, keys, dirs[name], name)
		id, err := Load(dirs[name], name)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	old := t.TempDir()
	hostFolder(t, keys, old, "1")
	b, rb := accepting(t, func(c *Config) { c.Identity = load("2") })
	a, ra := dialing(t, b.Addr().String(), func(c *Config) { c.Identity = load("1") })
	ra.wait("up 2")
	rb.wait("up 1")
	use := func() {
		a.Use(load("1"))
		b.Use(load("2"))
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}

	refused("one authority, which signs", Switch(keys))
	if err := Next(keys); err != nil {
		t.Fatal(err)
	}
	refused("one is being replaced already", Next(keys))
	refused("host-1.pem is of the authority that would be dropped", errors.Join(Switch(keys), Drop(keys)))
	if err := Switch(keys); err != nil { // once more: nothing is left to do
		t.Fatal(err)
	}
	use()
	if id := load("1"); !id.Outdated() || len(id.Authorities()) != 2 {
		t.Errorf("%+v", id)
	}
	if err := Renew(keys, []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	use()
	if id := load("1"); id.Outdated() {
		t.Errorf("%+v", id)
	}
	if err := errors.Join(a.Send(2, []byte("still up")), Drop(keys)); err != nil {
		t.Fatal(err)
	}
	rb.wait("msg 1 still up")
	use()
	rb.wait("down 1")
	ra.wait("down 2")
	ra.wait("up 2")
	rb.wait("up 1")

	was, err := Load(old, "1") // it trusts the old authority, and has a certificate of it
	if err != nil {
		t.Fatal(err)
	}
	c, rc := dialing(t, b.Addr().String(), func(c *Config) { c.Identity = was })
	for c.Note(2) == "" {
		select {
		case e := <-rc.events:
			t.Fatal(e)
		default:
		}
	}
	if note := c.Note(2); !strings.Contains(note, "of another authority") || !strings.Contains(note, "one of the two has the old files") {
		t.Error(note)
	}
	hostFolder(t, keys, old, "3")
	if _, err := Load(old, "3"); !errors.Is(err, ErrRevoked) && !strings.Contains(err.Error(), "authority") {
		t.Error(err)
	}
	if list, err := Describe(keys); err != nil || len(list) != 4 || !list[0].Key || !list[3].Revoked {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestAuthoritiesAreTakenFromATrustedOneAlone: a NIC takes a list that an authority signed that it trusts,
// and none that would leave its own certificate without one.
func TestAuthoritiesAreTakenFromATrustedOneAlone(t *testing.T) {
	keys, host, other := t.TempDir(), t.TempDir(), t.TempDir()
	if err := errors.Join(Init(keys, "lab", []string{"1"}), Init(other, "lab", []string{"1"})); err != nil {
		t.Fatal(err)
	}
	hostFolder(t, keys, host, "1")
	take := func(dir string) (bool, error) {
		t.Helper()
		a, err := OpenAuthority(dir)
		if err != nil {
			t.Fatal(err)
		}
		roots, err := a.Roots()
		if err != nil {
			t.Fatal(err)
		}
		signature, err := a.SignRoots(roots)
		if err != nil {
			t.Fatal(err)
		}
		return TakeRoots(host, "1", roots, signature)
	}
	step := func(do func(string) error) {
		t.Helper()
		if err := do(keys); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(dir string, want bool, says string) {
		t.Helper()
		if changed, err := take(dir); changed != want || (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%v, %v, want %v, %q", changed, err, want, says)
		}
	}
	expect(keys, false, "")
	expect(other, false, "no authority that this NIC trusts has signed them")
	step(Next)
	expect(keys, true, "")
	step(Switch)
	expect(keys, true, "")
	hidden := filepath.Join(t.TempDir(), "host-1.pem")
	if err := os.Rename(filepath.Join(keys, "host-1.pem"), hidden); err != nil {
		t.Fatal(err)
	}
	step(Drop)
	expect(keys, false, "none of them has signed this NIC's certificate")
	if err := os.Rename(hidden, filepath.Join(keys, "host-1.pem")); err != nil {
		t.Fatal(err)
	}
	step(func(dir string) error { return Renew(dir, []string{"1"}) })
	for _, file := range []string{"host-1.pem", "host-1.key"} {
		b, err := os.ReadFile(filepath.Join(keys, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(host, file), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	expect(keys, true, "")
	if _, err := Load(host, "1"); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(host, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseAuthorities([]byte(strings.Repeat(string(b), maxAuthorities+1))); err == nil || !strings.Contains(err.Error(), "more than 8 authorities") {
		t.Error(err)
	}
}
