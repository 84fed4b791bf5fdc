package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

type outcome int

const (
	killed    outcome = iota // a test failed, or did not end
	survived                 // every test that reaches it passed
	unreached                // no test reaches it
)

func (o outcome) String() string {
	return [...]string{"noticed", "not noticed", "not reached"}[o]
}

// unnoticed tells that no test failed.
func (o outcome) unnoticed() bool { return o != killed }

// Trials run tests with one of the changes made.
type trials struct {
	*reach
	overlay string // with all changes
	slack   time.Duration

	binariesMu sync.Mutex
	binaries   map[string]*variantTests // by package of the tests
}

// variantTests are the tests of a package, compiled with all changes.
type variantTests struct {
	once sync.Once
	err  error
	path string

	mu   sync.Mutex
	pass map[string]bool // tests of which is known whether they pass when no change is made
}

// try runs the tests that reach the mutant with the mutant in place, until one notices it.
func (t *trials) try(ctx context.Context, m mutant, variant string) (outcome, error) {
	answer := unreached
	for _, by := range m.testers {
		tests, err := t.of(ctx, by, m.site)
		if err != nil {
			return 0, err
		}
		if len(tests) == 0 {
			continue
		}
		out, err := t.tryOne(ctx, by, tests, variant)
		if err != nil || out != survived {
			return out, err
		}
		answer = survived
	}
	return answer, nil
}

// tryOne runs the tests of one package. Tests that go on for far longer than unchanged count as a
// notice: a loop that no longer ends is one.
func (t *trials) tryOne(ctx context.Context, by tester, tests []testRun, variant string) (outcome, error) {
	b, err := t.binary(ctx, by)
	if err != nil {
		return 0, err
	}
	for _, group := range groups(tests) {
		for len(group) > 0 {
			out, failed, err := runTests(ctx, b.path, by.dir, group, t.slack, chosenBy+"="+variant)
			if err != nil {
				return 0, err
			}
			if out == survived {
				break
			}
			if ok, err := t.passes(ctx, by, b, group, failed); err != nil || ok {
				return killed, err
			}
			group = slices.DeleteFunc(slices.Clone(group), func(t testRun) bool { return t.Name == failed })
		}
	}
	return survived, nil
}

// passes tells whether a test that failed passes if no change is made: one that does not would
// notice everything.
func (t *trials) passes(ctx context.Context, by tester, b *variantTests, group []testRun, failed string) (bool, error) {
	i := slices.IndexFunc(group, func(t testRun) bool { return t.Name == failed })
	if i < 0 {
		return true, nil // the binary as a whole
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok, known := b.pass[failed]; known {
		return ok, nil
	}
	out, _, err := runTests(ctx, b.path, by.dir, group[i:i+1], t.slack)
	if err != nil {
		return false, err
	}
	if b.pass == nil {
		b.pass = map[string]bool{}
	}
	b.pass[failed] = out == survived
	if out != survived {
		t.leaveOut(failed, by)
	}
	return out == survived, nil
}

// binary compiles the tests of a package with all changes, once.
func (t *trials) binary(ctx context.Context, by tester) (*variantTests, error) {
	t.binariesMu.Lock()
	if t.binaries == nil {
		t.binaries = map[string]*variantTests{}
	}
	b := t.binaries[by.pkg]
	if b == nil {
		b = &variantTests{path: filepath.Join(t.scratch, fmt.Sprintf("test%d", len(t.binaries)))}
		t.binaries[by.pkg] = b
	}
	t.binariesMu.Unlock()
	b.once.Do(func() { b.err = build(ctx, t.root, by.pkg, b.path, "-overlay", t.overlay) })
	return b, b.err
}

// groupTime is how long the tests that run as one process usually take, if there are several. What
// fails ends a process, and one that hangs is given a multiple of this.
const groupTime = 2 * time.Second

func groups(tests []testRun) (list [][]testRun) {
	var sum time.Duration
	for i, t := range tests {
		if sum += t.Took; i == 0 || sum > groupTime {
			list, sum = append(list, nil), t.Took
		}
		list[len(list)-1] = append(list[len(list)-1], t)
	}
	return list
}

// build compiles a package's tests.
func build(ctx context.Context, root, pkg, binary string, flags ...string) error {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("the tests of %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// slackTimes is how many times longer than unchanged the tests of a mutant may take.
const slackTimes = 5

// A verdict is what the output of tests says of a failure. The rest, which may be long, is not
// kept.
type verdict struct {
	line         []byte
	begun, fails string // the test that began last, and the first that failed
}

func (v *verdict) Write(text []byte) (int, error) {
	for _, c := range text {
		if c != '\n' {
			if len(v.line) < 200 { // longer than a test's name
				v.line = append(v.line, c)
			}
			continue
		}
		words := strings.Fields(string(v.line))
		switch {
		case bytes.HasPrefix(v.line, []byte("=== RUN ")) && len(words) == 3 && !strings.Contains(words[2], "/"):
			v.begun = words[2]
		case bytes.HasPrefix(v.line, []byte("--- FAIL: ")) && v.fails == "":
			v.fails = words[2]
		}
		v.line = v.line[:0]
	}
	return len(text), nil
}

// runTests runs tests of a binary in the folder of its package, in a process group of its own, so
// that what a killed test had started ends with it. It tells which test failed.
func runTests(ctx context.Context, binary, dir string, tests []testRun, slack time.Duration, env ...string) (out outcome, failed string, err error) {
	var names []string
	limit := slack
	for _, t := range tests {
		names = append(names, t.Name)
		limit += slackTimes * t.Took
	}
	v, err := runBinary(ctx, binary, dir, names, limit, env)
	switch {
	case ctx.Err() != nil:
		return 0, "", context.Cause(ctx)
	case err == nil:
		return survived, "", nil
	case v.fails != "":
		return killed, v.fails, nil
	default: // it panicked or hangs
		return killed, v.begun, nil
	}
}

func runBinary(ctx context.Context, binary, dir string, names []string, limit time.Duration, env []string, flags ...string) (*verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := append([]string{
		"-test.run=^(" + strings.Join(names, "|") + ")$", "-test.failfast", "-test.short", "-test.v", fmt.Sprintf("-test.timeout=%s", limit),
	}, flags...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	v := &verdict{}
	cmd.Stdout, cmd.Stderr = v, v
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return v, cmd.Run()
}
