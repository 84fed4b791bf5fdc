package device

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestVersions runs each PSP version end to end, another one in each
// direction: a NIC's version is that of the keys it issues.
func TestVersions(t *testing.T) {
	for version := range uint8(4) {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			v := newVirtualWith(t, 1, wire100us, func(i int, c *config.Config) { c.PSP.Version = (version + uint8(i)) % 4 })
			a, b := pair(v)
			text := bytes.Repeat([]byte("in the clear? "), 100)
			var seen [2]bool // by sender: the text was readable
			v.tap = func(from int, f []byte) []byte {
				if h, _, err := psp.ParseHeader(f[min(len(f), underlay.Headroom):]); err == nil && h.Version != (version+uint8(1-from))%4 {
					t.Fatalf("sender %d uses version %d", from, h.Version)
				}
				seen[from] = seen[from] || bytes.Contains(f, text)
				return f
			}
			for i, d := range []*driver{a, b} {
				copy(d.data(), text)
				d.send(abi.OpWrite, 0, len(text), []*driver{b, a}[i], 1<<20)
				if cqe := d.done(); cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				if want := (version+uint8(1-i))%4 >= psp.VersionGMAC128; seen[i] != want {
					t.Errorf("sender %d: readable on the wire: %v, want %v", i, seen[i], want)
				}
			}
			exchange(t, a, b, 100_000)
			noKeyDrops(t, v)
		})
	}
}

// newTestNIC makes a NIC that is not run.
func newTestNIC(t *testing.T, change func(*config.Config)) (*NIC, error) {
	t.Helper()
	dir := t.TempDir()
	if err := cmlink.Init(filepath.Join(dir, "keys"), "test", []uint8{1}); err != nil {
		t.Fatal(err)
	}
	id, err := cmlink.Load(filepath.Join(dir, "keys"), 1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, 1, filepath.Join(dir, "s"), [2]string{"127.0.0.1:1", "127.0.0.1:2"})
	change(cfg)
	port, err := fabric.New(testMTU).Port("p")
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNIC(cfg, Deps{Uplink: port, Identity: id, Log: testLog(t)})
	if err == nil {
		t.Cleanup(func() {
			n.thread.Close()
			n.ports.close()
			n.closeOpened(&Deps{})
		})
	}
	return n, err
}

// TestKeysRandomPerStart: each start issues other keys for the same SPIs, so no
// IV repeats under a key wherever the clock stands.
func TestKeysRandomPerStart(t *testing.T) {
	seen := map[string]bool{}
	var spi uint32
	for range 4 {
		n, err := newTestNIC(t, func(*config.Config) {})
		if err != nil {
			t.Fatal(err)
		}
		sa, err := n.shard.keys.Issue(security.Use{Peer: 2, Tenant: 7})
		if err != nil || seen[string(sa.Key)] || spi != 0 && sa.SPI != spi {
			t.Fatalf("SPI %#x, key %x seen before: %v (%v)", sa.SPI, sa.Key, seen[string(sa.Key)], err)
		}
		seen[string(sa.Key)], spi = true, sa.SPI
	}
}

// TestKeyLog: a line for each SA of either direction, with the key that works,
// in a file only its owner reads; without the configuration nothing.
func TestKeyLog(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	var logs [2]written
	var keyLogs [2]*security.KeyLog
	for i, s := range v.shards {
		l := security.NewKeyLog(&logs[i], func(err error) { t.Error(err) })
		s.keys.LogTo(l)
		s.txSAs.LogTo(l)
		keyLogs[i] = l
	}
	a, b := pair(v)
	exchange(t, a, b, 1000)
	if err := v.shards[0].keys.Rotate(v.now); err != nil {
		t.Fatal(err)
	}
	v.idle(2e9)
	exchange(t, a, b, 1000)
	for _, l := range keyLogs {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range [][]string{{"rx", "tx", "rx"}, {"rx", "tx", "tx"}} {
		var got []string
		for line := range strings.Lines(logs[i].String()) {
			direction, rest, _ := strings.Cut(line, " ")
			got = append(got, direction)
			if direction == "rx" && !strings.Contains(logs[1-i].String(), "tx "+strings.SplitN(rest, " peer", 2)[0]) {
				t.Errorf("shard %d: the sender does not have %q", i, line)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) && fmt.Sprint(got) != fmt.Sprint([]string{want[1], want[0], want[2]}) {
			t.Errorf("shard %d: %q", i, logs[i].String())
		}
		sa, err := v.shards[i].keys.Issue(security.Use{Peer: uint8(2 - i), Tenant: 7})
		if err != nil {
			t.Fatal(err)
		}
		if line := fmt.Sprintf("rx %08x 0 %s peer=%d tenant=7 class=falcon\n", sa.SPI, hex.EncodeToString(sa.Key), 2-i); !strings.Contains(logs[i].String(), line) {
			t.Errorf("shard %d: no %q in %q", i, line, logs[i].String())
		}
	}
}

// written is a file in memory.
type written struct{ bytes.Buffer }

func (*written) Close() error { return nil }

func TestKeyLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	for range 2 { // appends to its own
		n, err := newTestNIC(t, func(c *config.Config) { c.PSP.KeyLog = path })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.shard.keys.Issue(security.Use{Peer: 2, Tenant: 7}); err != nil {
			t.Fatal(err)
		}
		if err := n.keyLog.Close(); err != nil {
			t.Fatal(err)
		}
		n.keyLog = nil
	}
	text, err := os.ReadFile(path)
	st, serr := os.Stat(path)
	if err != nil || serr != nil || st.Mode().Perm() != 0o600 || bytes.Count(text, []byte("rx ")) != 2 {
		t.Fatalf("mode %v: %q", st.Mode(), text)
	}
}

// TestKeyLogIsOurs: keys go into no file that another user made, can read or can swap, and the NIC
// goes on without (S10, S11).
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
		if w := n.warnings.List(); len(w) != 1 || !strings.HasPrefix(w[0], "psp.keylog: ") || !strings.Contains(w[0], want) || n.keyLog != nil {
			t.Errorf("%s: %q, want %q", path, w, want)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("made ", st.Name())
	}
}
