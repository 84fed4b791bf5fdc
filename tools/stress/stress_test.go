package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOnlyTestsThatUseTheMachineAreListed: of the tests in this file those that start a process belong, also where another
// function does it for them.
func TestOnlyTestsThatUseTheMachineAreListed(t *testing.T) {
	tests, err := listTests("..", []string{"./stress"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, test := range tests {
		names = append(names, test.path())
		if test.guest {
			t.Errorf("%s boots no guest", test.path())
		}
	}
	if got, want := strings.Join(names, " "), "stress.TestMarkedProcessesAreKilled"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestOnlyTheTestItselfIsCounted(t *testing.T) {
	const out = `=== RUN   TestA
--- PASS: TestA (0.01s)
=== RUN   TestA
    a_test.go:1: no
--- FAIL: TestA (0.01s)
    --- FAIL: TestA/sub (0.00s)
--- PASS: TestAB (0.00s)
`
	if passed, failed := count([]byte(out), "TestA"); passed != 1 || failed != 1 {
		t.Errorf("%d passed, %d failed", passed, failed)
	}
}

func TestMarkedProcessesAreKilled(t *testing.T) {
	entry := fmt.Sprint(mark, "test-", os.Getpid())
	sleeper := sleep(t, entry)
	if left := killMarked(entry); len(left) != 1 || !strings.HasPrefix(left[0], "sleep 1000") {
		t.Errorf("%q", left)
	}
	if err := sleeper.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if left := killMarked(entry); len(left) != 0 {
		t.Errorf("%q after they were killed", left)
	}
}

func sleep(t *testing.T, entry string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append(os.Environ(), entry)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// TestAGuestsTestNeedsFewerRuns: a guest's test is done after a fifth of the runs, and a slow test runs once at a time.
func TestAGuestsTestNeedsFewerRuns(t *testing.T) {
	quick, guest := aTest{pkg: &testPackage{path: "p"}, name: "TestQuick"}, aTest{pkg: &testPackage{path: "p"}, name: "TestGuest", guest: true}
	y := newTally([]aTest{quick, guest})
	if n := y.atOnce(quick); n != 1 {
		t.Errorf("%d times at first", n)
	}
	y.add(quick, false, outcome{passed: 10, each: atOnce / 100})
	y.add(guest, true, outcome{passed: 10, each: 2 * atOnce})
	if y.atOnce(quick) != runsAtOnce || y.atOnce(guest) != 1 {
		t.Errorf("%d and %d at once", y.atOnce(quick), y.atOnce(guest))
	}
	if y.has(quick, 50) || !y.has(guest, 50) || y.done(50) {
		t.Error("50 runs are 10 of a test with a guest")
	}
	y.add(quick, true, outcome{passed: 39, failed: 1})
	if !y.done(50) || y.rows["p.TestQuick"].failed != [2]int{0, 1} {
		t.Errorf("%+v", y.rows["p.TestQuick"])
	}
}

// TestRunsCountUntilTheTestsChange: runs count for the next time, for tests that were asked for and for others, until the
// tests of their package are built to other bytes.
func TestRunsCountUntilTheTestsChange(t *testing.T) {
	dir := t.TempDir()
	pkg := func(path, sum string) aTest { return aTest{pkg: &testPackage{path: path, sum: sum}, name: "Test"} }
	y := newTally([]aTest{pkg("same", "1"), pkg("changed", "1"), pkg("other", "1")})
	for _, r := range y.rows {
		y.add(r.test, true, outcome{passed: 4, failed: 1, each: time.Second})
	}
	if err := y.keep(dir); err != nil {
		t.Fatal(err)
	}
	next := func() *tally {
		y := newTally([]aTest{pkg("same", "1"), pkg("changed", "2")})
		if err := y.resume(dir, io.Discard); err != nil {
			t.Fatal(err)
		}
		return y
	}
	y = next()
	y.add(pkg("same", "1"), false, outcome{passed: 1})
	if r := y.rows["same.Test"]; r.runs != [2]int{1, 5} || r.failed != [2]int{0, 1} || r.most != time.Second {
		t.Errorf("%+v", r)
	}
	if r := y.rows["changed.Test"]; r.runs != [2]int{} {
		t.Errorf("the runs of another program count: %+v", r)
	}
	if err := y.keep(dir); err != nil {
		t.Fatal(err)
	}
	if y = next(); y.others["other.Test"].Runs != [2]int{0, 5} || y.rows["same.Test"].runs != [2]int{1, 5} {
		t.Errorf("%+v, %+v", y.others, y.rows["same.Test"])
	}
	if err := os.WriteFile(filepath.Join(dir, keptName), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := y.resume(dir, io.Discard); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Error(err)
	}
}

// TestTwoRunsCannotShareAFolder: two runs in one folder would remove each other's tests.
func TestTwoRunsCannotShareAFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stress")
	for range 2 {
		unlock, err := lock(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lock(dir); err == nil || !strings.Contains(err.Error(), "another stress uses it") {
			t.Errorf("a second one: %v", err)
		}
		unlock()
	}
}
