package device

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/security"
)

// newTestNIC returns a NIC that is not run.
func newTestNIC(t *testing.T, change func(*config.Config)) (*NIC, error) {
	t.Helper()
	dir := t.TempDir()
	if err := cmlink.Init(filepath.Join(dir, "keys"), "test", []string{"1"}); err != nil {
		t.Fatal(err)
	}
	id, err := cmlink.Load(filepath.Join(dir, "keys"), "1")
	if err != nil {
		t.Fatal(err)
	}
	cfg := devicetest.Config(t, 1, filepath.Join(dir, "s"), [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	change(cfg)
	port, err := fabric.New(devicetest.MTU).Port("p")
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNIC(cfg, Deps{Uplink: port, Identity: id, Log: testLog(t)})
	if err == nil {
		t.Cleanup(func() { n.closeOpened(&Deps{}) })
	}
	return n, err
}

// TestKeysRandomPerStart checks that keys come from the system's random numbers, unless a test
// provides others. device/shard tests that other numbers give other keys.
func TestKeysRandomPerStart(t *testing.T) {
	n, err := newTestNIC(t, func(*config.Config) {})
	if err != nil {
		t.Fatal(err)
	}
	if n.deps.Rand != rand.Reader {
		t.Errorf("keys come from %T", n.deps.Rand)
	}
}

func TestKeyLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	for range 2 { // appends to its own file
		w := newWorldWith(t, fabric.New(devicetest.MTU).Port, func(i int, c *config.Config) {
			if i == 0 {
				c.PSP.KeyLog = path
			}
		})
		connect(t, newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1")), 1)
		for i := range w.stop {
			must(t, w.stop[i]())
		}
	}
	text, err := os.ReadFile(path)
	st, serr := os.Stat(path)
	if err != nil || serr != nil || st.Mode().Perm() != 0o600 || bytes.Count(text, []byte("rx ")) != 2 {
		t.Fatalf("mode %v: %q", st.Mode(), text)
	}
}

// TestKeyLogIsOurs checks that keys are not written to a file that another user made, can read or
// can swap, and that the NIC runs without the key log then.
func TestKeyLogIsOurs(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	folder := func(name string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(path, "keys")
	}
	ok := file("good", 0o600)
	bad := map[string]string{
		file("readable", 0o640): "chmod 600", folder("shared", 0o777): "folder of your own", folder("sticky", 0o777|os.ModeSticky): "folder of your own",
		folder("group", 0o770): "folder of your own", dir: "is a directory", filepath.Join(dir, "none", "keys"): "no such file",
		"/dev/null": "not a regular file",
	}
	for name, link := range map[string]func(string, string) error{"symbolic": os.Symlink, "hard": os.Link} {
		path := filepath.Join(dir, name)
		if err := link(file("target of "+name, 0o600), path); err != nil {
			t.Fatal(err)
		}
		bad[path] = map[string]string{"symbolic": "symbolic link", "hard": "hard links"}[name]
	}
	if os.Geteuid() == 0 {
		path := file("another's", 0o600)
		if err := os.Chown(path, 65534, 0); err != nil {
			t.Fatal(err)
		}
		bad[path] = "belongs to user 65534"
		if err := os.Chown(filepath.Dir(folder("another's folder", 0o700)), 65534, 0); err != nil {
			t.Fatal(err)
		}
		bad[filepath.Join(dir, "another's folder", "keys")] = "folder of your own"
	}
	if err := security.CheckKeyLog(ok); err != nil {
		t.Error(err)
	}
	for path, want := range bad {
		if err := security.CheckKeyLog(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check of %s: %v, want %q", path, err, want)
		}
		n, err := newTestNIC(t, func(c *config.Config) { c.PSP.KeyLog = path })
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if w := n.warnings.List(); len(w) != 1 || !strings.HasPrefix(w[0], "psp.keylog: ") || !strings.Contains(w[0], want) || n.records.keyLog != nil {
			t.Errorf("%s: %q, want %q", path, w, want)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("made ", st.Name())
	}
}
