package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/qemu/image"
)

// pyverbsOK is how many of rdma-core's generic Python tests have to succeed. docs/linux.md has why the
// others do not; a few more have times of their own, which a busy machine misses.
const pyverbsOK = 104

// BenchmarkPyverbs runs the tests of Debian's rdma-core, which are Python programs, all but those of
// other makers' devices, and counts: make pyverbs.
func BenchmarkPyverbs(t *testing.B) {
	requireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	extra := driverExtras{packages: []string{"python3-pyverbs"}, put: []image.Put{{From: pyverbsTests(t, ctx), To: "/root/tests"}}}
	inDriverLab(t, driverImage(t, ctx, extra), func(l *driverLab) {
		defer l.keepConsoles()
		g := l.guests[0]
		g.must("echo 16 >/proc/sys/vm/nr_hugepages; cd /root/tests") // for tests that want large pages
		said, _ := g.run(bounded(l.expand(0, "python3 run_tests.py --dev "+l.device(0)+" --port 1 --gid {gid} -v")) + " 2>&1")
		results := pyverbsResult.FindAllStringSubmatch(said, -1)
		var other []string
		ok := 0
		for _, r := range results {
			if r[3] == "ok" {
				ok++
			} else {
				other = append(other, r[2]+": "+r[3])
			}
		}
		slices.Sort(other)
		t.Logf("%d of %d succeeded; the others:\n%s", ok, len(results), strings.Join(other, "\n"))
		t.ReportMetric(float64(ok), "driver/pyverbs_ok")
		if ok < pyverbsOK {
			t.Errorf("%d succeeded, want %d:\n%s", ok, pyverbsOK, said)
		}
		l.sane(t)
	})
}

// pyverbsResult is a line of Python's unittest: test_name (tests.module.Class…) … ok. Its docstring
// may be between the two on a line of its own.
var pyverbsResult = regexp.MustCompile(`(?m)^(test_\w+) \(tests\.([\w.]+)\)(?:\n.*)?? \.\.\. (ok|FAIL|ERROR|skipped .*)$`)

// pyverbsTests is a folder with the tests, which the package has among its documents.
func pyverbsTests(t testing.TB, ctx context.Context) string {
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	ps, err := image.FetchPackages(ctx, filepath.Dir(cache), []string{"python3-pyverbs"})
	require(t, err == nil, fmt.Sprint("no packages: ", err))
	dir := t.TempDir()
	for _, p := range ps {
		if p.Name != "python3-pyverbs" {
			continue
		}
		tests := filepath.Join(dir, "usr/share/doc/rdma-core/tests")
		script := fmt.Sprintf("dpkg-deb -x %s %s && gunzip %s/*.gz && rm %[3]s/test_mlx5_* %[3]s/test_efa*", p.File, dir, tests)
		if out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return tests
	}
	t.Fatal("no package python3-pyverbs")
	return ""
}
