package cmlink

import (
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// contents returns the files of a folder with what is in them.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}

// copyKeys copies a folder of identities.
func copyKeys(t *testing.T, to, from string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	for name := range contents(t, to) {
		if err := os.Chmod(filepath.Join(to, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhatNeedsADamagedFileNamesItAndChangesNothing: whichever file of a folder of identities is missing, is
// nonsense or is another folder's, whatever needs the file says so and names it, and leaves the folder as it
// was.
func TestWhatNeedsADamagedFileNamesItAndChangesNothing(t *testing.T) {
	whole, other := t.TempDir(), t.TempDir()
	for _, dir := range []string{whole, other} {
		if err := Init(dir, "lab", []string{"1", "2"}); err != nil {
			t.Fatal(err)
		}
		if err := Revoke(dir, "2"); err != nil {
			t.Fatal(err)
		}
	}
	replacing := t.TempDir() // an authority is being replaced there
	copyKeys(t, replacing, whole)
	if err := Next(replacing); err != nil {
		t.Fatal(err)
	}
	open := func(dir string) error { _, err := OpenAuthority(dir); return err }
	describe := func(dir string) error { _, err := Describe(dir); return err }
	takes := func(dir string) error {
		b, err := os.ReadFile(filepath.Join(other, "ca.crl"))
		if err != nil {
			return err
		}
		return TakeRevoked(dir, append(b, '\n'))
	}
	steps := map[string]func(dir string) error{
		"open": open, "describe": describe, "add": func(dir string) error { return Add(dir, "lab", []string{"3"}) }, "renew": func(dir string) error { return Renew(dir, []string{"1"}) },
		"revoke": func(dir string) error { return Revoke(dir, "1") }, "next": Next, "switch": Switch, "drop": Drop, "load": func(dir string) error { _, err := Load(dir, "1"); return err }, "take": takes,
	}
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("no key")}))
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")}))
	list := string(pem.EncodeToMemory(&pem.Block{Type: pemRevoked, Bytes: []byte("no list")}))
	const missing = "missing"
	for _, c := range []struct {
		file  string
		is    []string
		needs string // the steps that need it, in a folder where nothing is being replaced
		then  string // those in one where an authority is
	}{
		{"ca.pem", []string{missing, "", "nonsense", key, cert}, "open describe add renew revoke next switch drop load take", "open describe add renew revoke next switch drop load take"},
		{"ca.key", []string{missing, "", "nonsense", key, cert}, "open add renew revoke next", "open add renew revoke"},
		{"ca-next.key", []string{"nonsense", key, cert}, "", "switch"},
		{"host-1.pem", []string{"", "nonsense", key, cert}, "describe renew revoke next load", "describe renew revoke load"},
		{"ca.crl", []string{"", "nonsense", key, list}, "describe revoke load next", "describe revoke load switch"},
	} {
		for _, text := range c.is {
			for i, from := range []string{whole, replacing} {
				for _, step := range strings.Fields([]string{c.needs, c.then}[i]) {
					dir := filepath.Join(t.TempDir(), "keys")
					copyKeys(t, dir, from)
					at := filepath.Join(dir, c.file)
					var err error
					if text == missing {
						err = os.Remove(at)
					} else {
						err = os.WriteFile(at, []byte(text), 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
					before := contents(t, dir)
					if err := steps[step](dir); err == nil || !strings.Contains(err.Error(), c.file) {
						t.Errorf("%s with %s %.30q: %v", step, c.file, text, err)
					}
					if after := contents(t, dir); !maps.Equal(after, before) {
						t.Errorf("%s with %s %.30q has changed the folder", step, c.file, text)
					}
				}
			}
		}
	}
}

// TestNothingIsMadeUnderABadName: a command that is given one says which, and makes nothing.
func TestNothingIsMadeUnderABadName(t *testing.T) {
	dir := t.TempDir()
	if err := Init(dir, "lab", []string{"1"}); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	for what, err := range map[string]error{
		"Add": Add(dir, "lab", []string{"2", "../3"}), "Renew": Renew(dir, []string{"1", "../3"}), "Revoke": Revoke(dir, "../3"), "Init": Init(t.TempDir(), "lab", []string{"../3"}),
	} {
		if err == nil || !strings.Contains(err.Error(), `"../3" is not a name`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := Add(dir, "other", []string{"2"}); err == nil || !strings.Contains(err.Error(), "is the authority of domain lab") {
		t.Error(err)
	}
	if err := Renew(dir, []string{"2"}); err == nil || !strings.Contains(err.Error(), "NIC 2 has no identity to be renewed") {
		t.Error(err)
	}
	if after := contents(t, dir); !maps.Equal(after, before) {
		t.Errorf("%d files, before %d", len(after), len(before))
	}
}

// TestAPeerThatIsRemovedGetsWhatWasSent: then the link ends on both sides, and comes up again when the peer
// is added again. A peer that is somewhere else now is dialed there.
func TestAPeerThatIsRemovedGetsWhatWasSent(t *testing.T) {
	b, rb := accepting(t, nil)
	a, ra := dialing(t, b.Addr().String(), nil)
	peer := Peer{ID: 2, Name: "2", Addr: b.Addr().String()}
	for range 3 {
		ra.wait("up 2")
		rb.wait("up 1")
		if err := a.Send(2, []byte("the last")); err != nil {
			t.Fatal(err)
		}
		a.Remove(2)
		rb.wait("msg 1 the last")
		rb.wait("down 1")
		ra.wait("down 2")
		if err := a.Send(2, []byte("too late")); err == nil {
			t.Error("a message is sent to nobody")
		}
		if err := a.Set(peer); err != nil {
			t.Fatal(err)
		}
	}
	ra.wait("up 2")
	rb.wait("up 1")

	c, rc := accepting(t, nil)
	peer.Addr = c.Addr().String()
	if err := a.Set(peer); err != nil {
		t.Fatal(err)
	}
	ra.wait("down 2")
	ra.wait("up 2")
	rc.wait("up 1")
	rb.wait("down 1")
	a.Remove(7) // there is none
}
