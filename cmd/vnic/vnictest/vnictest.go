package vnictest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/internal/leak"
	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// The tests run the program as users do: the one static binary, built once.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// Main is the TestMain of packages whose tests run the program. As the first process of a guest,
// the tests' program is its init. Temporary files are in a folder of this process; if it is killed, the
// next one removes it.
func Main(m *testing.M) {
	if guestinit.Active() {
		guestinit.Run(os.Args[1:])
	}
	remove := func() error { return nil }
	if os.Getenv("TMPDIR") == "" { // else whoever set it removes what is left there
		dir, done, err := labkit.RunDir("vt-")
		if err == nil {
			err = os.Chmod(dir, 0o711) // libvirt's QEMU is another user's
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "temporary files:", err)
			os.Exit(1)
		}
		os.Setenv("TMPDIR", dir)
		remove = done
	}
	code := leak.Code(m)
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	_ = remove()
	os.Exit(code)
}

// Program returns the path of the built program: a copy of VNIC_TEST_PROGRAM, which make test sets so
// that not every package builds it, or one that is built now.
func Program(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "vnic-test-"); built.err != nil {
			return
		}
		program := built.dir + "/vnic"
		given := os.Getenv("VNIC_TEST_PROGRAM")
		if given == "" {
			built.err = Build(program, "github.com/falcon-vnic/vnic/cmd/vnic")
			return
		}
		var b []byte
		if b, built.err = os.ReadFile(given); built.err == nil {
			built.err = os.WriteFile(program, b, 0o755)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir + "/vnic"
}

// Build builds a static program, because it may be the init of a guest.
func Build(program, pkg string) error {
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// Run runs the program with these arguments and waits for its end.
func Run(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(Program(t), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Require skips the test if ok is false. With VNIC_TEST_REQUIRE=1 it fails the test instead.
func Require(t testing.TB, ok bool, reason string) {
	t.Helper()
	switch {
	case ok:
	case os.Getenv("VNIC_TEST_REQUIRE") == "1":
		t.Fatal(reason)
	default:
		t.Skip(reason)
	}
}

func RequireRoot(t testing.TB) {
	t.Helper()
	Require(t, os.Geteuid() == 0, "TAPs and network namespaces need root")
}

func RequireGuests(t testing.TB) {
	t.Helper()
	RequireRoot(t)
	for _, tool := range []string{"qemu-system-x86_64", "apt-get", "dpkg-deb"} {
		_, err := exec.LookPath(tool)
		Require(t, err == nil, tool+" is not installed")
	}
}

// Limit is how long a test waits for something that must happen before it fails. It is long because
// the machine may be busy; on a quiet one a guest boots in ten seconds.
const Limit = 5 * time.Minute

// Eventually calls ok until it returns nil, and fails the test with its last error after Limit.
func Eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(Limit)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Marked returns the processes that have an environment entry. Children inherit it.
func Marked(entry string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(env, []byte(entry+"\x00")) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
		pids = append(pids, pid)
	}
	return pids
}

func Median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// RequireIn fails the test unless the output has these texts in this order. Runs of spaces count as
// one, because the width of a table's columns depends on the length of the version.
func RequireIn(t *testing.T, said string, want ...string) {
	t.Helper()
	rest := blanks.ReplaceAllString(said, " ")
	for _, w := range want {
		_, after, ok := strings.Cut(rest, w)
		if !ok {
			t.Fatalf("no %q in what is left of\n%s", w, said)
		}
		rest = after
	}
}

var blanks = regexp.MustCompile("  +")
