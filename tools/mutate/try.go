package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type outcome int

const (
	killed    outcome = iota // a test failed, or did not end
	survived                 // every test that reaches it passed
	unreached                // no test reaches it
	invalid                  // it does not compile
)

func (o outcome) String() string {
	return [...]string{"killed", "survived", "unreached", "invalid"}[o]
}

// unnoticed tells that no test failed.
func (o outcome) unnoticed() bool { return o == survived || o == unreached }

// try runs the tests that reach the mutant with the mutant in place, until one notices it.
func try(ctx context.Context, o options, base *reach, m mutant) (outcome, error) {
	dir, err := os.MkdirTemp(base.scratch, "m")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir, m)
	if err != nil {
		return 0, err
	}
	if ok, err := runGo(ctx, base.root, "build", "-o", os.DevNull, "-overlay", overlay, m.pkg); err != nil || !ok {
		return invalid, err
	}
	answer := unreached
	for _, t := range m.testers {
		tests, err := base.of(ctx, t, m.site)
		if err != nil {
			return 0, err
		}
		if len(tests) == 0 {
			continue
		}
		out, err := tryOne(ctx, o, base, t, tests, overlay, filepath.Join(dir, "test"))
		if err != nil || out != survived {
			return out, err
		}
		answer = survived
	}
	return answer, nil
}

// slackTimes is how many times longer than unchanged the tests of a mutant may take.
const slackTimes = 5

// quickTests take less than this, and are run before the others.
const quickTests = 500 * time.Millisecond

// tryOne runs the tests of one package. Tests that go on for far longer than unchanged count as a
// notice: a loop that no longer ends is one.
func tryOne(ctx context.Context, o options, base *reach, t tester, tests []testRun, overlay, binary string) (outcome, error) {
	if ok, err := build(ctx, base.root, t.pkg, binary, "-overlay", overlay); err != nil || !ok {
		return invalid, err
	}
	slow := slices.IndexFunc(tests, func(t testRun) bool { return t.Took >= quickTests })
	if slow < 0 {
		slow = len(tests)
	}
	for _, group := range [][]testRun{tests[:slow], tests[slow:]} {
		if len(group) == 0 {
			continue
		}
		var names []string
		limit := o.slack
		for _, t := range group {
			names = append(names, t.Name)
			limit += slackTimes * t.Took
		}
		if out, err := runTests(ctx, binary, t.dir, names, limit); err != nil || out != survived {
			return out, err
		}
	}
	return survived, nil
}

// build compiles a package's tests; false is code that does not compile.
func build(ctx context.Context, root, pkg, binary string, flags ...string) (bool, error) {
	args := append([]string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}, flags...)
	return runGo(ctx, root, append(args, pkg)...)
}

func runGo(ctx context.Context, root string, args ...string) (bool, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	err := cmd.Run()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return err == nil, nil
}

func writeOverlay(dir string, m mutant) (string, error) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, m.apply(src), 0o600); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o600)
}

// runTests runs tests of a binary in the folder of its package, in a process group of its own, so
// that what a killed test had started ends with it.
func runTests(ctx context.Context, binary, dir string, names []string, limit time.Duration, flags ...string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args := append([]string{
		"-test.run=^(" + strings.Join(names, "|") + ")$", "-test.failfast", "-test.short", fmt.Sprintf("-test.timeout=%s", limit),
	}, flags...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	switch parent := context.Cause(ctx); {
	case parent == context.DeadlineExceeded:
		return killed, nil
	case parent != nil:
		return 0, parent
	case err != nil:
		return killed, nil
	}
	return survived, nil
}
