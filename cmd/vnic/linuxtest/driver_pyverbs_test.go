package linuxtest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// pyverbsOK is how many of rdma-core's generic Python tests have to succeed: all but those of which
// docs/linux.md says why not, and a few that have times of their own, which a busy machine misses.
const pyverbsOK = 125

// pyverbsTime is how long they may take: under emulation, on a busy machine.
const pyverbsTime = 15 * time.Minute

// BenchmarkPyverbs runs the tests of Debian's rdma-core, which are Python programs, all but those
// of other makers' devices, and counts: make pyverbs. In the same guest it runs them on Soft-RoCE,
// unless VNIC_PYVERBS names what is run of them (-k of Python's unittest).
func BenchmarkPyverbs(b *testing.B) {
	vnictest.RequireGuests(b)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	m := driverImage(b, ctx, driverExtras{
		packages: []string{"python3-pyverbs"}, modules: rxeModules, put: []image.Put{{From: pyverbsTests(b, ctx), To: "/root/tests"}},
	})
	makeDriverLab(b, vnictest.Options{Windows: true}, [2]qemu.Machine{m, m}, func(l *vnictest.Lab) { l.Plain = true }, func(l *driverLab) {
		defer l.keepConsoles()
		g := l.guests[0]
		g.must("echo 16 >/proc/sys/vm/nr_hugepages; cd /root/tests") // for tests that want large pages
		ok := g.pyverbs(b, l.device(0), l.gid(0))
		b.ReportMetric(float64(ok), "driver/pyverbs_ok")
		if os.Getenv("VNIC_PYVERBS") != "" {
			return
		}
		if ok < pyverbsOK {
			b.Errorf("%d succeeded, want %d", ok, pyverbsOK)
		}
		l.sane(b)
		rxe := plainRXE(l.guests)[0]
		b.ReportMetric(float64(g.pyverbs(b, rxe.name, rxe.gid)), "driver/pyverbs_ok@rxe")
		g.must("dmesg -C") // what the kernel says of Soft-RoCE is not about us
	})
}

// pyverbs runs the tests on a device and counts those that succeed.
func (s *shell) pyverbs(tb testing.TB, device, gid string) (ok int) {
	tb.Helper()
	s.must("echo 1 >/proc/sys/kernel/printk") // what the kernel says would be amidst the results
	command := fmt.Sprintf("python3 -W ignore run_tests.py --dev %s --port 1 --gid %s -v -b", device, gid)
	if only := os.Getenv("VNIC_PYVERBS"); only != "" {
		command += " -k " + only
	}
	said, _ := s.runFor(pyverbsTime, boundedFor(pyverbsTime, command)+" 2>&1")
	results := pyverbsResult.FindAllStringSubmatch(said, -1)
	var other []string
	for _, r := range results {
		if r[3] == "ok" {
			ok++
		} else {
			other = append(other, r[2]+"."+r[1]+": "+r[3])
		}
	}
	slices.Sort(other)
	tb.Logf("%s: %d of %d succeeded; the others:\n%s", device, ok, len(results), strings.Join(other, "\n"))
	if failed := strings.Index(said, "\n====="); failed >= 0 {
		tb.Log(said[failed:]) // why
	}
	return ok
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
	vnictest.Require(t, err == nil, fmt.Sprint("no packages: ", err))
	dir := t.TempDir()
	for _, p := range ps {
		if p.Name != "python3-pyverbs" {
			continue
		}
		tests := filepath.Join(dir, "usr/share/doc/rdma-core/tests")
		script := fmt.Sprintf("dpkg-deb -x %s %s && gunzip %s/*.gz && rm %[3]s/test_mlx5_* %[3]s/test_efa*", p.File, dir, tests)
		// They look for the interface where devices have it that are its own PCI device, too.
		script += fmt.Sprintf(" && sed -i \"s#'ls'#'cat'#; s#/device/net/#/ports/1/gid_attrs/ndevs/0#\" %s/base.py", tests)
		if out, err := exec.CommandContext(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return tests
	}
	t.Fatal("no package python3-pyverbs")
	return ""
}
