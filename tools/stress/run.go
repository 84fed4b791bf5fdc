package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// build compiles the tests of a package once.
func build(ctx context.Context, p *testPackage, dir string) error {
	p.binary = filepath.Join(dir, strings.ReplaceAll(p.path, "/", "_")+".test")
	cmd := exec.CommandContext(ctx, "go", "test", "-race", "-c", "-o", p.binary, ".")
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the tests of %s: %w\n%s", p.path, err, out)
	}
	p.sum, err = sumOf(p.binary)
	return err
}

// outcome is the result of several runs of a test.
type outcome struct {
	passed, failed int
	each           time.Duration // that a run took
	output         []byte
}

// A test gets this long for a run before its goroutines are printed.
const hung = 15 * time.Minute

// mark is the environment entry by which processes of a run are found; children inherit it.
const mark = "VNIC_STRESS_RUN="

// The race detector lets a process wait a second before it ends, for races of goroutines that go
// on; tests leave none.
const atExit = "GORACE=atexit_sleep_ms=0"

// run runs a test n times in one process.
func run(ctx context.Context, t aTest, n int) (o outcome, err error) {
	temp, err := os.MkdirTemp("", "vs-") // short: sockets have their paths in it
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(temp)
	entry := mark + filepath.Base(temp)
	cmd := exec.CommandContext(ctx, t.pkg.binary, "-test.v", "-test.run", "^"+t.name+"$", "-test.count", strconv.Itoa(n), "-test.timeout", hung.String())
	cmd.Dir = t.pkg.dir
	cmd.Env = append(os.Environ(), "VNIC_TEST_REQUIRE=1", "TMPDIR="+temp, atExit, entry)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err = cmd.Run()
	o.each = time.Since(start) / time.Duration(n)
	if ctx.Err() != nil {
		killMarked(entry)
		return o, ctx.Err()
	}
	if cmd.ProcessState == nil { // not started: the test cannot help that
		return o, err
	}
	o.passed, o.failed = count(out.Bytes(), t.name)
	if o.failed == 0 && (err != nil || o.passed < n) {
		o.failed = 1 // a panic, a race, a timeout, or the test was skipped
		fmt.Fprintf(&out, "\n%d of %d runs passed: %v\n", o.passed, n, err)
	}
	if left := killMarked(entry); len(left) > 0 {
		o.failed = max(o.failed, 1)
		fmt.Fprintf(&out, "\nprocesses are left: %s\n", strings.Join(left, "; "))
	}
	if left, _ := os.ReadDir(temp); len(left) > 0 && err == nil {
		o.failed = max(o.failed, 1)
		fmt.Fprintf(&out, "\nfiles are left in the temporary folder: %v\n", left)
	}
	o.output = out.Bytes()
	return o, nil
}

// count reads the verdicts of a test from the output of -test.v.
func count(out []byte, name string) (passed, failed int) {
	verdict := regexp.MustCompile(`(?m)^--- (PASS|FAIL): ` + regexp.QuoteMeta(name) + ` \(`)
	for _, m := range verdict.FindAllSubmatch(out, -1) {
		if string(m[1]) == "PASS" {
			passed++
		} else {
			failed++
		}
	}
	return passed, failed
}

// killMarked ends the processes that have the entry in their environment and says what they were.
func killMarked(entry string) (left []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(e []byte) bool { return string(e) == entry }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		left = append(left, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return left
}
