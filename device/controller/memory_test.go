package controller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/guest"
)

// cgroups creates files as the kernel shows them.
func cgroups(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTheNarrowestMemoryLimitCounts(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		bytes uint64
		file  string
	}{
		{"none", nil, 0, ""},
		{"unified", map[string]string{
			"proc/self/cgroup": "0::/system.slice/vnic.service\n",
			"sys/fs/cgroup/system.slice/vnic.service/memory.max":  "314572800\n",
			"sys/fs/cgroup/system.slice/vnic.service/memory.high": "max\n",
			"sys/fs/cgroup/system.slice/memory.max":               "max\n",
		}, 300 << 20, "vnic.service/memory.max"},
		{"a group above is narrower", map[string]string{
			"proc/self/cgroup":             "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "314572800\n",
			"sys/fs/cgroup/a/memory.high":  "104857600\n",
		}, 100 << 20, "a/memory.high"},
		{"version 1", map[string]string{
			"proc/self/cgroup": "5:cpu:/\n4:memory:/x\n0::/\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "73400320\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
		}, 70 << 20, "x/memory.limit_in_bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := ReadMemoryLimit(cgroups(t, c.files))
			if l.bytes != c.bytes || !strings.HasSuffix(l.file, c.file) {
				t.Errorf("%+v", l)
			}
		})
	}
	if err := (MemoryLimit{bytes: leastMemory - 1, file: "x"}).Check(); err == nil || !strings.Contains(err.Error(), "MemoryMax") {
		t.Error(err)
	}
	if err := (MemoryLimit{bytes: leastMemory}).Check(); err != nil {
		t.Error(err)
	}
}

// TestAWarningComesWhenGuestsDoNotFitTheLimit checks that there is a warning when the guests'
// memory does not fit under the limit, before the kernel kills the NIC.
func TestAWarningComesWhenGuestsDoNotFitTheLimit(t *testing.T) {
	m := GuestMemory{Limit: MemoryLimit{bytes: ownMemory + 300<<20, file: "memory.max"}}
	a, b := &guest.Session{From: guest.Key{Attachment: "vhost-user:a", CID: 3}}, &guest.Session{From: guest.Key{Attachment: "vhost-user:b", CID: 4}}
	bAgain, client := &guest.Session{From: b.From}, &guest.Session{From: guest.Key{Attachment: "unix:c", CID: 0}}
	client2 := &guest.Session{From: client.From}
	steps := []struct {
		guest *guest.Session
		bytes uint64
		warns bool
	}{
		{a, 200 << 20, false},
		{b, 200 << 20, true},
		{bAgain, 200 << 20, false}, // the same memory
		{b, 100 << 20, false},
		{bAgain, 0, false},
		{a, 0, false},
		{client, 150 << 20, false},
		{client2, 150 << 20, false}, // no more than the last warning
		{client2, 151 << 20, true},
	}
	for i, s := range steps {
		if w := m.Is(s.guest, s.bytes); (w != "") != s.warns {
			t.Errorf("step %d: %q", i, w)
		} else if s.warns && !strings.Contains(w, "prealloc=on") {
			t.Error(w)
		}
	}
	if w := (&GuestMemory{}).Is(a, 1<<40); w != "" {
		t.Error(w)
	}
}

// TestTheInnermostOfEqualLimitsIsNamed checks that the lowest limit counts, that the innermost of
// equal limits is named, and that values which mean "no limit" are ignored.
func TestTheInnermostOfEqualLimitsIsNamed(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		bytes uint64
		file  string
	}{
		{"equal ones", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/b/memory.high": "1000\n", "sys/fs/cgroup/a/memory.max": "1000\n",
		}, 1000, "a/b/memory.max"},
		{"of the root", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000\n"}, 1000, "cgroup/memory.max"},
		{"the most there is", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "4611686018427387903\n"}, 1<<62 - 1, "a/memory.max"},
		{"as good as none", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "4611686018427387904\n"}, 0, ""},
		{"beside other controllers", map[string]string{
			"proc/self/cgroup": "nonsense\n3:cpu,memory,io:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000\n",
		}, 1000, "x/memory.limit_in_bytes"},
		{"another controller", map[string]string{
			"proc/self/cgroup": "3:memorynot:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000\n",
		}, 0, ""},
		{"both versions", map[string]string{
			"proc/self/cgroup": "0::/u\n4:memory:/x\n", "sys/fs/cgroup/unified/u/memory.max": "900\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000\n",
		}, 900, "u/memory.max"},
	} {
		if l := ReadMemoryLimit(cgroups(t, c.files)); l.bytes != c.bytes || !strings.HasSuffix(l.file, c.file) {
			t.Errorf("%s: %+v", c.name, l)
		}
	}
	if err := (MemoryLimit{}).Check(); err != nil {
		t.Errorf("no limit: %v", err)
	}
	if err := (MemoryLimit{bytes: 1, file: "x"}).Check(); err == nil ||
		!strings.Contains(err.Error(), "x allows 0 MiB") {
		t.Error(err)
	}
}

// TestTheFirstByteTooManyWarns checks the boundary: memory that just fits gives no warning, one
// byte more does.
func TestTheFirstByteTooManyWarns(t *testing.T) {
	for more, warns := range []bool{false, true} {
		m := GuestMemory{Limit: MemoryLimit{bytes: ownMemory + 1<<20, file: "memory.max"}}
		w := m.Is(&guest.Session{From: guest.Key{CID: 3}}, uint64(1<<20+more))
		if (w != "") != warns || warns && !strings.Contains(w, "memory.max allows 193 MiB") {
			t.Errorf("%d bytes more than there are: %q", more, w)
		}
	}
}
