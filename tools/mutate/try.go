package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

type outcome int

const (
	killed   outcome = iota // a test failed, or did not end
	survived                // every test passed
	invalid                 // it does not compile
)

func (o outcome) String() string { return [...]string{"killed", "survived", "invalid"}[o] }

// try runs the tests that hold the mutant's package with the mutant in place, until one notices it.
func try(ctx context.Context, base *baseline, m mutant) (outcome, error) {
	dir, err := os.MkdirTemp(base.scratch, "m")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir, m)
	if err != nil {
		return 0, err
	}
	for _, t := range m.testers {
		out, err := tryOne(ctx, base, t, overlay, filepath.Join(dir, "test"))
		if err != nil || out != survived {
			return out, err
		}
	}
	return survived, nil
}

// tryOne runs the tests of one package. Tests that go on for far longer than unchanged count as a
// notice: a loop that no longer ends is one.
func tryOne(ctx context.Context, base *baseline, t tester, overlay, binary string) (outcome, error) {
	limit, err := base.of(ctx, t)
	if err != nil {
		return 0, err
	}
	if ok, err := build(ctx, base.root, t.pkg, binary, "-overlay", overlay); err != nil || !ok {
		return invalid, err
	}
	return runTests(ctx, binary, t.dir, limit)
}

// build compiles a package's tests; false is code that does not compile.
func build(ctx context.Context, root, pkg, binary string, flags ...string) (bool, error) {
	args := append([]string{"test", "-c", "-vet=off", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
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

// runTests runs a test binary in the folder of its package, in a process group of its own, so that
// what a killed test had started ends with it.
func runTests(ctx context.Context, binary, dir string, limit time.Duration) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.failfast", "-test.short", fmt.Sprintf("-test.timeout=%s", limit))
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
